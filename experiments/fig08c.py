"""Straggler percentage against the number of GPUs.

Source     Fig. 8c: batch 128, max UIH 21K
Command    repro run fig08c
Duration   15 s on one core
Expected   TorchRec's grows with scale; FreeScale's advantage holds (confidence B, no values published)
"""

from __future__ import annotations

from dataclasses import replace

from experiments.experiment import Experiment
from experiments.ladder import SIMULATED_PAPER
from experiments.presets import BALANCERS

WORLDS = (64, 128, 256)
REQUESTS = 98_304
"""Trained on at every point, at most: three of the largest global batches, which the data set holds."""

EXPERIMENT = Experiment(
    name="fig08c",
    figure="Fig. 8c",
    question="How does straggler time grow with the cluster, and does each partition's gain hold?",
    expected="TorchRec grows with scale; FreeScale's advantage holds (B)",
    duration="15 s",
    runs=tuple(
        replace(
            SIMULATED_PAPER,
            experiment="fig08c",
            figure="Fig. 8c",
            gpus=gpus,
            steps=min(SIMULATED_PAPER.steps, REQUESTS // (gpus * SIMULATED_PAPER.batch)),
            arm=arm,
        )
        for gpus in WORLDS
        for arm in BALANCERS
    ),
)
