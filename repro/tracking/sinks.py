"""Publish a finished run: JSONL always, W&B where wanted, one line on the console.

A sink other than JSONL never fails or alters a run: whatever goes wrong becomes one warning line and a status
string in the record. Order of a run's end:

    timeline.write(folder / SPANS); write_steps(rows, folder); write_record(record, folder)   # now it is complete
    status = publish(record, rows, images, mode, results)
    write_record(dataclasses.replace(record, tracking=status), folder)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from repro.errors import InputError
from repro.tracking.console import summary_line
from repro.tracking.jsonl import write_steps
from repro.tracking.record import RunRecord
from repro.tracking.wandb_sink import WandbMode, publish_wandb

_WARNING_WIDTH = 240


def publish(
    record: RunRecord,
    rows: Sequence[dict[str, Any]],
    images: Mapping[str, Path],
    mode: WandbMode,
    results: Path,
    log: Callable[[str], None] = print,
) -> dict[str, str]:
    """Publish `record` and its per-step rows.

    Args:
        rows: One row a step, as in `steps.jsonl`.
        images: Figure name -> PNG file, shown in W&B.
        mode: `auto` is online when W&B finds credentials and offline otherwise.
        results: The results folder; the run lies in `results/runs/<experiment>/<run id>`.
        log: Receives the console line and any warning.

    Returns:
        Sink name -> what became of it.

    Raises:
        InputError: an unknown mode.
        RunError: the per-step rows cannot be written.
    """
    if mode not in get_args(WandbMode):
        raise InputError(f"tracking mode {mode!r} is not one of {', '.join(get_args(WandbMode))}")
    folder = results / "runs" / record.config.experiment / record.run_id
    status = {"jsonl": write_steps(rows, folder).name}
    try:
        status["wandb"] = publish_wandb(record, rows, images, mode, results, folder)
    except (Exception, SystemExit) as error:  # the client also leaves by sys.exit
        status["wandb"] = f"failed: {_one_line(error)}"
        log(f"warning: W&B: {_one_line(error)}; the run and its JSONL are complete")
    log(summary_line(record))
    return status


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _WARNING_WIDTH else text[: _WARNING_WIDTH - 1] + "…"
