"""Without this, the Triton kernels could differ from the torch reference on empty samples, giants, or types.

Runs them on a GPU where there is one, else under Triton's interpreter, which runs a kernel's text in NumPy; another
test compiles each for H100, which needs no GPU. Skipped where Triton is not installed (it comes with CUDA builds of
torch; else `pip install triton`). Not covered: speed (benchmarks/kernels.py).
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.kernels import jagged
from tests.unit import kernel_cases as cases

if not torch.cuda.is_available():
    # Read when the kernels are defined, so before their module is imported.
    os.environ["TRITON_INTERPRET"] = "1"
triton_jagged = pytest.importorskip(
    "repro.kernels.triton_jagged", reason="Triton is not installed", exc_type=ImportError
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
dtypes = st.sampled_from(cases.VALUE_TYPES)
index_dtypes = st.sampled_from(cases.INDEX_TYPES)
few = settings(max_examples=40, deadline=None)


def integers(values: list[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=DEVICE)


@few
@given(cases.lengths, cases.columns, dtypes, index_dtypes, st.data())
def test_permute(
    lengths: list[int], columns: int, dtype: torch.dtype, index_dtype: torch.dtype, data: st.DataObject
) -> None:
    values = cases.rows(sum(lengths), columns, dtype).to(DEVICE)
    index = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=30))
    arguments = values, integers(lengths, index_dtype), integers(index, index_dtype)
    total = sum(lengths[sample] for sample in index)
    result, chosen = triton_jagged.permute(*arguments, total=total)
    wanted, wanted_lengths = jagged.permute(*arguments)
    assert torch.equal(result, wanted) and torch.equal(chosen, wanted_lengths)


@few
@given(cases.lengths, cases.columns, dtypes, index_dtypes, st.randoms(use_true_random=False))
def test_dispatch_and_combine(
    lengths: list[int], columns: int, dtype: torch.dtype, index_dtype: torch.dtype, random: object
) -> None:
    values = cases.rows(sum(lengths), columns, dtype).to(DEVICE)
    order = list(range(len(lengths)))
    random.shuffle(order)  # type: ignore[attr-defined]
    begin = integers([cases.begins(lengths)[sample] for sample in order], index_dtype)
    moved = integers([lengths[sample] for sample in order], index_dtype)
    sent = triton_jagged.ranged_dispatch(values, begin, moved, total=sum(lengths))
    assert torch.equal(sent, jagged.ranged_dispatch(values, begin, moved))
    assert torch.equal(triton_jagged.ranged_combine(sent, begin, moved), values)
    rows = sum(lengths) + 3
    assert torch.equal(
        triton_jagged.ranged_combine(sent, begin, moved, rows=rows),
        jagged.ranged_combine(sent, begin, moved, rows=rows),
    )


@few
@given(st.integers(1, 6), st.integers(1, 6), cases.columns, dtypes, index_dtypes, st.data())
def test_keyed_transpose(
    outer: int, inner: int, columns: int, dtype: torch.dtype, index_dtype: torch.dtype, data: st.DataObject
) -> None:
    lengths = data.draw(st.lists(st.integers(0, 5), min_size=outer * inner, max_size=outer * inner))
    values = cases.rows(sum(lengths), columns, dtype).to(DEVICE)
    lengths_AB = integers(lengths, index_dtype).view(outer, inner)
    result, lengths_BA = triton_jagged.keyed_transpose(values, lengths_AB)
    wanted, wanted_lengths = jagged.keyed_transpose(values, lengths_AB)
    assert torch.equal(result, wanted) and torch.equal(lengths_BA, wanted_lengths)


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from repro.kernels import triton_jagged as kernels
ranges = {"ranges": "i32"}
for kernel, counts in (
    (kernels._permute_kernel, {"index_ptr": "*i32", **ranges}),
    (kernels._dispatch_kernel, ranges),
    (kernels._combine_kernel, ranges),
    (kernels._transpose_kernel, {"outer": "i32", "inner": "i32"}),
):
    for value in ("bf16", "fp32", "i32", "i64"):
        types = {"source_ptr": "*" + value, "target_ptr": "*" + value, "begin_ptr": "*i64", "end_ptr": "*i64"}
        types |= counts | {"rows": "i64", "columns": "i32"}
        tile = {"STEPS": 8, "ROWS": 64, "COLUMNS": 128}
        signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
        compiled = triton.compile(ASTSource(kernel, signature, constexprs=tile), target=GPUTarget("cuda", 90, 32))
        assert "cubin" in compiled.asm
print("compiled")
"""


def test_kernels_compile_for_h100() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "compiled", done.stderr
