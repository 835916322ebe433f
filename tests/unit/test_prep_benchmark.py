"""Without this the benchmark could compare two different preparations, and ours could differ from what pandas says.

Not covered: the speed and the memory themselves (`python -m benchmarks.prepare`).
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.prepare import NAME, generate, in_pandas, ours, same_rows


def test_pandas_prepares_the_same(tmp_path: Path) -> None:
    generate(tmp_path / "ratings.csv", 30_000, users=300)
    ours(tmp_path / "ratings.csv", tmp_path / "ours")
    (tmp_path / "pandas").mkdir()
    in_pandas(tmp_path / "ratings.csv", tmp_path / "pandas", bytes.fromhex((tmp_path / "key").read_text()))
    assert same_rows(tmp_path / "ours" / NAME, tmp_path / "pandas")
