"""Moving jagged samples: torch reference, vectorised, on any device.

Values of all samples stand one after another; sample n owns rows `sum(lengths[:n]) .. sum(lengths[:n+1])`. Offsets are
int64 whatever the type of lengths, so that totals past 2^31 rows do not wrap. None of these waits for the device where
`total` is given.

| operation | does | in the exchange |
| --- | --- | --- |
| `permute` | sample i of the result is sample `index[i]` | a rank's samples in another order |
| `ranged_dispatch` | gathers ranges of rows, one after another | samples -> send buffer, by destination |
| `ranged_combine` | scatters consecutive rows to ranges, dispatch undone | receive buffer -> samples, in batch order |
| `keyed_transpose` | blocks in (A, B) order -> (B, A) order | by source then feature -> by feature then source |

Example: values [a, b, c, d, e], lengths [2, 1, 2]; `permute` by [2, 0] gives [d, e, a, b] and lengths [2, 2].
"""

from __future__ import annotations

import torch

from repro.errors import InputError

# N samples or ranges, T rows of them, M samples of the result, D columns of a row, A x B blocks


def permute(
    values_TD: torch.Tensor, lengths_N: torch.Tensor, index_M: torch.Tensor, *, total: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples `index_M`, in that order; a sample may appear several times or not at all.

    Args:
        values_TD: rows of all samples, any dtype, (T,) or (T, D).
        lengths_N: rows of each sample, int32 or int64, (N,).
        index_M: samples, int32 or int64, (M,), in 0..N-1.
        total: rows of the result, where known; spares a wait for the device.

    Returns:
        Rows (T', D) and lengths (M,) of the result, of the same types.

    Raises:
        InputError: ill-shaped or non-integer arguments.
    """
    require_ranges("permute", values_TD, lengths_N)
    require_ranges("permute", values_TD, index_M)
    chosen_M = lengths_N[index_M]
    return ranged_dispatch(values_TD, begins(lengths_N)[index_M], chosen_M, total=total), chosen_M


def ranged_dispatch(
    values_TD: torch.Tensor, begin_N: torch.Tensor, lengths_N: torch.Tensor, *, total: int | None = None
) -> torch.Tensor:
    """Rows `begin_N[n] .. begin_N[n] + lengths_N[n]` for n = 0, 1, ..., one after another.

    Args:
        values_TD: any dtype, (T,) or (T, D).
        begin_N: first row of each range, int32 or int64, (N,). Ranges may overlap.
        lengths_N: rows of each range, int32 or int64, (N,).
        total: sum of lengths, where known; spares a wait for the device.

    Returns:
        (sum of lengths,) or (sum of lengths, D), dtype of `values_TD`.

    Raises:
        InputError: ill-shaped or non-integer arguments.
    """
    require_ranges("ranged_dispatch", values_TD, begin_N, lengths_N)
    return values_TD.index_select(0, _rows(begin_N, lengths_N, total))


def ranged_combine(
    values_TD: torch.Tensor, begin_N: torch.Tensor, lengths_N: torch.Tensor, *, rows: int | None = None
) -> torch.Tensor:
    """Inverse of `ranged_dispatch`: the first `lengths_N[0]` rows go to `begin_N[0]` and on, the next to `begin_N[1]`.

    Args:
        values_TD: any dtype, (T,) or (T, D), with T the sum of lengths.
        begin_N: first row of each range in the result, int32 or int64, (N,). Ranges must not overlap.
        lengths_N: rows of each range, int32 or int64, (N,).
        rows: rows of the result, T by default; rows that no range covers are 0.

    Returns:
        (rows,) or (rows, D), dtype of `values_TD`.

    Raises:
        InputError: ill-shaped or non-integer arguments.
    """
    require_ranges("ranged_combine", values_TD, begin_N, lengths_N)
    total = values_TD.shape[0]
    combined = values_TD.new_zeros((total if rows is None else rows, *values_TD.shape[1:]))
    combined.index_copy_(0, _rows(begin_N, lengths_N, total), values_TD)
    return combined


def keyed_transpose(
    values_TD: torch.Tensor, lengths_AB: torch.Tensor, *, total: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks that stand in (A, B) order, in (B, A) order: block (a, b) has `lengths_AB[a, b]` rows.

    Args:
        values_TD: any dtype, (T,) or (T, D), with T the sum of lengths.
        lengths_AB: int32 or int64, (A, B).
        total: T, where known to be so.

    Returns:
        Rows (T, D), and lengths (B, A).

    Raises:
        InputError: ill-shaped or non-integer arguments.
    """
    if lengths_AB.ndim != 2:
        raise InputError(f"keyed_transpose: lengths must be two-dimensional, got shape {tuple(lengths_AB.shape)}")
    require_ranges("keyed_transpose", values_TD, lengths_AB.reshape(-1))
    begin_BA = begins(lengths_AB.reshape(-1)).view(lengths_AB.shape).T
    lengths_BA = lengths_AB.T.contiguous()
    rows = values_TD.shape[0] if total is None else total
    return ranged_dispatch(values_TD, begin_BA.reshape(-1), lengths_BA.view(-1), total=rows), lengths_BA


def begins(lengths_N: torch.Tensor) -> torch.Tensor:
    """First row of each sample, int64 (N,)."""
    return lengths_N.cumsum(0, dtype=torch.int64) - lengths_N


def require_ranges(operation: str, values_TD: torch.Tensor, *integers_N: torch.Tensor) -> None:
    """Check what all operations ask of their arguments.

    Raises:
        InputError: values that are neither (T,) nor (T, D), or ranges that are not integer vectors of one length.
    """
    if values_TD.ndim not in (1, 2):
        raise InputError(f"{operation}: values must be (T,) or (T, D), got shape {tuple(values_TD.shape)}")
    for vector in integers_N:
        if vector.dtype not in (torch.int32, torch.int64) or vector.shape != (integers_N[0].numel(),):
            raise InputError(
                f"{operation}: expected int32 or int64 of shape ({integers_N[0].numel()},), got {vector.dtype} "
                f"of shape {tuple(vector.shape)}"
            )


def _rows(begin_N: torch.Tensor, lengths_N: torch.Tensor, total: int | None) -> torch.Tensor:
    """Source row of each row of the result, int64 (T',)."""
    shift_N = begin_N - begins(lengths_N)
    shift_T = torch.repeat_interleave(shift_N, lengths_N, output_size=total)
    return shift_T + torch.arange(shift_T.numel(), device=shift_T.device)
