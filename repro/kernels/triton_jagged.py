"""The operations of `repro.kernels.jagged` as Triton kernels, one launch each.

A program takes a fixed number of rows of the result, whatever samples they belong to, and finds each row's sample by
binary search in the offsets. No thread block owns a sample, so one giant history makes no straggler inside the kernel.
Row numbers are int64 throughout. `total` and `rows` are the caller's: computing them would wait for the device.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from repro.errors import InputError
from repro.kernels.jagged import begins, require_ranges

# N samples or ranges, T rows, M samples of the result, D columns, A x B blocks

_ROWS = 64
_COLUMNS = 128
_ROWS_OF_ONE_COLUMN = 1024


@triton.jit
def _range_of(end_ptr, row, ranges, STEPS: tl.constexpr):
    """First range that ends after `row`."""
    low = row * 0  # not tl.zeros_like: itself a jitted function, compiled or interpreted as it was first imported
    high = low + ranges
    for _ in tl.static_range(STEPS):
        middle = (low + high) // 2
        open_ = low < high
        end = tl.load(end_ptr + middle, mask=open_, other=0)
        low = tl.where(open_ & (end <= row), middle + 1, low)
        high = tl.where(open_ & (end > row), middle, high)
    return low


@triton.jit
def _copy(source_ptr, target_ptr, source_row, target_row, valid, columns, COLUMNS: tl.constexpr):
    column = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    mask = valid[:, None] & (column < columns)[None, :]
    moved = tl.load(source_ptr + source_row[:, None] * columns + column[None, :], mask=mask)
    tl.store(target_ptr + target_row[:, None] * columns + column[None, :], moved, mask=mask)


@triton.jit
def _permute_kernel(
    source_ptr, target_ptr, begin_ptr, index_ptr, end_ptr, ranges, rows, columns,
    STEPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    valid = row < rows
    place = _range_of(end_ptr, row, ranges, STEPS)
    before = tl.load(end_ptr + place - 1, mask=valid & (place > 0), other=0)
    sample = tl.load(index_ptr + place, mask=valid, other=0).to(tl.int64)
    begin = tl.load(begin_ptr + sample, mask=valid, other=0)
    _copy(source_ptr, target_ptr, begin + row - before, row, valid, columns, COLUMNS)


@triton.jit
def _dispatch_kernel(
    source_ptr, target_ptr, begin_ptr, end_ptr, ranges, rows, columns,
    STEPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    valid = row < rows
    place = _range_of(end_ptr, row, ranges, STEPS)
    before = tl.load(end_ptr + place - 1, mask=valid & (place > 0), other=0)
    begin = tl.load(begin_ptr + place, mask=valid, other=0).to(tl.int64)
    _copy(source_ptr, target_ptr, begin + row - before, row, valid, columns, COLUMNS)


@triton.jit
def _combine_kernel(
    source_ptr, target_ptr, begin_ptr, end_ptr, ranges, rows, columns,
    STEPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    valid = row < rows
    place = _range_of(end_ptr, row, ranges, STEPS)
    before = tl.load(end_ptr + place - 1, mask=valid & (place > 0), other=0)
    begin = tl.load(begin_ptr + place, mask=valid, other=0).to(tl.int64)
    _copy(source_ptr, target_ptr, row, begin + row - before, valid, columns, COLUMNS)


@triton.jit
def _transpose_kernel(
    source_ptr, target_ptr, begin_ptr, end_ptr, outer, inner, rows, columns,
    STEPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    valid = row < rows
    place = _range_of(end_ptr, row, outer * inner, STEPS)
    before = tl.load(end_ptr + place - 1, mask=valid & (place > 0), other=0)
    block = place % outer * inner + place // outer
    begin = tl.load(begin_ptr + block, mask=valid, other=0)
    _copy(source_ptr, target_ptr, begin + row - before, row, valid, columns, COLUMNS)


def permute(
    values_TD: torch.Tensor, lengths_N: torch.Tensor, index_M: torch.Tensor, *, total: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `repro.kernels.jagged.permute`; `total` is required."""
    require_ranges("permute", values_TD, lengths_N)
    require_ranges("permute", values_TD, index_M)
    chosen_M = lengths_N[index_M]
    target = _empty(values_TD, total)
    _launch(_permute_kernel, values_TD, target, total, (begins(lengths_N), index_M.contiguous()), chosen_M)
    return target, chosen_M


def ranged_dispatch(
    values_TD: torch.Tensor, begin_N: torch.Tensor, lengths_N: torch.Tensor, *, total: int
) -> torch.Tensor:
    """As `repro.kernels.jagged.ranged_dispatch`; `total` is required."""
    require_ranges("ranged_dispatch", values_TD, begin_N, lengths_N)
    target = _empty(values_TD, total)
    _launch(_dispatch_kernel, values_TD, target, total, (begin_N.contiguous(),), lengths_N)
    return target


def ranged_combine(
    values_TD: torch.Tensor, begin_N: torch.Tensor, lengths_N: torch.Tensor, *, rows: int | None = None
) -> torch.Tensor:
    """As `repro.kernels.jagged.ranged_combine`."""
    require_ranges("ranged_combine", values_TD, begin_N, lengths_N)
    total = values_TD.shape[0]
    target = values_TD.new_zeros((total if rows is None else rows, *values_TD.shape[1:]))
    _launch(_combine_kernel, values_TD, target, total, (begin_N.contiguous(),), lengths_N)
    return target


def keyed_transpose(values_TD: torch.Tensor, lengths_AB: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As `repro.kernels.jagged.keyed_transpose`."""
    if lengths_AB.ndim != 2:
        raise InputError(f"keyed_transpose: lengths must be two-dimensional, got shape {tuple(lengths_AB.shape)}")
    require_ranges("keyed_transpose", values_TD, lengths_AB.reshape(-1))
    lengths_BA = lengths_AB.T.contiguous()
    target = torch.empty_like(values_TD)
    begin = begins(lengths_AB.reshape(-1))
    _launch(_transpose_kernel, values_TD, target, values_TD.shape[0], (begin,), lengths_BA.view(-1), lengths_AB.shape)
    return target, lengths_BA


def _empty(values_TD: torch.Tensor, total: int) -> torch.Tensor:
    return values_TD.new_empty((total, *values_TD.shape[1:]))


def _launch(
    kernel: triton.JITFunction,
    source: torch.Tensor,
    target: torch.Tensor,
    rows: int,
    pointers: tuple[torch.Tensor, ...],
    lengths_N: torch.Tensor,
    counts: tuple[int, ...] | None = None,
) -> None:
    columns = 1 if source.ndim == 1 else source.shape[1]
    if rows == 0 or columns == 0:
        return
    end_N = lengths_N.cumsum(0, dtype=torch.int64)
    tile_rows, tile_columns = (_ROWS_OF_ONE_COLUMN, 1) if columns == 1 else (_ROWS, _COLUMNS)
    grid = (triton.cdiv(rows, tile_rows), triton.cdiv(columns, tile_columns))
    sizes = (lengths_N.numel(),) if counts is None else counts
    steps = max(lengths_N.numel(), 1).bit_length()
    kernel[grid](
        source.contiguous(), target, *pointers, end_N, *sizes, rows, columns,
        STEPS=steps, ROWS=tile_rows, COLUMNS=tile_columns,
    )  # fmt: skip
