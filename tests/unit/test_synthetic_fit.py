"""Without these, `--match` could return knobs that have nothing to do with the data set, or report a distance that is
no distance.

Not covered: how well knobs of this kind can fit any real log at all; the command says that each time.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from prep_logs import prepare_log, some_log

from data_prep import sources
from data_prep.prepare import prepare_source
from data_prep.synthetic import source
from data_prep.synthetic_presets import TINY
from repro.cli import main
from repro.data.dataset import PreparedDataset
from repro.data.distance import Difference, differences, kolmogorov_smirnov, wasserstein
from repro.errors import InputError
from repro.synthesize import knobs_of, prepare_synthetic

UNKNOWN = dataclasses.replace(
    TINY, name="unknown", users=1_500, length_mu=5.0, length_sigma=1.1, length_cap=3_000, activity=0.8,
    requests_a_user=9, max_candidates=8, items=20_000, popularity_exponent=1.2, base_log_odds=-2.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("unknown")
    return prepare_source(source(UNKNOWN), root / "data", key_path=root / "key", log=lambda _: None)


def test_finds_the_knobs_that_made_a_log(folder: Path) -> None:
    """From a start that has none of them right, and from the prepared set alone."""
    found = knobs_of("found", like="industrial-21k", match=folder, assignments=[])
    assert found.users == pytest.approx(UNKNOWN.users, rel=0.01)
    assert found.length_mu == pytest.approx(UNKNOWN.length_mu, abs=0.15)
    assert found.length_sigma == pytest.approx(UNKNOWN.length_sigma, abs=0.15)
    assert found.max_candidates == 8
    assert found.requests_a_user == pytest.approx(UNKNOWN.requests_a_user, rel=0.1)
    assert found.activity == pytest.approx(UNKNOWN.activity, abs=0.1)
    # Items that never occurred leave no trace, so fewer items and a steeper law look the same.
    assert found.popularity_exponent == pytest.approx(UNKNOWN.popularity_exponent, abs=0.25)


def test_what_is_made_is_close_and_the_report_says_so(folder: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    knobs = knobs_of("close", like="tiny", match=folder, assignments=[])
    made = prepare_synthetic(knobs, tmp_path, key_path=tmp_path.with_name("key"), match=folder, log=lines.append)
    by_name = _by_name(folder, made)
    assert by_name["UIH length, median"].distance < 0.1
    assert by_name["UIH length, p99"].distance < 0.06
    assert by_name["candidates, mean"].distance < 0.06
    assert by_name["item Gini"].distance < 0.05
    assert by_name["positive labels, %"].distance < 3
    assert "collision (not fitted), %" in by_name
    assert any("Wasserstein-1" in line for line in lines)


def test_another_log_is_far(folder: Path, tmp_path: Path) -> None:
    other = sources.prepare("tiny", tmp_path / "data", key_path=tmp_path / "key", log=lambda _: None)
    assert _by_name(folder, other)["UIH length, median"].distance > 0.3
    assert all(line.distance == 0 for line in _by_name(folder, folder).values())


@pytest.mark.parametrize("users", [1, 3])
def test_a_small_log_can_be_matched(tmp_path: Path, users: int) -> None:
    folder = prepare_log(some_log(events=60, users=users), tmp_path / "data")
    knobs = knobs_of("small-like", like="tiny", match=folder, assignments=["seed=5"])
    assert knobs.seed == 5
    made = prepare_synthetic(knobs, tmp_path / "data", key_path=tmp_path / "key", match=folder, log=lambda _: None)
    assert len(PreparedDataset.open(made)) >= users


def test_distances_by_hand() -> None:
    assert wasserstein(np.array([0.0, 1.0]), np.array([5.0, 6.0])) == pytest.approx(5)
    assert wasserstein(np.array([1.0, 3.0]), np.array([2.0])) == pytest.approx(1)
    assert kolmogorov_smirnov(np.array([1, 2, 3, 4]), np.array([3, 4, 5, 6])) == pytest.approx(0.5)
    assert kolmogorov_smirnov(np.array([1, 2]), np.array([1, 2])) == 0
    assert kolmogorov_smirnov(np.array([1]), np.array([2])) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["synthetic", "--match", "nothing"], "run `repro prepare nothing`"),
        (["synthetic", "--like", "huge"], "industrial-21k"),
        (["synthetic", "--set", "mood=1"], "knobs are"),
        (["synthetic", "--set", "users=0"], "synthetic.users"),
        (["synthetic", "--name", "movielens-1m"], "another data set"),
        (["tiny", "--set", "users=5"], "repro prepare synthetic"),
    ],
)
def test_mistakes_end_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert main(["prepare", *arguments, "--data", str(tmp_path)]) == 2
    assert says in capsys.readouterr().err


def test_public_names_are_kept() -> None:
    with pytest.raises(InputError, match="another data set"):
        knobs_of("tiny", like="tiny", match=None, assignments=[])


def _by_name(wanted: Path, made: Path) -> dict[str, Difference]:
    return {line.quantity: line for line in differences(PreparedDataset.open(wanted), PreparedDataset.open(made))}
