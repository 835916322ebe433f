"""Without this, a run could go on from another run's checkpoint, or from half of one, and its record would mix the two
without a word; or a crash while old checkpoints are removed could leave none.

Not covered: what is in the files (`tests/distributed/test_checkpoint.py`).
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import experiments
from repro.config import CheckpointConfig, override
from repro.errors import InputError
from repro.pipeline.checkpoint_folder import (
    META,
    Belonging,
    CheckpointMeta,
    begin,
    belonging,
    check,
    complete,
    describe,
    finish,
    newest,
    read_meta,
    step_of,
)

CONFIG = experiments.EXPERIMENTS[0].runs[0]
RUN = belonging(CONFIG, "data", {"torch": "2.0"}, "code")


def _write(run: Path, step: int, keep: int = 2, belongs_to: Belonging = RUN) -> Path:
    partial = begin(run, step)
    (partial / "__0_0.distcp").write_bytes(bytes(range(100)))
    meta = CheckpointMeta(
        step=step,
        belongs_to=belongs_to,
        run_ns=7,
        autotune=None,
        files={"__0_0.distcp": describe(partial / "__0_0.distcp")},
    )
    return finish(partial, meta, keep)


def test_only_complete_ones_count_and_the_newest_stay(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    for step in (8, 12, 100, 104):
        assert step_of(_write(tmp_path, step)) == step
    crashed = begin(tmp_path, 108)
    assert [step_of(found) for found in complete(tmp_path)] == [100, 104]
    assert newest(tmp_path) == complete(tmp_path)[-1]
    _write(tmp_path, 112, keep=1)
    assert not crashed.exists()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000112"]


def test_a_crash_while_an_old_one_is_removed_leaves_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path, 4)

    def crash(path: Path, **_: Any) -> None:
        if path.name != "step-00000008":
            raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", crash)
    with pytest.raises(KeyboardInterrupt):
        _write(tmp_path, 8, keep=1)
    assert [step_of(found) for found in complete(tmp_path)] == [8]
    check(complete(tmp_path)[0], RUN)


def test_its_own_run_may_go_on_from_it(tmp_path: Path) -> None:
    checkpoint = _write(tmp_path, 4)
    assert check(checkpoint, RUN) == read_meta(checkpoint)
    often = replace(CONFIG, checkpoint=CheckpointConfig(every=7, keep=3))
    assert check(checkpoint, belonging(often, "data", {"torch": "2.0"}, "code")).step == 4


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ([belonging(replace(CONFIG, gpus=64), "data", {"torch": "2.0"}, "code")], "world_size differs: "),
        ([belonging(CONFIG, "other data", {"torch": "2.0"}, "code")], "data_set differs: 'data' in the checkpoint, "),
        ([belonging(override(CONFIG, ["optimizer.sparse_lr=9"]), "data", {"torch": "2.0"}, "code")],
         f"config.optimizer.sparse_lr differs: {CONFIG.optimizer.sparse_lr} in the checkpoint, 9.0 in this run"),
        ([belonging(CONFIG, "data", {"torch": "2.1"}, "code")], "versions.torch differs: '2.0' in"),
        ([belonging(CONFIG, "data", {"torch": "2.0", "new": "1"}, "code")], "versions.new differs: None in"),
        ([belonging(CONFIG, "data", {"torch": "2.0"}, "other code")], "code differs: "),
    ],
)  # fmt: skip
def test_another_run_is_refused_with_the_field(tmp_path: Path, other: list[Belonging], says: str) -> None:
    checkpoint = _write(tmp_path, 4)
    with pytest.raises(InputError) as raised:
        check(checkpoint, other[0])
    said = str(raised.value)
    assert said.startswith(f"{checkpoint}: {says}") and said.endswith(f"remove {checkpoint.parent} to start anew")
    assert "\n" not in said


def test_a_folder_that_is_no_checkpoint_and_damaged_ones_are_named(tmp_path: Path) -> None:
    checkpoint = _write(tmp_path, 4)
    data = checkpoint / "__0_0.distcp"
    data.write_bytes(data.read_bytes()[:40])
    with pytest.raises(InputError, match=r"__0_0.distcp: is damaged: 40 bytes instead of 100; remove "):
        check(checkpoint, RUN)
    data.unlink()
    with pytest.raises(InputError, match=r"__0_0.distcp: is missing; remove "):
        check(checkpoint, RUN)
    raw = json.loads((checkpoint / META).read_text())
    for content, says in (
        (json.dumps({**raw, "version": 9}), "version 9, this release reads 1"),
        (json.dumps({**raw, "files": 3}), "not readable"),
        (json.dumps([raw]), "not readable"),
        (json.dumps(raw)[:100], "not readable"),
    ):
        (checkpoint / META).write_text(content)
        with pytest.raises(InputError, match=says):
            check(checkpoint, RUN)
    (checkpoint / META).unlink()
    with pytest.raises(InputError, match=r"step-00000004: not a checkpoint, there is no meta.json in it; remove "):
        check(checkpoint, RUN)
    with pytest.raises(InputError, match="not a checkpoint"):
        read_meta(tmp_path / "elsewhere")
