"""Without these, `repro describe` could draw a figure that no numbers stand behind, send more than aggregates to W&B,
or keep a notebook page that shows an older description.

Not covered: the numbers themselves (test_data_statistics.py).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_prep import sources
from repro.cli import main
from repro.data.dataset import PreparedDataset
from repro.data.statistics import DatasetStatistics
from repro.report.describe import _flat, descriptions_fingerprint, is_described, read_descriptions
from repro.report.figures import dataset as figures
from repro.tracking.wandb_readback import count_history_rows


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("describe")
    return sources.prepare("tiny", root / "data", key_path=root / "key", log=lambda _: None).parent


@pytest.fixture(scope="module")
def results(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    arguments = ["describe", "tiny", "--data", str(data), "--results", str(folder), "--wandb", "offline"]
    assert main([*arguments, "--gpus", "4", "--batch", "8", "--max-uih", "50"]) == 0
    return folder


@pytest.fixture(scope="module")
def found(results: Path) -> DatasetStatistics:
    (one,) = read_descriptions(results)
    return one


def test_prints_draws_and_keeps_the_numbers(results: Path, found: DatasetStatistics) -> None:
    for kind in (".svg", ".png", ".json"):
        assert (results / "figures" / f"describe_tiny{kind}").stat().st_size > 1000
    assert found.name == "tiny"
    assert found.collision is not None and found.collision.global_batch == 32


def test_described_again_only_when_something_changed(data: Path, results: Path, tmp_path: Path) -> None:
    assert is_described(data / "tiny", results)
    assert not is_described(data / "tiny", tmp_path)
    (tmp_path / "figures").mkdir()
    path = results / "figures" / "describe_tiny.json"
    for kind in (".png", ".svg"):
        (tmp_path / "figures" / f"describe_tiny{kind}").touch()
    (tmp_path / "figures" / path.name).write_text(json.dumps(json.loads(path.read_text()) | {"fingerprint": "older"}))
    assert not is_described(data / "tiny", tmp_path)


def test_no_user_leaves(data: Path, results: Path, found: DatasetStatistics) -> None:
    text = (results / "figures" / "describe_tiny.json").read_text()
    users = PreparedDataset.open(data / "tiny").request_user
    assert not any(str(user) in text for user in set(users.tolist()))
    assert all(isinstance(value, float) for value in _flat(found).values())


def test_one_offline_run(results: Path) -> None:
    (run,) = results.rglob("run-*.wandb")
    assert count_history_rows(run) == 1


def test_pages_go_stale_with_their_numbers(results: Path, tmp_path: Path) -> None:
    assert read_descriptions(tmp_path) == []
    before = descriptions_fingerprint(tmp_path)
    (tmp_path / "figures").mkdir()
    raw = json.loads((results / "figures" / "describe_tiny.json").read_text())
    (tmp_path / "figures" / "describe_tiny.json").write_text(json.dumps(raw))
    assert descriptions_fingerprint(tmp_path) != before


@pytest.mark.parametrize("draw", ["length_curves", "popularity_curves", "candidate_bars", "collision_points"])
def test_figures_compare_data_sets_and_say_when_there_is_none(found: DatasetStatistics, draw: str) -> None:
    function = getattr(figures, draw)
    assert "tiny" in str([text.get_text() for text in function([found, found]).legends[0].get_texts()])
    assert function([]).axes[0].texts[0].get_text() == figures.NONE_YET


def test_panels_of_one_data_set(found: DatasetStatistics) -> None:
    titles = [axes.get_title(loc="left") for axes in figures.dataset_figure(found).axes]
    assert [title.split(":")[0] for title in titles] == ["Length", "Popularity", "Candidates", "Collision"]
    assert titles[3].endswith("global batch 4 x 8, UIH 50")


def test_mistakes(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = ["--data", str(data), "--results", str(tmp_path), "--wandb", "disabled"]
    assert main(["describe", "nothing", *folders]) == 2
    assert "repro prepare nothing" in capsys.readouterr().err
    assert main(["describe", "tiny", *folders, "--batch", "0"]) == 2
    (tmp_path / "figures").write_text("")
    assert main(["describe", "tiny", *folders]) == 2
