"""Without these, an interrupted or repeated preparation could leave half a data set, or give users' ids away.

Not covered: a machine that loses power, and file systems without locks.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from prep_logs import prepare_log, small_log, some_log, source_of

from data_prep import sources
from data_prep.event_log import EventLog
from data_prep.prepare import prepare_source
from repro.data.dataset import PreparedDataset
from repro.data.schema import Manifest, read_manifest
from repro.errors import InputError


def _prepare(log: EventLog, root: Path, said: Callable[[str], None] = lambda _: None, **options: bool) -> Path:
    return prepare_source(source_of(log), root / "data", key_path=root / "key", log=said, **options)


def test_same_input_same_bytes(tmp_path: Path) -> None:
    first = read_manifest(prepare_log(some_log(), tmp_path / "a"))
    again = read_manifest(prepare_log(some_log(), tmp_path / "b"))
    assert first == again


def test_two_keys_differ_in_nothing_but_the_user(tmp_path: Path) -> None:
    folders = [prepare_log(some_log(), tmp_path / name, key=f"key-{name}") for name in ("a", "b")]
    for name in read_manifest(folders[0]).outputs:
        one, other = (pq.read_table(folder / name) for folder in folders)
        assert one.drop_columns("user").equals(other.drop_columns("user"))
        assert not one["user"].equals(other["user"])
        # The same rows belong together under both keys.
        codes = [np.unique(table["user"].to_numpy(), return_index=True)[1] for table in (one, other)]
        assert sorted(codes[0]) == sorted(codes[1])
    assert read_manifest(folders[0]).fingerprint == read_manifest(folders[1]).fingerprint


def test_raw_ids_are_in_no_output(tmp_path: Path) -> None:
    log = some_log()
    folder = prepare_log(log, tmp_path / "data")
    raw = set(np.unique(log.user).tolist())
    for path in folder.iterdir():
        content = path.read_bytes()
        assert not any(str(user).encode() in content or user.to_bytes(8, "little") in content for user in raw)
        if path.suffix == ".parquet":
            values = pq.read_table(path).to_pandas().to_numpy().ravel()
            assert raw.isdisjoint(np.concatenate([np.ravel(value) for value in values]).tolist())


def test_text_ids(tmp_path: Path) -> None:
    numbers = some_log()
    texts = EventLog(
        user=np.char.add("user-", numbers.user.astype(str)), item=np.char.add("item-", numbers.item.astype(str)),
        time=numbers.time, label=numbers.label, actions=numbers.actions, action_vocabulary=numbers.action_vocabulary,
    )  # fmt: skip
    one, other = (PreparedDataset.open(prepare_log(log, tmp_path / str(log is texts))) for log in (numbers, texts))
    assert np.array_equal(one.candidate_item, other.candidate_item)
    assert np.array_equal(one.uih_end, other.uih_end)


def test_second_time_is_skipped_until_something_changes(tmp_path: Path) -> None:
    lines: list[str] = []
    folder = _prepare(some_log(), tmp_path, lines.append)
    before = folder.stat().st_ino
    lines.clear()
    assert _prepare(some_log(), tmp_path, lines.append) == folder
    assert folder.stat().st_ino == before
    assert lines == [f"small: already prepared in {folder}"]

    _prepare(some_log(), tmp_path, force=True)
    assert folder.stat().st_ino != before

    shard = next(folder.glob("events-*"))
    shard.write_bytes(shard.read_bytes()[:-1])
    _prepare(some_log(), tmp_path)
    PreparedDataset.open(folder)

    source = source_of(some_log(), seed=1)
    prepare_source(source, tmp_path / "data", key_path=tmp_path / "key", log=lambda _: None)
    assert read_manifest(folder).parameters["seed"] == 1
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["small"]


@pytest.mark.parametrize("accident", [KeyboardInterrupt(), RuntimeError("any"), OSError(28, "No space left on device")])
def test_interrupted_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accident: BaseException
) -> None:
    def fail(_: Manifest) -> str:
        raise accident

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "to_json", fail)  # the last thing written: all shards are there by then
        with pytest.raises(InputError if isinstance(accident, OSError) else type(accident)):
            _prepare(some_log(), tmp_path)
        assert list((tmp_path / "data").iterdir()) == []

    folder = _prepare(some_log(), tmp_path)
    manifest = read_manifest(folder)
    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "to_json", fail)
        with pytest.raises(InputError if isinstance(accident, OSError) else type(accident)):
            _prepare(some_log(), tmp_path, force=True)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["small"]
    assert read_manifest(folder) == manifest


def test_a_killed_process_leaves_no_obstacle(tmp_path: Path) -> None:
    left = tmp_path / "data" / ".small.partial"
    left.mkdir(parents=True)
    (left / "events-00000.parquet").write_bytes(b"half")
    PreparedDataset.open(_prepare(some_log(), tmp_path))
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["small"]


def test_two_processes_do_not_mix(tmp_path: Path) -> None:
    partial = tmp_path / "data" / ".small.partial"
    partial.mkdir(parents=True)
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another process"):
            _prepare(some_log(), tmp_path)
        assert partial.is_dir()
    finally:
        os.close(descriptor)


def test_a_folder_of_someone_elses_is_never_replaced(tmp_path: Path) -> None:
    theirs = tmp_path / "data" / "small" / "thesis.txt"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("years of work")
    with pytest.raises(InputError, match="in the way"):
        _prepare(some_log(), tmp_path, force=True)
    assert theirs.read_text() == "years of work"


def test_data_root_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(InputError, match="data"):
        _prepare(some_log(), tmp_path)


def test_unknown_name_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there are movielens-100k, .*kuairand-27k.*csv"):
        sources.prepare("movielens", tmp_path / "data", key_path=tmp_path / "key")


def test_key_is_private_and_apart(tmp_path: Path) -> None:
    _prepare(some_log(), tmp_path)
    key = tmp_path / "key"
    assert key.stat().st_mode & 0o777 == 0o600
    text = key.read_text()
    _prepare(some_log(), tmp_path, force=True)
    assert key.read_text() == text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "key"]

    with pytest.raises(InputError, match="must not lie with the data"):
        prepare_source(source_of(some_log()), tmp_path / "d", key_path=tmp_path / "d" / "key")
    key.chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        _prepare(some_log(), tmp_path, force=True)
    key.chmod(0o600)
    key.write_text("short")
    with pytest.raises(InputError, match="not a user-hash key"):
        _prepare(some_log(), tmp_path, force=True)


def test_bad_logs_are_refused(tmp_path: Path) -> None:
    good = {"user": [1, 1], "time": [0, 1]}
    with pytest.raises(InputError, match="no events"):
        prepare_log(small_log([], []), tmp_path / "data")
    with pytest.raises(InputError, match="event 1: label must be 0 or 1, got 2"):
        small_log(**good, label=[0, 2])
    with pytest.raises(InputError, match="time: 1 values for 2 events"):
        small_log([1, 1], [0])
    with pytest.raises(InputError, match=r"event 0: action must be an id in 0\.\.2, got 3"):
        EventLog(
            user=np.array([1]), item=np.array([1]), time=np.array([0]), label=np.array([0]),
            actions={"action": np.array([3])}, action_vocabulary={"action": 3},
        )  # fmt: skip
