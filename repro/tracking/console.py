"""Console sink: one line a finished run, in the order a reader asks (which run, what it lost, how fast)."""

from __future__ import annotations

from repro.tracking.record import RunRecord

_SHOWN = (
    ("straggler_pct", "straggler {:.1f} %"),
    ("exposed_comm_ms", "exposed comm {:.2f} ms"),
    ("bubble_pct", "bubble {:.1f} %"),
    ("step_ms", "step {:.2f} ms"),
    ("qps", "{:,.0f} requests/s"),
    ("ne", "NE {:.4f}"),
)


def summary_line(record: RunRecord) -> str:
    """The run in one line. Metrics the run does not have are left out, never shown as 0."""
    config = record.config
    head = f"{config.experiment} | {config.arm.name} | {config.mode} | {config.dataset} | {config.gpus} ranks"
    shown = [text.format(record.metrics[name].value) for name, text in _SHOWN if name in record.metrics]
    return f"{head} | uih {config.max_uih} | " + ", ".join(shown)
