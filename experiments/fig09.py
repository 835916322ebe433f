"""Exposed embedding communication against the longest history and the collision rate.

Source     Fig. 9: synthetic data; 64 GPUs and batch 128 assumed
Command    repro run fig09
Duration   40 s on one core
Expected   111 ms with TorchRec, 13 ms with FreeScale at 8K; flat and linear in the collision rate (confidence B)

One run of `balance+priority` holds its exposed time at other collision rates too: its metrics `..._at_Npct` override
the rate of the data set (assumption A19). `stale` waits for no row and shows what is left then. `freescale` is run at
the cap for which a value is published.
"""

from __future__ import annotations

from dataclasses import replace

from experiments.experiment import Experiment
from experiments.fig08a import CAPS
from experiments.ladder import SIMULATED_PAPER
from experiments.presets import FREESCALE, LADDER, STALE
from repro.config import Arm, RunConfig

PUBLISHED_CAP = 8_000


def _run(cap: int, arm: Arm) -> RunConfig:
    return replace(SIMULATED_PAPER, experiment="fig09", figure="Fig. 9", gpus=64, max_uih=cap, arm=arm)


EXPERIMENT = Experiment(
    name="fig09",
    figure="Fig. 9",
    question="How much embedding communication stays exposed, and what does it depend on?",
    expected="111 ms with TorchRec and 13 ms with FreeScale at 8K; flat and linear in the collision rate (B)",
    duration="40 s",
    runs=(*(_run(cap, arm) for cap in CAPS for arm in (*LADDER, STALE)), _run(PUBLISHED_CAP, FREESCALE)),
)
