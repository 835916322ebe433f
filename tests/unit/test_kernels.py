"""Without this, a sample could reach a rank with another sample's events or in another order, and training would go on.

Compares the torch reference with loops over samples in plain Python. Not covered here: the Triton kernels
(test_kernels_triton), speed (benchmarks/kernels.py).
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from repro.errors import InputError
from repro.kernels import jagged
from repro.kernels.keyed import permute_samples
from tests.unit import kernel_cases as cases

dtypes = st.sampled_from(cases.VALUE_TYPES)
index_dtypes = st.sampled_from(cases.INDEX_TYPES)


@settings(deadline=None)
@given(cases.lengths, cases.columns, dtypes, index_dtypes, st.data())
def test_permute(
    lengths: list[int], columns: int, dtype: torch.dtype, index_dtype: torch.dtype, data: st.DataObject
) -> None:
    values = cases.rows(sum(lengths), columns, dtype)
    index = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=30))
    result, chosen = jagged.permute(
        values, torch.tensor(lengths, dtype=index_dtype), torch.tensor(index, dtype=index_dtype)
    )
    parts = cases.samples(values, lengths)
    assert torch.equal(result, cases.joined([parts[sample] for sample in index], values)) and result.dtype == dtype
    assert chosen.tolist() == [lengths[sample] for sample in index] and chosen.dtype == index_dtype


@settings(deadline=None)
@given(cases.lengths, cases.columns, dtypes, index_dtypes, st.randoms(use_true_random=False))
def test_combine_undoes_dispatch(
    lengths: list[int], columns: int, dtype: torch.dtype, index_dtype: torch.dtype, random: object
) -> None:
    values = cases.rows(sum(lengths), columns, dtype)
    order = list(range(len(lengths)))
    random.shuffle(order)  # type: ignore[attr-defined]
    begin = torch.tensor([cases.begins(lengths)[sample] for sample in order], dtype=index_dtype)
    moved = torch.tensor([lengths[sample] for sample in order], dtype=index_dtype)
    sent = jagged.ranged_dispatch(values, begin, moved, total=sum(lengths))
    parts = cases.samples(values, lengths)
    assert torch.equal(sent, cases.joined([parts[sample] for sample in order], values))
    assert torch.equal(jagged.ranged_combine(sent, begin, moved), values)


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), cases.columns, dtypes, index_dtypes, st.data())
def test_keyed_transpose(
    outer: int, inner: int, columns: int, dtype: torch.dtype, index_dtype: torch.dtype, data: st.DataObject
) -> None:
    lengths = data.draw(st.lists(st.integers(0, 5), min_size=outer * inner, max_size=outer * inner))
    values = cases.rows(sum(lengths), columns, dtype)
    lengths_AB = torch.tensor(lengths, dtype=index_dtype).view(outer, inner)
    result, lengths_BA = jagged.keyed_transpose(values, lengths_AB)
    parts = cases.samples(values, lengths)
    wanted = [parts[a * inner + b] for b in range(inner) for a in range(outer)]
    assert torch.equal(result, cases.joined(wanted, values))
    assert torch.equal(lengths_BA, lengths_AB.T)
    assert torch.equal(jagged.keyed_transpose(result, lengths_BA)[0], values)


def test_combine_leaves_uncovered_rows_zero() -> None:
    combined = jagged.ranged_combine(torch.tensor([7, 8, 9]), torch.tensor([4, 1]), torch.tensor([2, 1]), rows=7)
    assert combined.tolist() == [0, 9, 0, 0, 7, 8, 0]


def test_offsets_of_int32_lengths_pass_two_to_the_31() -> None:
    begin = jagged.begins(torch.tensor([2**31 - 1, 2**31 - 1, 5], dtype=torch.int32))
    assert begin.tolist() == [0, 2**31 - 1, 2**32 - 2]


@pytest.mark.parametrize(
    ("values", "begin", "lengths"),
    [
        (torch.zeros(2, 2, 2), torch.tensor([0]), torch.tensor([1])),
        (torch.zeros(2), torch.tensor([0.0]), torch.tensor([1])),
        (torch.zeros(2), torch.tensor([0, 1]), torch.tensor([1])),
        (torch.zeros(2), torch.tensor([[0]]), torch.tensor([[1]])),
    ],
)
def test_bad_arguments(values: torch.Tensor, begin: torch.Tensor, lengths: torch.Tensor) -> None:
    for operation in (jagged.ranged_dispatch, jagged.ranged_combine):
        with pytest.raises(InputError, match="ranged_"):
            operation(values, begin, lengths)


@settings(deadline=None)
@given(st.integers(1, 3), st.integers(1, 8), st.booleans(), st.data())
def test_samples_of_a_keyed_jagged_tensor(features: int, samples: int, weighted: bool, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(0, 4), min_size=features * samples, max_size=features * samples))
    index = data.draw(st.lists(st.integers(0, samples - 1), min_size=1, max_size=10))
    values = torch.arange(sum(lengths))
    keys = [f"f{feature}" for feature in range(features)]
    batch = KeyedJaggedTensor(
        keys=keys, values=values, lengths=torch.tensor(lengths), weights=values.float() if weighted else None
    )
    result = permute_samples(batch, torch.tensor(index))
    assert result.keys() == keys and result.stride() == len(index)
    for key in keys:
        before, after = batch[key].to_dense(), result[key].to_dense()
        assert [sample.tolist() for sample in after] == [before[sample].tolist() for sample in index]
    assert (result.weights_or_none() is not None) == weighted
    if weighted:
        assert torch.equal(result.weights(), result.values().float())


def test_a_batch_with_a_stride_per_key_is_refused() -> None:
    batch = KeyedJaggedTensor(
        keys=["f", "g"],
        values=torch.arange(3),
        lengths=torch.tensor([1, 1, 1]),
        stride_per_key_per_rank=[[1], [2]],
    )
    with pytest.raises(InputError, match="batch size"):
        permute_samples(batch, torch.tensor([0]))
