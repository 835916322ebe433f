"""The emulated accelerator: the measured executor with a paced device, not a third executor.

    torchrun -m repro.execution.emulated JOB.json

Real processes, real collectives, real exchange code and real (small) training; only dense compute is made to last as
long as the cost model says that the batch, with its real lengths after balancing, keeps another device busy, times a
scale. What is compared between arms is then free of this machine's speed and of ranks that share its cores.

Here, and nowhere else, the cost model's durations meet the ranks; neither executor knows the other.
"""

from __future__ import annotations

import sys

import numpy as np

from repro.config import RunConfig
from repro.data.batch import JaggedBatch
from repro.device import Device
from repro.device.paced import PacedDevice
from repro.errors import InputError
from repro.execution.measured import main
from repro.execution.simulated.clusters import cluster
from repro.execution.simulated.compute import dense
from repro.pipeline.pace import Pace


def pace_of(config: RunConfig, rank: int) -> Pace:
    """How long dense compute of a batch lasts on this rank of the run.

    Raises:
        InputError: the run has no pace, or its cluster no profile.
    """
    if config.pace is None:
        raise InputError("pace: is missing; an emulated run takes its time from it")
    model, scale = config.pace.model, config.pace.time_scale
    if rank == config.pace.slow_rank:
        scale *= config.pace.slowness
    hardware = cluster(config.pace.cluster)

    def pace(batch: JaggedBatch) -> tuple[float, float]:
        uih_B, candidates_B = batch.uih_lengths.numpy(), batch.candidate_counts.numpy()
        forward_R, backward_R = dense(model, hardware, uih_B, candidates_B, np.zeros(uih_B.size, dtype=np.int64), 1)
        return scale * float(forward_R[0]), scale * float(backward_R[0])

    return pace


def note(config: RunConfig) -> str:
    """What a reader of the run's numbers must know.

    Raises:
        InputError: the run has no pace, or its cluster no profile.
    """
    if config.pace is None:
        raise InputError("pace: is missing; an emulated run takes its time from it")
    slow = (
        f", on rank {config.pace.slow_rank} {config.pace.slowness:g} times as long as that"
        if config.pace.slow_rank >= 0
        else ""
    )
    return (
        f"emulated: dense compute is the run's own small model and a sleep, and lasts {config.pace.time_scale:g} times "
        f"as long as the cost model says for {config.pace.model.name} on one {cluster(config.pace.cluster).gpu}{slow}; "
        "lookups, row updates, optimizer, host work and exchanges take the time they take on this machine"
    )


def _paced(_local_rank: int) -> Device:
    """On any machine: a sleep needs no GPU."""
    return PacedDevice()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], _paced, pace_of))
