"""Exposed embedding communication against the collision rate, on an emulated accelerator and a shaped network.

Source     Fig. 9 (collision rate) over the range of Fig. 3 (1 to 15 %, confidence C)
Command    repro run collision_sweep
Duration   TBD
Expected   TorchRec flat, FreeScale linear in the rate and about 9x lower (B); here at least 80 % less than `torchrec` at
           about 10 %, R^2 of the line at least 0.95, less than `sdd`

Real ranks, real ids, the real exchange: rates differ in the data (`data_prep.synthetic_presets.COLLISIONS`), nothing is
overridden. Rows are 32 wide on links slowed until TorchRec's exchange of embeddings and gradients lasts about as long
as dense compute: gloo gives an AllToAll between two ranks half a link's rate (`repro.launch.network`), so two of 1.3 MB
each way take about 0.4 s at 100 Mbit/s, beside 0.45 s of compute. That was set from `torchrec` alone, before the other
arms had run.
"""

from __future__ import annotations

from dataclasses import replace

from experiments.experiment import Experiment
from experiments.presets import BALANCE_PRIORITY, HSTU_5L_512D, MINI, SDD, TORCHREC
from repro.config import NetworkConfig, PaceConfig, RunConfig

DATASETS = ("collisions-1pct", "collisions-5pct", "collisions-10pct", "collisions-15pct")
RATE_MBIT = 100.0
TIME_SCALE = 300.0
WIDE = replace(MINI, name="wide", dim=32)
"""Rows so wide that ids (8 bytes) are small beside them, as at real widths."""

RUNS: tuple[RunConfig, ...] = tuple(
    RunConfig(
        experiment="collision_sweep",
        figure="Fig. 9",
        mode="emulated",
        arm=arm,
        dataset=dataset,
        cluster="workstation_cpu",
        gpus=2,
        batch=32,
        max_uih=512,
        steps=20,
        warmup_steps=2,
        model=WIDE,
        network=NetworkConfig(rate_mbit=RATE_MBIT),
        pace=PaceConfig(model=HSTU_5L_512D, cluster="h100_paper", time_scale=TIME_SCALE),
    )
    for dataset in DATASETS
    for arm in (TORCHREC, SDD, BALANCE_PRIORITY)
)

EXPERIMENT = Experiment(
    name="collision_sweep",
    figure="Fig. 9",
    question="Does exposed embedding communication follow the collision rate between real ranks?",
    expected="flat with TorchRec, linear in the rate and about 9x lower with FreeScale (B)",
    duration="5 min",
    runs=RUNS,
    default=False,
)
