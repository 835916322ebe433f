"""Named arms and models that recipes are made of."""

from __future__ import annotations

from repro.config import Arm, BalanceConfig, ModelConfig

TORCHREC = Arm(name="torchrec")
SDD = Arm(name="sdd", exchange="sdd")
BALANCE = Arm(name="balance", partition="fbs")
BALANCE_PRIORITY = Arm(name="balance+priority", partition="fbs", exchange="prioritized")
FREESCALE = Arm(name="freescale", partition="fbs", exchange="prioritized", transport="host_ring")
FREESCALE_HIDDEN = Arm(name="freescale_hidden", partition="fbs", exchange="prioritized", transport="host_ring_hidden")
"""`freescale`, but rows that the step waits for stay on NCCL (gloo on CPUs), which is faster by itself."""

LADDER: tuple[Arm, ...] = (TORCHREC, SDD, BALANCE, BALANCE_PRIORITY)
"""Two baselines (`sdd` is TorchRec's other pipeline); from `balance` on each rung is the one before plus one technique,
`balance` starting from `torchrec`."""

SIMULATED_LADDER: tuple[Arm, ...] = (*LADDER, FREESCALE)
"""With technique 3, which gives SMs back: on CPU ranks there are none."""

STALE = Arm(name="stale", partition="fbs", exchange="stale")
"""The control of `balance+priority`: rows are read before their update. Not a technique, it trains something else."""

BALANCE_VBS = Arm(name="balance_vbs", partition="vbs")
BALANCE_VBS_TUNED = Arm(name="balance_vbs_tuned", partition="vbs", balance=BalanceConfig(autotune=True))
"""VBS as the paper has it: shares follow measured execution times. Measured and emulated runs only."""
BALANCE_KK = Arm(name="balance_kk", partition="karmarkar_karp")
BALANCE_COST = Arm(name="balance_cost", partition="fbs_cost")
BALANCE_VBS_COST = Arm(name="balance_vbs_cost", partition="vbs_cost")
BALANCE_VBS_COST_TUNED = Arm(name="balance_vbs_cost_tuned", partition="vbs_cost", balance=BalanceConfig(autotune=True))
"""Measured and emulated runs only, as `BALANCE_VBS_TUNED`."""

BALANCERS: tuple[Arm, ...] = (TORCHREC, BALANCE, BALANCE_VBS, BALANCE_KK, BALANCE_COST, BALANCE_VBS_COST)
"""Every partition, all else equal: none, the paper's two, the peer's (NVIDIA recsys-examples, verl), and our two."""

TINY = ModelConfig(name="tiny", layers=2, dim=32, heads=2)
"""Small enough for CPU ranks."""

MINI = ModelConfig(name="mini", layers=1, dim=4, heads=1)
"""Cheap enough for eight ranks on two cores to train it while an emulated accelerator is busy with a real one."""

HSTU_5L_512D = ModelConfig(name="hstu_5l_512d", layers=5, dim=512, heads=4, dense_dtype="bfloat16")
"""The public DLRMv3 shape (5 layers, D=512, 4 heads of 128): generative-recommenders, dlrm_v3/configs.py."""
