"""The measured executor, rank side: `torchrun -m repro.execution.measured JOB.json`.

A job is one run, or several that differ only in their arm. Those are trained side by side: a few steps of each in turn,
by the same processes, so that whatever else the machine does meets all arms alike and their ratio means something. A
run's clock stands still while another one trains, and while a checkpoint is written.

Each rank writes its spans and facts of each run (`repro.execution.parts`); the launcher merges them. Rank 0 prints one
`step` line a step, which the launcher turns into progress. A rank that fails leaves its one-line reason in
`error-rank<r>.txt`, or in `refused-rank<r>.txt` if it would not take its input, since torchrun's own report hides it in
a page of text.

An emulated run is this executor with paces (`repro.execution.emulated`).
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from repro.comm.groups import Groups, process_groups
from repro.config import RunConfig
from repro.data.dataset import PreparedDataset
from repro.device import Device, local_device
from repro.errors import InputError, RunError
from repro.execution.assignment import Assignment, assignment
from repro.execution.under_way import RunUnderWay
from repro.pipeline.pace import Pace

ERROR_OF_RANK, REFUSAL_OF_RANK = "error-rank{rank}.txt", "refused-rank{rank}.txt"

BLOCK_STEPS = 10
"""Steps of one arm before the next has its turn."""


PaceOf = Callable[[RunConfig, int], Pace | None]
"""Of a run and a rank."""


def run_rank(runs: list[Assignment], dataset: PreparedDataset, device: Device, pace_of: PaceOf) -> None:
    """Train as the rank that torchrun's variables describe and write its part of each result into its `out`.

    Args:
        pace_of: how long a run's dense compute is made to last; None as long as it does.
    """
    with process_groups(device) as groups:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // groups.world))

        def report() -> None:
            if groups.rank == 0:
                print("step", flush=True)

        train_runs(runs, dataset, device, groups, pace_of, report)


def train_runs(
    runs: list[Assignment],
    dataset: PreparedDataset,
    device: Device,
    groups: Groups,
    pace_of: PaceOf,
    on_step: Callable[[], None],
) -> list[RunUnderWay]:
    """As `run_rank`, in process groups that are there; returns the runs, done. `on_step`: called after each step."""
    under_way = [RunUnderWay.begin(run, dataset, device, groups, pace_of(run.config, groups.rank)) for run in runs]
    for one in under_way:
        one.restore()
    train_side_by_side(under_way, runs[0].config.steps, on_step)
    for one in under_way:
        one.finish()
    return under_way


def train_side_by_side(runs: Sequence[RunUnderWay], steps: int, on_step: Callable[[], None]) -> None:
    """Train all of them until `steps` are done, a block of steps of each in turn, in an order that changes from turn to
    turn. One that goes on from a checkpoint misses the turns before it."""
    for turn, first in enumerate(range(0, steps, BLOCK_STEPS)):
        for one in runs if turn % 2 == 0 else reversed(runs):
            one.train_until(min(first + BLOCK_STEPS, steps), on_step)


def unpaced(_config: RunConfig, _rank: int) -> None:
    """Compute lasts as long as it does."""


def main(arguments: list[str], device_of: Callable[[int], Device] = local_device, pace_of: PaceOf = unpaced) -> int:
    """Entry point of one rank.

    Args:
        arguments: the job file.
        device_of: local rank -> what it computes on.
        pace_of: as in `run_rank`.
    """
    job = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    logs = Path(job["logs"])
    rank = os.environ["RANK"]
    try:
        runs = [assignment(run) for run in job["runs"]]
        device = device_of(int(os.environ.get("LOCAL_RANK", "0")))
        run_rank(runs, PreparedDataset.open(Path(job["dataset"])), device, pace_of)
    except (InputError, RunError, RuntimeError, OSError, ValueError) as error:
        traceback.print_exc()
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        refused = isinstance(error, InputError)
        path = logs / (REFUSAL_OF_RANK if refused else ERROR_OF_RANK).format(rank=rank)
        path.write_text(first_line, encoding="utf-8")
        return 2 if refused else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
