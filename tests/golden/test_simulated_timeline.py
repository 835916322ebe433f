"""Without this a change of cost model, engine or step plan could move every simulated number unannounced. Not covered:
whether the numbers are right (the unit tests of each part say that).

After a change that is meant to move them: `python -m tests.golden.test_simulated_timeline`, then read the diff.
"""

from pathlib import Path
from types import SimpleNamespace

import numpy as np

from repro.config import Arm, ModelConfig, RunConfig
from repro.execution.simulated.executor import simulate

GOLDEN = Path(__file__).with_name("simulated_timeline.txt")
CONFIG = RunConfig(
    experiment="golden", figure="", mode="simulated", arm=Arm(name="balance", partition="fbs"), dataset="by hand",
    cluster="h100_paper", gpus=2, batch=2, max_uih=20000, steps=2, warmup_steps=0,
    model=ModelConfig(name="small", layers=2, dim=512, heads=4),
)  # fmt: skip
LENGTHS = np.array([9000, 1000, 8000, 2000, 30000, 10, 300, 15000])
"""UIH lengths of two global batches of four requests; the fifth is capped."""


class ByHand:
    """Stands in for a prepared data set with one item and one action feature and two candidates a request."""

    manifest = SimpleNamespace(features=(SimpleNamespace(of_candidate=True), SimpleNamespace(of_candidate=False)))

    def global_batches(self, global_batch: int) -> int:
        return LENGTHS.size // global_batch

    def global_rows(self, t: int, global_batch: int) -> np.ndarray:
        return np.arange(t * global_batch, (t + 1) * global_batch)

    def uih_lengths(self, rows: np.ndarray, max_uih: int) -> np.ndarray:
        return np.minimum(LENGTHS[rows], max_uih)

    def candidate_counts(self, rows: np.ndarray) -> np.ndarray:
        return np.full(rows.size, 2)


def render() -> str:
    """The timeline as a table, in order of step, then start, then rank."""
    lines = [f"{'step':>4} {'rank':>4} {'lane':<8}{'op':<24}{'start_us':>12}{'duration_us':>13}{'bytes':>12}"]
    spans = simulate(CONFIG, ByHand(), run_id="golden").timeline.spans
    for s in sorted(spans, key=lambda s: (s.step, s.start_ns, s.rank, s.duration_ns)):
        times = f"{s.start_ns / 1000:>12.3f}{s.duration_ns / 1000:>13.3f}"
        lines.append(f"{s.step:>4} {s.rank:>4} {s.lane:<8}{s.op:<24}{times}{s.bytes:>12}")
    return "\n".join(lines) + "\n"


def test_simulated_timeline_is_unchanged():
    assert render() == GOLDEN.read_text(encoding="utf-8")


if __name__ == "__main__":
    GOLDEN.write_text(render(), encoding="utf-8")
