"""How fast a device copies, launches, multiplies, attends, adds and looks up.

Each measurement runs one operation into memory that is there already (attention alone allocates its result), three
times to warm up and then `repeats` times. A GPU is waited for before and after, so a time has one launch and one wait
in it: hence the large operands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from repro.calibration.profile import Rate, spread
from repro.calibration.setting import Setting

WARMUPS = 3


def rates(device: torch.device, setting: Setting) -> Iterator[Rate]:
    """All of one device, each when it is done. Floats are fp32 on a CPU and bf16 on a GPU; tables are fp32 on both."""
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    yield from _copies(device, setting)
    yield _launch(device, setting)
    yield _gemm(device, setting, dtype)
    for tokens in setting.attention_tokens:
        yield _attention(device, setting, dtype, tokens)
    yield _elementwise(device, setting, dtype)
    yield _lookup(device, setting)


def _copies(device: torch.device, setting: Setting) -> Iterator[Rate]:
    size = setting.copy_bytes
    here, there = (torch.ones(size, dtype=torch.uint8, device=device) for _ in range(2))
    pairs = [("copy", there, here)]
    if device.type == "cuda":
        pinned = torch.ones(size, dtype=torch.uint8, pin_memory=True)
        pairs += [("copy device to host", pinned, here), ("copy host to device", here, pinned)]
    for name, target, source in pairs:
        seconds = _seconds(device, setting.repeats, _copy(target, source))
        yield _rate(device, name, f"{size / 2**20:g} MiB, bytes copied", "B/s", size, seconds)


def _copy(target: torch.Tensor, source: torch.Tensor) -> Callable[[], object]:
    return lambda: target.copy_(source, non_blocking=True)


def _launch(device: torch.device, setting: Setting) -> Rate:
    one = torch.zeros(1, device=device)

    def issue() -> None:
        for _ in range(setting.launches):
            one.add_(1.0)

    return Rate(
        device=device.type,
        operation="launch",
        workload=f"add_ to one fp32 value, mean of {setting.launches} in a row",
        unit="s",
        value=spread([taken / setting.launches for taken in _seconds(device, setting.repeats, issue)]),
    )


def _gemm(device: torch.device, setting: Setting, dtype: torch.dtype) -> Rate:
    side = setting.gemm
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(left)
    seconds = _seconds(device, setting.repeats, lambda: torch.mm(left, right, out=out))
    return _rate(device, "gemm", f"{side} x {side} x {side}, {_name(dtype)}", "FLOP/s", 2 * side**3, seconds)


def _attention(device: torch.device, setting: Setting, dtype: torch.dtype, tokens: int) -> Rate:
    """torch's own softmax attention, forward: HSTU's pointwise one has the same two products and another activation."""
    shape = (1, 1, tokens, setting.attention_dim)
    q, k, v = (torch.randn(shape, device=device, dtype=dtype) for _ in range(3))
    seconds = _seconds(device, setting.repeats, lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    # Two products, each 2 x dim operations for every pair that the causal mask leaves: tokens (tokens + 1) / 2 pairs.
    flops = 2 * setting.attention_dim * tokens * (tokens + 1)
    workload = f"causal softmax forward, 1 head, {tokens} tokens, d={setting.attention_dim}, {_name(dtype)}"
    return _rate(device, "attention", workload, "FLOP/s", flops, seconds)


def _elementwise(device: torch.device, setting: Setting, dtype: torch.dtype) -> Rate:
    count = setting.copy_bytes // dtype.itemsize
    left, right, out = (torch.ones(count, device=device, dtype=dtype) for _ in range(3))
    seconds = _seconds(device, setting.repeats, lambda: torch.add(left, right, out=out))
    workload = f"a + b of {count} {_name(dtype)}, bytes read and written"
    return _rate(device, "elementwise", workload, "B/s", 3 * left.nbytes, seconds)


def _lookup(device: torch.device, setting: Setting) -> Rate:
    # Ones: memory that was only ever zeroed has no pages of its own yet, and reading it would be too fast.
    table = torch.ones(setting.table_rows, setting.table_dim, device=device)
    index = torch.randint(setting.table_rows, (setting.lookups,), device=device)
    out = torch.ones(setting.lookups, setting.table_dim, device=device)
    seconds = _seconds(device, setting.repeats, lambda: torch.index_select(table, 0, index, out=out))
    rows = f"{setting.lookups} uniform rows of {setting.table_rows} x {setting.table_dim} float32, bytes looked up"
    return _rate(device, "embedding lookup", rows, "B/s", out.nbytes, seconds)


def _rate(device: torch.device, name: str, workload: str, unit: str, amount: float, seconds: list[float]) -> Rate:
    return Rate(
        device=device.type,
        operation=name,
        workload=workload,
        unit=unit,
        value=spread([amount / taken for taken in seconds]),
    )


def _seconds(device: torch.device, repeats: int, run: Callable[[], object]) -> list[float]:
    taken = []
    for repeat in range(WARMUPS + repeats):
        _wait(device)
        began = time.perf_counter()
        run()
        _wait(device)
        if repeat >= WARMUPS:
            taken.append(time.perf_counter() - began)
    return taken


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
