"""Which transports work here, and what the others miss. Nothing is ever replaced by something else silently.

`copy_engine` (PyTorch symmetric memory, inside one NVLink domain) and `zero_cta` (NCCL's zero-SM policy) need several
GPUs. Their collectives are **not written**: there was no such machine to run them on, and code for them that never ran
would claim what it cannot show. What is here looks for what they need, so that results and `repro doctor` can name it.
The equal-split padding that `zero_cta` needs is `repro.comm.transport.padded`.

Sources: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/flags.html (CTA policies),
https://github.com/pytorch/pytorch/pull/164309 (their binding), https://github.com/pytorch/pytorch/pull/171811 (use).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from repro.errors import RunError

ZERO_CTA_NCCL = (2, 28)
"""First version with the policy, inside one NVLink domain; across nodes since 2.30.7
(https://docs.nvidia.com/deeplearning/nccl/release-notes/rel_2-30-7.html)."""
NOT_WRITTEN = "its collectives are not written yet: they have never been run"


@dataclass(frozen=True)
class Availability:
    """Whether a transport can be used on this machine."""

    name: str
    missing: str
    """What it lacks, one line; empty when it works."""


def available() -> tuple[Availability, ...]:
    """Every transport, in the order of the documentation. Looks only; starts nothing."""
    return (
        Availability("process_group", ""),
        Availability("host_ring", "" if dist.is_gloo_available() else "PyTorch was built without gloo"),
        Availability("copy_engine", missing_for_copy_engine() or NOT_WRITTEN),
        Availability("zero_cta", missing_for_zero_cta() or NOT_WRITTEN),
    )


def require(name: str) -> None:
    """
    Raises:
        RunError: that transport cannot be used here; says why.
    """
    for found in available():
        if found.name == name and found.missing:
            raise RunError(f"transport {name} cannot be used here: {found.missing}")


def missing_for_copy_engine() -> str:
    """What the machine lacks for copies between GPUs through symmetric memory; empty: nothing."""
    return _missing_gpus() or _missing_peers()


def missing_for_zero_cta() -> str:
    """What the machine lacks for NCCL's zero-SM policy; empty: nothing."""
    if missing := _missing_gpus():
        return missing
    version = torch.cuda.nccl.version()
    if version < ZERO_CTA_NCCL:
        return f"NCCL {'.'.join(map(str, version))} is older than {'.'.join(map(str, ZERO_CTA_NCCL))}"
    if not hasattr(dist.ProcessGroupNCCL, "NCCL_CTA_POLICY_ZERO"):
        return f"PyTorch {torch.__version__} has no binding of NCCL's CTA policies"
    return ""


def _missing_gpus() -> str:
    if not torch.cuda.is_available():
        return "no CUDA GPU"
    if not dist.is_nccl_available():
        return "PyTorch was built without NCCL"
    count = torch.cuda.device_count()
    return "" if count > 1 else f"needs several GPUs, found {count}"


def _missing_peers() -> str:
    count = torch.cuda.device_count()
    for one in range(count):
        for other in range(count):
            if one != other and not torch.cuda.can_device_access_peer(one, other):
                return f"GPU {one} cannot reach the memory of GPU {other}"
    return ""
