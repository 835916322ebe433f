"""Straggler percentage against batch size.

Source     Fig. 8b: 64 GPUs, max UIH 21K
Command    repro run fig08b
Duration   20 s on one core
Expected   TorchRec's falls as batches grow; FreeScale's is 4-9x lower throughout (confidence B)

Small batches leave a rank with one long history little to be balanced with: at 16-32 samples a rank equal counts are
what binds, which is where the variable counts of VBS gain.
"""

from __future__ import annotations

from dataclasses import replace

from experiments.experiment import Experiment
from experiments.ladder import SIMULATED_PAPER
from experiments.presets import BALANCERS

BATCHES = (32, 64, 128, 256, 512)
REQUESTS = 98_304
"""Trained on at every point, at most: three of the largest global batches, which the data set holds."""
GPUS = 64

EXPERIMENT = Experiment(
    name="fig08b",
    figure="Fig. 8b",
    question="How does straggler time fall as batches grow, and how much of it does each partition remove?",
    expected="TorchRec falls with the batch; FreeScale 4-9x lower throughout (B)",
    duration="20 s",
    runs=tuple(
        replace(
            SIMULATED_PAPER,
            experiment="fig08b",
            figure="Fig. 8b",
            gpus=GPUS,
            batch=batch,
            steps=min(SIMULATED_PAPER.steps, REQUESTS // (GPUS * batch)),
            arm=arm,
        )
        for batch in BATCHES
        for arm in BALANCERS
    ),
)
