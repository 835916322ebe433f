"""The ladder's balancing rung on an emulated accelerator, at 2, 4 and 8 ranks.

Source     Fig. 8a: FBS against TorchRec's own order (about 9x at 64 GPUs, 21K UIH, confidence B)
Command    repro run ladder_emulated
Duration   35 to 50 s a world size on two CPU cores, 10 to 15 s of them to start the ranks
Expected   straggler share falls at least 5x at every world size

Real ranks and collectives over a shaped network; dense compute lasts as long as an H100's with HSTU 5L-512D, on
histories cut at 512 events, which the small real model can follow. It is slowed down, and more so the more ranks share
two cores, until what the cores do beside it is small against it. The paper's 200 Gb/s NIC is slowed down as much.
"""

from __future__ import annotations

from experiments.experiment import Experiment
from experiments.presets import BALANCE, HSTU_5L_512D, MINI, TORCHREC
from repro.config import NetworkConfig, PaceConfig, RunConfig

NIC_GBIT = 200
SIZES = {2: (128, 500), 4: (128, 700), 8: (96, 1000)}
"""World size -> (batch, how many times slower than the accelerator)."""

RUNS: tuple[RunConfig, ...] = tuple(
    RunConfig(
        experiment="ladder_emulated",
        figure="Fig. 11",
        mode="emulated",
        arm=arm,
        dataset="industrial-21k",
        cluster="workstation_cpu",
        gpus=gpus,
        batch=batch,
        max_uih=512,
        steps=7,
        warmup_steps=1,
        model=MINI,
        network=NetworkConfig(rate_mbit=1e3 * NIC_GBIT / slower),
        pace=PaceConfig(model=HSTU_5L_512D, cluster="h100_paper", time_scale=slower),
    )
    for gpus, (batch, slower) in SIZES.items()
    for arm in (TORCHREC, BALANCE)
)

EXPERIMENT = Experiment(
    name="ladder_emulated",
    figure="Fig. 8a",
    question="How much straggler wait does FBS remove between real ranks, when compute lasts as long as an H100's?",
    expected="TorchRec's straggler share falls by about 9x (64 GPUs, 21K, B)",
    duration="2 min",
    runs=RUNS,
    default=False,
)
