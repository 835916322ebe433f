"""The headline: exposed communication at the paper's largest size.

Source     abstract: 256 GPUs, max UIH 21K, batch 128
Command    repro run headline
Duration   20 s on one core
Expected   90.3 % less exposed communication than TorchRec (confidence A)

`freescale` sends every AllGather and AllToAll over the host-staged ring, `freescale_hidden` only those that run behind
dense work: the paper says that the ring serves the overlapped case, not which collectives it carries.
"""

from __future__ import annotations

from dataclasses import replace

from experiments.experiment import Experiment
from experiments.fig08c import REQUESTS
from experiments.ladder import SIMULATED_PAPER
from experiments.presets import FREESCALE_HIDDEN, SIMULATED_LADDER
from repro.config import RunConfig

GPUS = 256

LARGEST: RunConfig = replace(
    SIMULATED_PAPER,
    experiment="headline",
    figure="Abstract",
    gpus=GPUS,
    steps=REQUESTS // (GPUS * SIMULATED_PAPER.batch),
)

EXPERIMENT = Experiment(
    name="headline",
    figure="Abstract",
    question="How much communication is still exposed at 256 GPUs?",
    expected="90.3 % less than TorchRec (A)",
    duration="20 s",
    runs=tuple(replace(LARGEST, arm=arm) for arm in (*SIMULATED_LADDER, FREESCALE_HIDDEN)),
)
