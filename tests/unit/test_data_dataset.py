"""Without these, ranks could miss or repeat requests, race on first use, or read a damaged data set in silence.

What a request is, is tested in test_prep_requests.py. Not covered: network file systems.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import shutil
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prep_logs import prepare_log, some_log

from data_prep import sources
from data_prep.writer import sha256
from repro.data.dataset import PreparedDataset
from repro.data.schema import MANIFEST, read_manifest
from repro.errors import InputError


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tiny")
    return sources.prepare("tiny", root / "data", key_path=root / "key", log=lambda _: None)


@pytest.fixture(scope="module")
def tiny(tiny_folder: Path) -> PreparedDataset:
    return PreparedDataset.open(tiny_folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return prepare_log(some_log(), tmp_path / "data")


@pytest.mark.parametrize(("world", "batch"), [(1, 7), (2, 16), (8, 5), (64, 3)])
def test_ranks_share_out_every_row_once(tiny: PreparedDataset, world: int, batch: int) -> None:
    global_batch = world * batch
    batches = tiny.global_batches(global_batch)
    rows = [tiny.rank_rows(t, global_batch, rank, world) for t in range(batches) for rank in range(world)]
    assert all(part.size == batch for part in rows)
    assert np.array_equal(np.sort(np.concatenate(rows)), np.arange(batches * global_batch))
    assert len(tiny) - batches * global_batch < global_batch
    assert np.array_equal(tiny.rank_rows(1, global_batch, world - 1, world)[:2] % world, [world - 1] * 2)


def test_membership_does_not_hang_on_the_world_size(tiny: PreparedDataset) -> None:
    for t in (0, 3):
        of_two, of_eight = (
            np.sort(np.concatenate([tiny.rank_rows(t, 64, rank, world) for rank in range(world)])) for world in (2, 8)
        )
        assert np.array_equal(of_two, of_eight)
        assert np.array_equal(of_two, tiny.global_rows(t, 64))


@pytest.mark.parametrize("t", [-1, 10**6])
def test_past_the_end(tiny: PreparedDataset, t: int) -> None:
    with pytest.raises(InputError, match=rf"has {len(tiny) // 64} global batches of 64 requests.*use fewer steps"):
        tiny.global_rows(t, 64)


@pytest.mark.parametrize("cap", [1, 10, 10**6])
def test_read_gives_the_latest_events(tiny: PreparedDataset, cap: int) -> None:
    rows = np.array([len(tiny) - 1, 3, 3, 700])
    block = tiny.read(rows, cap)
    assert np.array_equal(block.request_id, rows)
    assert np.array_equal(block.uih_lengths, tiny.uih_lengths(rows, cap))
    assert np.array_equal(block.candidate_counts, tiny.candidate_counts(rows))
    event = candidate = 0
    for r, row in enumerate(rows):
        begin, end = int(tiny.uih_begin[row]), int(tiny.uih_end[row])
        length = min(cap, end - begin)
        part = slice(event, event + length)
        for name, column in block.uih.items():
            assert np.array_equal(column[part], tiny.event_feature(name)[end - length : end])
        assert np.array_equal(block.uih_time[part], tiny.event_time[end - length : end])
        assert block.uih_time[part].max() < block.request_time[r]
        first, last = tiny.candidate_offsets[row : row + 2]
        own = slice(candidate, candidate + int(last - first))
        assert np.array_equal(block.candidate["item"][own], tiny.candidate_item[first:last])
        assert np.array_equal(block.label[own], tiny.label[first:last])
        event, candidate = part.stop, own.stop
    assert (event, candidate) == (block.uih_time.size, block.label.size)


def test_types_of_a_block(tiny: PreparedDataset) -> None:
    for rows in (np.arange(4), np.arange(0)):
        block = tiny.read(rows, 5)
        for name in ("request_id", "request_time", "uih_lengths", "candidate_counts", "uih_time"):
            assert getattr(block, name).dtype == np.int64, name
        assert {column.dtype for column in (*block.uih.values(), *block.candidate.values())} == {np.dtype(np.int32)}
        assert block.label.dtype == np.float32
        arrays = [block.request_time, block.uih_time, block.label, *block.uih.values(), *block.candidate.values()]
        assert all(array.flags.writeable and array.flags.c_contiguous for array in arrays)


def test_unknown_feature(tiny: PreparedDataset) -> None:
    with pytest.raises(InputError, match="no event feature 'mood'; there are item, genre, author, action"):
        tiny.event_feature("mood")


def test_columns_are_mapped_read_only(folder: Path) -> None:
    dataset = PreparedDataset.open(folder)
    assert isinstance(dataset.event_time.base, np.memmap)
    assert not dataset.event_time.flags.writeable
    assert len(list((folder / "columns").iterdir())) == 1


def _open(folder: Path, start: threading.Barrier) -> int:
    start.wait()
    dataset = PreparedDataset.open(folder)
    return int(dataset.event_time.sum() + dataset.uih_end.sum() + dataset.label.sum())


def test_four_processes_open_it_first(tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(tiny_folder, folder, ignore=shutil.ignore_patterns("columns"))
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        start = manager.Barrier(4)
        with context.Pool(4) as pool:
            sums = pool.starmap(_open, [(folder, start)] * 4)
    dataset = PreparedDataset.open(folder)
    assert set(sums) == {int(dataset.event_time.sum() + dataset.uih_end.sum() + dataset.label.sum())}
    assert len(list((folder / "columns").iterdir())) == 1


def test_a_folder_that_cannot_be_written_is_read_into_memory(folder: Path) -> None:
    (folder / "columns").write_text("")  # root may write anywhere, but not below a file
    inside = PreparedDataset.open(folder)
    (folder / "columns").unlink()
    mapped = PreparedDataset.open(folder)
    one, other = (dataset.read(np.arange(len(dataset)), 9) for dataset in (inside, mapped))
    assert np.array_equal(one.uih["item"], other.uih["item"])
    assert np.array_equal(one.label, other.label)


def test_new_data_is_not_read_through_old_columns(tmp_path: Path) -> None:
    PreparedDataset.open(prepare_log(some_log(), tmp_path / "data"))
    folder = prepare_log(some_log(), tmp_path / "data", key="other")
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    folder = prepare_log(some_log(), tmp_path / "data2", key="other")
    for path in folder.iterdir():
        shutil.copy(path, copy)
    users = np.unique(pq.read_table(copy / "requests-00000.parquet")["user"].to_numpy())
    assert np.array_equal(np.unique(PreparedDataset.open(copy).request_user), users)


def test_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run `repro prepare nothing`"):
        PreparedDataset.open(tmp_path / "nothing")


@pytest.mark.parametrize("stem", ["events", "requests"])
def test_missing_shard(folder: Path, stem: str) -> None:
    PreparedDataset.open(folder)
    (folder / f"{stem}-00000.parquet").unlink()
    with pytest.raises(InputError, match=rf"{stem}-00000.parquet: missing; run `repro prepare small --force`"):
        PreparedDataset.open(folder)


@pytest.mark.parametrize("stem", ["events", "requests"])
def test_damaged_shard(folder: Path, stem: str) -> None:
    shard = folder / f"{stem}-00000.parquet"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(InputError, match=rf"{stem}-00000.parquet: damaged.*--force"):
        PreparedDataset.open(folder)
    assert list((folder / "columns").iterdir()) == []


def test_damaged_columns(folder: Path) -> None:
    PreparedDataset.open(folder)
    column = next((folder / "columns").iterdir()) / "event_time.npy"
    column.write_bytes(column.read_bytes()[:100])
    with pytest.raises(InputError, match=r"event_time.npy: .*--force"):
        PreparedDataset.open(folder)


@pytest.mark.parametrize(
    ("shard", "column", "index", "value", "message"),
    [
        ("events", "item", 5, 10**6, "item ids"),
        ("events", "action", 0, -1, "action ids"),
        ("events", "time", 0, 10**9, "not in time order"),
        ("requests", "uih_end", 0, 10**9, "not a range of events"),
        ("requests", "uih_begin", 0, -1, "not a range of events"),
        ("requests", "uih_begin", -1, 0, "another user's"),
        ("requests", "user", 0, 5, "another user's"),
        ("requests", "time", 0, -1, "at or after its request"),
        ("requests", "time", 0, 10**9, "not in time order"),
        ("requests", "candidate_item", 0, [10**6], "differ in number|item ids|fewer"),
        ("requests", "label", 0, [], "differ in number"),
    ],
)
def test_shards_that_contradict_the_format(
    folder: Path, shard: str, column: str, index: int, value: object, message: str
) -> None:
    path = folder / f"{shard}-00000.parquet"
    table = pq.read_table(path)
    at = table.schema.get_field_index(column)
    values = table[column].to_pylist()
    values[index] = value
    table = table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))
    pq.write_table(table, path)
    _with_manifest(folder, outputs={name: sha256(folder / name) for name in read_manifest(folder).outputs})
    with pytest.raises(InputError, match=message) as caught:
        PreparedDataset.open(folder)
    assert str(folder) in str(caught.value)
    assert "--force" in str(caught.value)


@pytest.mark.parametrize(
    "change", [{"events": 399}, {"events": 401}, {"requests": 1}, {"labels": 10**4}, {"requests": "many"}]
)
def test_counts_that_are_not_the_manifests(folder: Path, change: dict[str, int | str]) -> None:
    _with_manifest(folder, **change)
    with pytest.raises(InputError, match="small"):
        PreparedDataset.open(folder)


def _with_manifest(folder: Path, **changes: object) -> None:
    (folder / MANIFEST).write_text(json.dumps(dataclasses.asdict(read_manifest(folder)) | changes))
