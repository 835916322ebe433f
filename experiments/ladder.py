"""The ablation ladder.

Source     headline claim and Fig. 11: each technique on top of the one before
Command    repro run ladder
Duration   about 90 s on two CPU cores
Expected   straggler share falls by about 9x with FBS at 64 GPUs, 21K UIH, batch 128 (Fig. 8a, confidence B); NE curves
           of the arms coincide (Fig. 11 bottom, B)

Measured: MovieLens 100K, two ranks, a small model, real TorchRec over gloo (NCCL where there are GPUs). Simulated: the
same recipe on H100s, and the paper's setting (synthetic histories up to 21K, batch 128) at 8 and 64 GPUs; with the
rung of technique 3, too, whose SMs only a GPU has. Emulated: `experiments.emulated_ladder`, `experiments.transports`.
"""

from __future__ import annotations

from dataclasses import replace

from experiments.experiment import Experiment
from experiments.presets import HSTU_5L_512D, LADDER, SIMULATED_LADDER, TINY, TORCHREC
from repro.config import RunConfig

MEASURED = RunConfig(
    experiment="ladder",
    figure="Fig. 11",
    mode="measured",
    arm=TORCHREC,
    dataset="movielens-100k",
    cluster="workstation_cpu",
    gpus=2,
    batch=32,
    max_uih=512,
    steps=120,
    warmup_steps=5,
    model=TINY,
)

SIMULATED_SAME = replace(MEASURED, mode="simulated", cluster="h100_paper", gpus=8, steps=20, warmup_steps=1)

SIMULATED_PAPER = replace(
    SIMULATED_SAME,
    dataset="industrial-21k",
    batch=128,
    max_uih=21_000,
    steps=12,
    model=HSTU_5L_512D,
)

EXPERIMENT = Experiment(
    name="ladder",
    figure="Fig. 11 and headline",
    question="What does each technique gain on top of the one before?",
    expected="FBS cuts the straggler share about 9x (64 GPUs, 21K, B); NE curves coincide (B)",
    duration="90 s",
    runs=(
        *(replace(MEASURED, arm=arm) for arm in LADDER),
        *(replace(SIMULATED_SAME, arm=arm) for arm in SIMULATED_LADDER),
        *(replace(SIMULATED_SAME, arm=arm, gpus=64, steps=5) for arm in SIMULATED_LADDER),
        *(replace(SIMULATED_PAPER, arm=arm, gpus=gpus) for gpus in (8, 64) for arm in SIMULATED_LADDER),
    ),
)
