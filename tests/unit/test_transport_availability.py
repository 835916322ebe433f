"""Without this, a transport that cannot work here could be taken for one that does, or fail with a stack trace.

Not covered: machines that have several GPUs.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from repro.comm.transport.availability import (
    NOT_WRITTEN,
    available,
    missing_for_copy_engine,
    missing_for_zero_cta,
    require,
)
from repro.errors import RunError


class _Nccl:
    NCCL_CTA_POLICY_ZERO = 2


def _machine(
    monkeypatch: pytest.MonkeyPatch,
    *,
    gpus: int,
    nccl: tuple[int, ...] = (2, 30, 7),
    peers: bool = True,
    policy: bool = True,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: nccl)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: peers)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(dist, "ProcessGroupNCCL", _Nccl if policy else object, raising=False)


@pytest.mark.parametrize(
    ("machine", "copy_engine", "zero_cta"),
    [
        ({"gpus": 0}, "no CUDA GPU", "no CUDA GPU"),
        ({"gpus": 1}, "needs several GPUs, found 1", "needs several GPUs, found 1"),
        ({"gpus": 2}, "", ""),
        ({"gpus": 2, "peers": False}, "GPU 0 cannot reach the memory of GPU 1", ""),
        ({"gpus": 2, "nccl": (2, 27, 3)}, "", "NCCL 2.27.3 is older than 2.28"),
        ({"gpus": 2, "policy": False}, "", f"PyTorch {torch.__version__} has no binding of NCCL's CTA policies"),
    ],
)
def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, machine: dict[str, Any], copy_engine: str, zero_cta: str
) -> None:
    _machine(monkeypatch, **machine)
    assert missing_for_copy_engine() == copy_engine
    assert missing_for_zero_cta() == zero_cta
    missing = {found.name: found.missing for found in available()}
    assert missing["process_group"] == missing["host_ring"] == ""
    assert missing["copy_engine"] == (copy_engine or NOT_WRITTEN)
    assert missing["zero_cta"] == (zero_cta or NOT_WRITTEN)


@pytest.mark.parametrize("name", ["copy_engine", "zero_cta"])
def test_refused_in_one_line(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    _machine(monkeypatch, gpus=0)
    with pytest.raises(RunError) as raised:
        require(name)
    assert str(raised.value) == f"transport {name} cannot be used here: no CUDA GPU"
    require("host_ring")
    require("process_group")
