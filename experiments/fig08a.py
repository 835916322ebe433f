"""Straggler percentage against maximum UIH length.

Source     Fig. 8a: 64 GPUs, batch 128, FBS
Command    repro run fig08a
Duration   seconds on one core
Expected   TorchRec about 22 % at 21K and above 20 % from 8K up; with FBS about 2.4 % at 21K (confidence B)
"""

from __future__ import annotations

from dataclasses import replace

from experiments.experiment import Experiment
from experiments.ladder import SIMULATED_PAPER
from experiments.presets import BALANCE, TORCHREC

CAPS = (1_000, 2_000, 4_000, 8_000, 16_000, 21_000)

EXPERIMENT = Experiment(
    name="fig08a",
    figure="Fig. 8a",
    question="How does straggler time grow with the longest history, and how much of it does FBS remove?",
    expected="TorchRec about 22 % at 21K, above 20 % past 8K; FBS about 2.4 % at 21K (B)",
    duration="10 s",
    runs=tuple(
        replace(SIMULATED_PAPER, experiment="fig08a", figure="Fig. 8a", gpus=64, max_uih=cap, arm=arm)
        for cap in CAPS
        for arm in (TORCHREC, BALANCE)
    ),
)
