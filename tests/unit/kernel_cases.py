"""Jagged inputs that kernels are tested on, and what they should give, in plain Python."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

VALUE_TYPES = (torch.int32, torch.int64, torch.float32, torch.bfloat16)
INDEX_TYPES = (torch.int32, torch.int64)

lengths = st.one_of(
    st.lists(st.integers(0, 9), min_size=1, max_size=24),
    st.lists(st.just(0), min_size=1, max_size=9),
    st.integers(0, 12).map(lambda place: [*[0] * place, 700, *[1] * (12 - place)]),
    st.just([5]),
)
"""Rows a sample: few, none at all (no candidates), one giant among short and empty ones, a single sample."""
columns = st.sampled_from([0, 1, 3, 130])
"""0: values are a vector."""


def rows(total: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Distinct rows (as far as the type can tell), (total,) or (total, columns)."""
    shape = (total, columns) if columns else (total,)
    return torch.arange(total * max(columns, 1)).reshape(shape).to(dtype)


def samples(values: torch.Tensor, lengths: list[int]) -> list[torch.Tensor]:
    """One tensor a sample."""
    return list(torch.split(values, lengths))


def joined(parts: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """Samples one after another."""
    return torch.cat([like[:0], *parts])


def begins(lengths: list[int]) -> list[int]:
    """First row of each sample."""
    return (np.cumsum([0, *lengths])[:-1]).tolist()
