"""Without this, a mistyped recipe would run something else than was meant, or fail late with a page of Python.

Not covered: whether a valid recipe is sensible.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import experiments
from repro.config import Arm, ModelConfig, PaceConfig, RunConfig, from_dict, override
from repro.errors import InputError
from repro.launch.provenance import run_fingerprint

CONFIG = experiments.EXPERIMENTS[0].runs[0]


def test_every_recipe_survives_json() -> None:
    for experiment in experiments.EXPERIMENTS:
        for run in experiment.runs:
            assert from_dict(run.to_dict()) == run
            assert run.experiment == experiment.name


def test_no_two_runs_of_a_recipe_are_the_same() -> None:
    for experiment in experiments.EXPERIMENTS:
        assert len({run.fingerprint() for run in experiment.runs}) == len(experiment.runs)


def test_the_fingerprint_follows_every_field() -> None:
    assert replace(CONFIG, seed=1).fingerprint() != CONFIG.fingerprint()
    assert override(CONFIG, ["model.layers=7"]).fingerprint() != CONFIG.fingerprint()
    assert override(CONFIG, [f"batch={CONFIG.batch}"]).fingerprint() == CONFIG.fingerprint()


def test_how_often_a_run_is_saved_is_no_part_of_its_identity() -> None:
    often = override(CONFIG, ["checkpoint.every=10", "checkpoint.keep=5"])
    assert (often.checkpoint.every, often.checkpoint.keep) == (10, 5)
    assert often.fingerprint() == CONFIG.fingerprint()
    assert run_fingerprint(often, "data", [often]) == run_fingerprint(CONFIG, "data", [CONFIG])
    assert from_dict(often.to_dict()) == often != CONFIG


def test_override_reaches_nested_fields_and_keeps_types() -> None:
    changed = override(CONFIG, ["model.layers=7", "optimizer.sparse_lr=0.5", "dataset=synthetic"])
    assert (changed.model.layers, changed.optimizer.sparse_lr, changed.dataset) == (7, 0.5, "synthetic")


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("batch", "path=value"),
        ("batch=many", "not of type int"),
        ("batch=0", "batch: must be >= 1"),
        ("model.depth=3", "no such field"),
        ("modle.layers=3", "no such field"),
        ("model=3", "is a group"),
        ("arm.partition=random", "'random' is not one of 'identity', 'fbs'"),
        ("model.heads=5", "must divide model.dim"),
        ("warmup_steps=1000", "warmup_steps: must be in"),
        ("optimizer.sparse_lr=-1", "must be > 0"),
        ("optimizer.sparse=adam", "optimizer.sparse"),
        ("network.rate_mbit=-1", "network.rate_mbit: must be >= 0"),
        ("network.delay_ms=1", "network.delay_ms: 1.0 needs a shaped network"),
        ("mode=emulated", "pace: is missing"),
        ("checkpoint.every=-1", "checkpoint.every: must be >= 0"),
        ("checkpoint.keep=0", "checkpoint.keep: must be >= 1"),
        ("pace.time_scale=2", "no such field 'pace'"),
    ],
)
def test_a_bad_override_names_the_field(assignment: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as raised:
        override(CONFIG, [assignment])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"batch": "32"}, "batch: must be of type int"),
        ({"batch": True}, "batch: must be of type int"),
        ({"extra": 1}, "unknown field extra"),
        ({"model": 3}, "model: must be a table"),
        ({"model": {"name": "x"}}, "model.layers: is missing"),
        ({"mode": "guessed"}, "mode: 'guessed' is not one of"),
    ],
)
def test_a_bad_recipe_names_the_field(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        from_dict({**CONFIG.to_dict(), **change})


def test_a_pace_belongs_to_emulated_runs() -> None:
    pace = PaceConfig(model=CONFIG.model, cluster="h100_paper", time_scale=10.0)
    emulated = replace(CONFIG, mode="emulated", pace=pace)
    assert from_dict(emulated.to_dict()) == emulated
    assert override(emulated, ["pace.time_scale=20", "pace.model.layers=9"]).pace == PaceConfig(
        model=replace(CONFIG.model, layers=9), cluster="h100_paper", time_scale=20.0
    )
    with pytest.raises(InputError, match=r"pace\.time_scale: must be > 0"):
        override(emulated, ["pace.time_scale=0"])
    with pytest.raises(InputError, match="pace: is for emulated runs, not measured ones"):
        replace(emulated, mode="measured")
    with pytest.raises(InputError, match="pace: must be a table"):
        from_dict({**emulated.to_dict(), "pace": 3})


def test_a_missing_field_is_named() -> None:
    raw = CONFIG.to_dict()
    del raw["gpus"]
    with pytest.raises(InputError, match="gpus: is missing"):
        from_dict(raw)


def test_configs_are_frozen_and_keyword_only() -> None:
    with pytest.raises(AttributeError):
        CONFIG.batch = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        Arm("torchrec")  # type: ignore[misc]
    assert RunConfig.__dataclass_params__.frozen and ModelConfig.__dataclass_params__.frozen  # type: ignore[attr-defined]
