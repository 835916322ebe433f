"""Without these a log too long for memory could come out in another order, or with other requests, than a short one.

Random logs are prepared a few events at a time and compared with the same preparation done plainly in memory. Not
covered: the memory that it takes (see benchmarks/prepare.py).
"""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prep_logs import small_log, source_of

from data_prep import writer
from data_prep.event_log import EventLog
from data_prep.requests import RequestRule
from data_prep.user_hash import hash_users
from data_prep.vocabulary import Vocabulary
from repro.data.schema import Manifest, read_manifest
from repro.errors import InputError

KEY = bytes(32)
SMALL = writer.Sizes(group_events=7, window_events=5, request_groups=3, event_shard=11, request_shard=4)
EVENTS = st.lists(st.tuples(st.integers(-3, 4), st.integers(0, 12)), min_size=2, max_size=80)


def _write(folder: Path, log: EventLog, parts: int, rule: RequestRule, sizes: writer.Sizes) -> Manifest:
    cuts = np.linspace(0, len(log), parts + 1).astype(int)
    split = [_rows(log, slice(begin, end)) for begin, end in itertools.pairwise(cuts.tolist())]
    source = dataclasses.replace(source_of(log, rule=rule), read=lambda: split)
    folder.mkdir()
    writer.write_data_set(folder, source, KEY, "", {}, lambda _: None, sizes)
    return read_manifest(folder)


def _rows(log: EventLog, rows: slice) -> EventLog:
    changes: dict[str, Any] = {name: getattr(log, name)[rows] for name in ("user", "item", "time", "label")}
    changes["actions"] = {name: column[rows] for name, column in log.actions.items()}
    changes["attributes"] = {name: column[rows] for name, column in log.attributes.items()}
    return dataclasses.replace(log, **changes)


def _table(folder: Path, stem: str) -> dict[str, list[Any]]:
    tables = [pq.read_table(path).to_pydict() for path in sorted(folder.glob(f"{stem}-*.parquet"))]
    return {name: [value for table in tables for value in table[name]] for name in tables[0]}


def _in_memory(log: EventLog, rule: RequestRule) -> tuple[dict[str, list[Any]], list[list[Any]]]:
    """Events by column, and requests by row, as plainly as can be."""
    rows = range(len(log))
    by_user: dict[int, list[int]] = {}
    for row in sorted(rows, key=lambda row: (log.time[row], row)):
        by_user.setdefault(int(log.user[row]), []).append(row)  # users in the order of their first event
    order = [row for mine in by_user.values() for row in mine]
    items = {raw: rank for rank, raw in enumerate(sorted(set(log.item.tolist())))}
    hash_of = dict(zip(by_user, hash_users(by_user, KEY).tolist(), strict=True))
    events: dict[str, list[Any]] = {
        "user": [hash_of[int(log.user[row])] for row in order],
        "time": log.time[order].tolist(),
        "item": [items[int(log.item[row])] for row in order],
        "kind": log.attributes["kind"][order].tolist(),
        "action": log.actions["action"][order].tolist(),
    }
    eligible_of = {}
    for user, mine in by_user.items():
        late = [row for row in mine if rule.first_time is None or log.time[row] >= rule.first_time]
        eligible_of[user] = min(max(len(mine) - rule.min_history, 0), len(late))
    draws = iter(
        np.random.default_rng(rule.seed).integers(1, rule.max_candidates, endpoint=True, size=sum(eligible_of.values()))
    )
    requests, begin = [], 0
    for user, mine in by_user.items():
        mine_draws = [int(next(draws)) for _ in range(eligible_of[user])]
        at = len(mine) - eligible_of[user]
        while at < len(mine):
            chosen = mine[at : at + mine_draws.pop(0)]
            now = int(log.time[chosen[0]])
            history = sum(int(log.time[row]) < now for row in mine)
            if history:
                lists = [[items[int(log.item[row])] for row in chosen], log.attributes["kind"][chosen].tolist()]
                requests.append([now, chosen[0], hash_of[user], now, begin, begin + history, *lists, log.label[chosen]])
            at += len(chosen)
        begin += len(mine)
    requests.sort(key=lambda request: request[:2])
    return events, [[*request[2:-1], request[-1].tolist()] for request in requests]


@settings(max_examples=150, deadline=None)
@given(events=EVENTS, parts=st.integers(1, 9), late=st.sampled_from([None, 4]), seed=st.integers(0, 3))
def test_a_few_events_at_a_time_give_what_memory_gives(
    events: list[tuple[int, int]], parts: int, late: int | None, seed: int
) -> None:
    plain = small_log([event[0] for event in events], [event[1] for event in events])
    kind = (np.arange(len(plain)) % 5).astype(np.int32)
    log = dataclasses.replace(
        plain, item=(plain.item * 31) % 17, attributes={"kind": kind}, attribute_vocabulary={"kind": 5}
    )
    rule = RequestRule(max_candidates=4, first_time=late, seed=seed)
    wanted_events, wanted_requests = _in_memory(log, rule)
    with tempfile.TemporaryDirectory() as root:
        if not wanted_requests:
            with pytest.raises(InputError, match="no request"):
                _write(Path(root) / "a", log, parts, rule, SMALL)
            return
        manifest = _write(Path(root) / "a", log, parts, rule, SMALL)
        assert _table(Path(root) / "a", "events") == wanted_events
        requests = _table(Path(root) / "a", "requests")
    names = ("user", "time", "uih_begin", "uih_end", "candidate_item", "candidate_kind", "label")
    assert [list(row) for row in zip(*(requests[name] for name in names), strict=True)] == wanted_requests

    # No event of a history is at or after its request.
    for end, now in zip(requests["uih_end"], requests["time"], strict=True):
        assert wanted_events["time"][end - 1] < now
    keys = list(zip(log.user.tolist(), log.time.tolist(), log.item.tolist(), strict=True))
    assert manifest.quality["duplicate_events"] == len(keys) - len(set(keys))
    assert (manifest.events, manifest.requests) == (len(log), len(wanted_requests))


def test_sizes_of_files_only_cut_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    log = small_log(rng.integers(20, size=500).tolist(), rng.integers(900, size=500).tolist())
    tables = []
    for name, sizes, parts in (("a", SMALL, 13), ("b", writer.SIZES, 1)):
        manifest = _write(tmp_path / name, log, parts, RequestRule(), sizes)
        tables.append([_table(tmp_path / name, stem) for stem in ("events", "requests")])
        assert not [
            path for path in (tmp_path / name).iterdir() if path.name not in {*manifest.outputs, "manifest.json"}
        ]
    assert tables[0] == tables[1]
    assert len(list((tmp_path / "a").glob("events-*"))) == -(-500 // SMALL.event_shard)


def test_sorted_parts_need_no_sort(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    log = small_log(np.sort(rng.integers(9, size=200)).tolist(), rng.integers(900, size=200).tolist())
    whole = _rows(log, slice(None))
    users = np.unique(log.user)
    first = sorted(users.tolist(), key=lambda user: log.time[log.user == user].min())
    order = np.concatenate([
        np.flatnonzero(log.user == user)[np.argsort(log.time[log.user == user], kind="stable")] for user in first
    ])  # fmt: skip
    ready = dataclasses.replace(
        whole, user=whole.user[order], item=np.unique(whole.item, return_inverse=True)[1][order].astype(np.int32),
        time=whole.time[order], label=whole.label[order], actions={"action": whole.actions["action"][order]},
    )  # fmt: skip
    cut = int(np.flatnonzero(ready.user == first[4])[0])
    parts = [_rows(ready, slice(0, cut)), _rows(ready, slice(cut, None))]
    source = dataclasses.replace(source_of(log), read=lambda: parts, ordered_items=200)
    (tmp_path / "ordered").mkdir()
    writer.write_data_set(tmp_path / "ordered", source, KEY, "", {}, lambda _: None)
    _write(tmp_path / "sorted", ready, 3, RequestRule(), SMALL)
    for stem in ("events", "requests"):
        assert _table(tmp_path / "ordered", stem) == _table(tmp_path / "sorted", stem)


def test_users_come_in_the_order_of_their_first_event(tmp_path: Path) -> None:
    _write(tmp_path / "a", small_log([5, 9, 5, 7, 9], [30, 10, 20, 10, 40]), 2, RequestRule(), writer.SIZES)
    assert _table(tmp_path / "a", "events")["user"] == [*hash_users([9, 9, 7, 5, 5], KEY)]


def test_times_too_far_apart_for_one_key(tmp_path: Path) -> None:
    far = 2**62
    _write(tmp_path / "a", small_log([3, 4, 5, 3, 4], [far, 7, 1, 0, far - 1]), 2, RequestRule(), writer.SIZES)
    assert _table(tmp_path / "a", "events")["time"] == [0, far, 1, 7, far - 1]


def test_disorder_is_counted(tmp_path: Path) -> None:
    manifest = _write(tmp_path / "a", small_log([1, 1, 1, 2, 2], [5, 3, 9, 1, 1]), 2, RequestRule(), writer.SIZES)
    assert manifest.quality == {"duplicate_events": 0, "out_of_order_events": 1}


@pytest.mark.parametrize("ids", [[[5, 2**60, -7], [2**60, 9, 5]], [["b", "a", "ü"], ["a", "c", "b"]]])
def test_codes_are_given_out_across_parts(ids: list[list[int]] | list[list[str]]) -> None:
    vocabulary = Vocabulary("item")
    assert [vocabulary.encode(np.array(part)).tolist() for part in ids] == [[0, 1, 2], [1, 3, 0]]
    seen = [ids[0][0], ids[0][1], ids[0][2], ids[1][1]]
    assert vocabulary.raw() == seen
    assert vocabulary.ranks().tolist() == [sorted(seen).index(raw) for raw in seen]  # type: ignore[type-var]


def test_ids_that_are_none() -> None:
    vocabulary = Vocabulary("user")
    vocabulary.encode(np.array([1]))
    with pytest.raises(InputError, match="text in one part"):
        vocabulary.encode(np.array(["1"]))
    with pytest.raises(InputError, match="2 events have none"):
        Vocabulary("user").encode(np.array(["a", None, None], dtype=object))
    with pytest.raises(InputError, match="must be integers or text, got double"):
        Vocabulary("user").encode(np.array([0.5]))
    with pytest.raises(InputError, match="larger than"):
        Vocabulary("user").encode(np.array([2**64 - 1], dtype=np.uint64))
