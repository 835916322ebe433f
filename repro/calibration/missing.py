"""What a full calibration has and this one has not, each with its reason: nothing is left out in silence."""

from __future__ import annotations

import torch

from repro.calibration.profile import Missing
from repro.comm.transport.availability import available

NO_GPU = "no CUDA GPU"
NOT_WRITTEN = "its measurement is not written yet"


def missing() -> tuple[Missing, ...]:
    """For this machine."""
    gpu = torch.cuda.is_available()
    found = [] if gpu else [Missing("rates of a GPU, copies between host and device", NO_GPU)]
    found += [
        Missing(f"contention factor: {cause}", NOT_WRITTEN if gpu else f"{NO_GPU}, and {NOT_WRITTEN}")
        for cause in ("SMs held", "HBM loaded", "copy engines only")
    ]
    if gpu:
        found.append(Missing("collectives of GPU memory (NCCL, host_ring with its copies)", NOT_WRITTEN))
    found += [Missing(f"collectives over {way.name}", way.missing) for way in available() if way.missing]
    found.append(Missing("collectives between machines", "ranks are started on this machine only"))
    return tuple(found)
