"""Exposed embedding communication against the collision rate, on an emulated accelerator and a shaped network.

Source     Fig. 9 (collision rate) over the range of Fig. 3 (1 to 15 %, confidence C)
Command    repro run collision_sweep
Duration   4 min on two CPU cores (root and iproute2 for the shaped network)
Expected   TorchRec flat, FreeScale linear in the rate and about 9x lower (B); asked of this run: at least 80 % less
           than `torchrec` at about 10 %, R^2 of the line at least 0.95, less than `sdd`
Seen       emulated, 2 ranks, two runs. At 10.6 %: `torchrec` 342 and 342 ms, `sdd` 334 and 333, `balance+priority` 17.1
           and 18.6 (95 % less, in both). Line of `balance+priority` over 1.0 to 15.7 %: 0.7 ms + 1.78 ms a per cent,
           R^2 0.962, and 0.9 ms + 1.74, R^2 0.974; it bends upwards. `torchrec` between 338 and 346 ms at all rates.
           With all exposed communication instead: 94 and 93 % less, R^2 0.972 and 0.993.
           4 ranks on the same two cores (--set gpus=4 --set batch=16 --set steps=12 --set pace.time_scale=600 --set
           network.rate_mbit=50), one run: the line FAILS, R^2 0.68 with a falling slope, as the ledger books what is in
           flight beside the dense AllReduce as AllReduce (66 ms at 1 %, 168 ms at 15 %), and up to a quarter of a run's
           pace deadlines were missed. Embedding communication 97 % less at 10.7 %, all communication 71 % less only.

Real ranks, real ids, the real exchange: rates differ in the data (`data_prep.synthetic_presets.COLLISIONS`), nothing is
overridden. Rows are 32 wide, on links so slow that TorchRec's exchange takes time of the order of dense compute: gloo
gives an AllToAll between two ranks half to all of a link's rate (`repro.launch.network`), so embeddings and gradients,
1.3 MB each way, were to take 0.2 to 0.4 s at 100 Mbit/s, beside 0.45 s of compute (seen: 0.33 s). That was fixed before
an arm but `torchrec` had run, and not touched since. TorchRec sends a row for every lookup, the prioritized exchange
distinct rows, a third fewer: so much of the fall is deduplication's.
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
    duration="4 min",
    runs=RUNS,
    default=False,
)
