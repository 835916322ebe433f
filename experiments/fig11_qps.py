"""Requests a second against the number of GPUs.

Source     Fig. 11 top: batch 128, max UIH 21K
Command    repro run fig11_qps
Duration   30 s on one core
Expected   SDD saves about 10 ms of metadata and stays near TorchRec; FreeScale's gain grows with scale (confidence B,
           no values published)
"""

from __future__ import annotations

from dataclasses import replace

from experiments.experiment import Experiment
from experiments.fig08c import REQUESTS, WORLDS
from experiments.ladder import SIMULATED_PAPER
from experiments.presets import SIMULATED_LADDER

EXPERIMENT = Experiment(
    name="fig11_qps",
    figure="Fig. 11 top",
    question="How many requests a second does each arm train, and does the gain grow with the cluster?",
    expected="SDD near TorchRec; FreeScale's gain grows with scale (B)",
    duration="30 s",
    runs=tuple(
        replace(
            SIMULATED_PAPER,
            experiment="fig11_qps",
            figure="Fig. 11 top",
            gpus=gpus,
            steps=min(SIMULATED_PAPER.steps, REQUESTS // (gpus * SIMULATED_PAPER.batch)),
            arm=arm,
        )
        for gpus in WORLDS
        for arm in SIMULATED_LADDER
    ),
)
