"""Without these, a damaged or different MovieLens file would be trained on in silence.

Needs the installed RecBole distribution. The other editions: test_prep_sources.py.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import numpy as np
import pytest

from data_prep import movielens_100k as movielens
from data_prep import sources
from repro.data.dataset import PreparedDataset
from repro.errors import InputError

HEADER = "\t".join(movielens.COLUMNS)
GOOD = "196\t242\t3\t881250949"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    root = tmp_path_factory.mktemp("movielens")
    return PreparedDataset.open(
        sources.prepare("movielens-100k", root / "data", key_path=root / "key", log=lambda _: None)
    )


def test_golden_counts(dataset: PreparedDataset) -> None:
    manifest = dataset.manifest
    assert (manifest.events, manifest.users) == (100_000, 943)
    assert [(f.name, f.vocabulary, f.of_candidate) for f in manifest.features] == [
        ("item", 1_682, True),
        ("action", 5, False),
    ]
    assert (manifest.requests, manifest.labels) == (11_573, 94_157)
    assert manifest.positives / manifest.labels == pytest.approx(0.5513, abs=1e-4)
    assert "GroupLens" in manifest.licence
    assert list(manifest.inputs) == ["ml-100k.inter"]
    assert sum(manifest.length_histogram.values()) == manifest.requests


def test_action_is_the_rating(dataset: PreparedDataset) -> None:
    assert np.bincount(dataset.event_feature("action")).tolist() == [6_110, 11_370, 27_145, 34_174, 21_201]


def test_a_good_file(tmp_path: Path) -> None:
    (log,) = movielens.read_inter(_file(tmp_path, GOOD, "7\t1\t4\t0"))
    assert log.time.tolist() == [881_250_949_000, 0]
    assert log.label.tolist() == [0, 1]
    assert log.actions["action"].tolist() == [2, 3]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("196\t242\t3", r"line 3: 3 fields instead of 4"),
        ("x\t242\t3\t1", r"line 3: user_id:token must be an integer in 1..2147483647, got something else"),
        ("1\t-4\t3\t1", r"line 3: item_id:token must be an integer in 1..2147483647, got '-4'"),
        ("1\t2\t6\t1", r"line 3: rating:float must be 1, 2, 3, 4 or 5, got '6'"),
        ("1\t2\tnan\t1", r"line 3: rating:float .* got 'nan'"),
        ("1\t2\t3\t881250949000", r"line 3: timestamp:float must be seconds since 1970"),
        ("1\t2\t3\tinf", r"line 3: timestamp:float"),
        ("1\t2\t3\t", r"line 3: timestamp:float .* got nothing"),
        ("1\t2\t3\t\ufffd", r"line 3: timestamp:float"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        list(movielens.read_inter(_file(tmp_path, GOOD, line)))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    path = _file(tmp_path, GOOD)
    path.write_bytes(path.read_bytes() + b"1\t2\t3\t\xff\xfe\n")
    with pytest.raises(InputError, match="line 3: timestamp:float"):
        list(movielens.read_inter(path))
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        list(movielens.read_inter(path))


@pytest.mark.parametrize("text", ["user\titem\n", GOOD + "\n", HEADER.replace("\t", ",") + "\n"])
def test_a_wrong_header(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ml-100k.inter"
    path.write_text(text)
    with pytest.raises(InputError, match=r"line 1: no column .*user_id:token"):
        list(movielens.read_inter(path))


def test_no_rows_and_too_few_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for lines, message in ([], "no events"), ([GOOD], "events is 1, published is 100,000; run `pip"):
        monkeypatch.setattr(movielens, "installed_file", functools.partial(_file, tmp_path, *lines))
        with pytest.raises(InputError, match=message):
            sources.prepare(
                "movielens-100k", tmp_path / "data", key_path=tmp_path / "key", force=True, log=lambda _: None
            )
        assert not list((tmp_path / "data").iterdir())
    with pytest.raises(InputError, match="is empty"):
        (tmp_path / "ml-100k.inter").write_text("")
        list(movielens.read_inter(tmp_path / "ml-100k.inter"))


def test_without_recbole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InputError, match="not installed; run `pip install --no-deps"):
        movielens.source()


def _file(folder: Path, *lines: str) -> Path:
    path = folder / "ml-100k.inter"
    path.write_text("".join(f"{line}\n" for line in (HEADER, *lines)), encoding="utf-8")
    return path
