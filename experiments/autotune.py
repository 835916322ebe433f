"""AutoTune: one rank's device is slower than the others', and its share of the work follows.

Source     technique 1: per-rank shares corrected from measured execution times; no number is published
Command    repro run autotune
Duration   3 min on two CPU cores, 60 steps of three arms at about a second
Seen       emulated, one run beside other work on the machine: straggler wait 25.8 % with `torchrec`, 23.9 % with
           `balance_vbs_cost`, 9.6 % tuned (6.0 % in the median step; every tenth pace deadline was missed); the step
           16 % shorter than with equal shares. Equal waits at the right shares would be 27 % shorter. Shares have
           settled after some 20 steps.

Emulated, four ranks on a shaped network; dense compute of rank 1 lasts half as long again as an H100's. Both arms deal
by modelled cost with free counts; `balance_vbs_cost_tuned` also corrects each rank's share by what it measures.
"""

from __future__ import annotations

from dataclasses import replace

from experiments.emulated_ladder import NIC_GBIT
from experiments.experiment import Experiment
from experiments.presets import BALANCE_VBS_COST, BALANCE_VBS_COST_TUNED, HSTU_5L_512D, MINI, TORCHREC
from repro.config import NetworkConfig, PaceConfig, RunConfig

TIME_SCALE = 400.0
SLOWNESS = 1.5

EMULATED = RunConfig(
    experiment="autotune",
    figure="",
    mode="emulated",
    arm=TORCHREC,
    dataset="industrial-21k",
    cluster="workstation_cpu",
    gpus=4,
    batch=64,
    max_uih=512,
    steps=60,
    warmup_steps=30,
    model=MINI,
    network=NetworkConfig(rate_mbit=1e3 * NIC_GBIT / TIME_SCALE),
    pace=PaceConfig(model=HSTU_5L_512D, cluster="h100_paper", time_scale=TIME_SCALE, slow_rank=1, slowness=SLOWNESS),
)

EXPERIMENT = Experiment(
    name="autotune",
    figure="",
    question="Does a slow device get less work, so that the others stop waiting for it?",
    expected="not published",
    duration="3 min",
    runs=tuple(replace(EMULATED, arm=arm) for arm in (TORCHREC, BALANCE_VBS_COST, BALANCE_VBS_COST_TUNED)),
    default=False,
)
