"""Without these the synthetic log could come out in another order than the writer takes on trust, hang on the size of a
block, or lose the skew, the drift, the locality or the learnable labels that it exists for.

Not covered: the presets (test_synthetic_presets.py), collisions (test_synthetic_collision.py), and speed and memory
(benchmarks/synthetic.py).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from data_prep import synthetic_events
from data_prep.event_log import EventLog
from data_prep.prepare import prepare_source
from data_prep.synthetic import SyntheticLog, override, source
from data_prep.synthetic_events import DAY_MS, parts, plan_users
from data_prep.synthetic_presets import TINY
from repro.data.dataset import PreparedDataset
from repro.errors import InputError

MANY = dataclasses.replace(TINY, users=3_000)


def whole(knobs: SyntheticLog) -> EventLog:
    """All parts as one."""
    found = list(parts(knobs))
    join = np.concatenate
    return EventLog(
        **{name: join([getattr(part, name) for part in found]) for name in ("user", "item", "time", "label")},
        actions={"action": join([part.actions["action"] for part in found])},
        action_vocabulary=found[0].action_vocabulary,
        attributes={name: join([part.attributes[name] for part in found]) for name in found[0].attributes},
        attribute_vocabulary=found[0].attribute_vocabulary,
    )


@pytest.fixture(scope="module")
def log() -> EventLog:
    return whole(MANY)


def test_same_seed_same_log() -> None:
    one, again, other = (whole(dataclasses.replace(TINY, seed=seed)) for seed in (3, 3, 4))
    for name in ("user", "item", "time", "label"):
        assert np.array_equal(getattr(one, name), getattr(again, name))
        assert not np.array_equal(getattr(one, name), getattr(other, name))
    assert np.array_equal(one.actions["action"], again.actions["action"])


@pytest.mark.parametrize("block", [1, 1_000, 1 << 30])
def test_parts_are_whole_users_in_prepared_order(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """Whatever the size of a part, one user's events being more than that included."""
    monkeypatch.setattr(synthetic_events, "_BLOCK_EVENTS", block)
    next_user, last_first = 0, 0
    for part in parts(TINY):
        begin_U = np.flatnonzero(np.diff(part.user, prepend=-1))
        assert part.user[begin_U].tolist() == list(range(next_user, next_user + begin_U.size))
        assert np.all(np.diff(part.time)[np.diff(part.user) == 0] >= 0)
        first_U = part.time[begin_U]
        assert first_U[0] >= last_first and np.all(np.diff(first_U) >= 0)
        next_user, last_first = next_user + begin_U.size, first_U[-1]
    assert next_user == TINY.users


def test_prepared_as_if_it_had_been_sorted(tmp_path: Path) -> None:
    """The writer's short cut for ordered logs gives what its sort gives."""
    folders = []
    for name, ordered in (("short", True), ("long", False)):
        made = source(dataclasses.replace(TINY, name=name))
        made = made if ordered else dataclasses.replace(made, ordered_items=None)
        folders.append(prepare_source(made, tmp_path / "data", key_path=tmp_path / "key", log=lambda _: None))
    short, long = (PreparedDataset.open(folder) for folder in folders)
    for name in ("request_time", "request_user", "uih_begin", "uih_end", "candidate_offsets", "label", "event_time"):
        assert np.array_equal(getattr(short, name), getattr(long, name)), name
    assert np.array_equal(short.event_feature("author"), long.event_feature("author"))


def test_lengths_and_windows_are_those_planned(log: EventLog) -> None:
    plan = plan_users(MANY)
    in_window_N = log.time >= MANY.rule.first_time
    assert np.array_equal(np.bincount(log.user[~in_window_N]), plan.history_U)
    assert np.array_equal(np.bincount(log.user[in_window_N]), plan.window_U)
    assert np.array_equal(log.time[np.flatnonzero(np.diff(log.user, prepend=-1))], plan.first_ms_U)
    assert log.time.max() < MANY.days * DAY_MS
    assert np.median(plan.history_U) == pytest.approx(np.exp(MANY.length_mu), rel=0.02)
    assert (plan.history_U.min(), plan.history_U.max()) == (MANY.length_floor, MANY.length_cap)


def test_the_longest_histories_do_not_hang_on_the_seed() -> None:
    lengths = [np.sort(plan_users(dataclasses.replace(MANY, seed=seed)).history_U) for seed in (0, 1)]
    assert np.array_equal(*lengths)


def test_a_second_population_of_long_histories() -> None:
    mixed = dataclasses.replace(MANY, heavy_share=0.01, heavy_mu=9.0, heavy_sigma=0.1, length_cap=25_000)
    length_U = plan_users(mixed).history_U
    assert np.count_nonzero(length_U > 5_000) == 30
    assert np.median(length_U[length_U > 5_000]) == pytest.approx(np.exp(9.0), rel=0.03)


@pytest.mark.parametrize("activity", [0.0, 0.5, 1.0])
def test_long_users_come_more_often_as_asked(activity: float) -> None:
    plan = plan_users(dataclasses.replace(MANY, activity=activity, requests_a_user=20))
    slope = np.polyfit(np.log(plan.history_U), np.log(plan.window_U), 1)[0]
    assert slope == pytest.approx(activity, abs=0.02)
    assert plan.window_U.mean() == pytest.approx(20 * (MANY.max_candidates + 1) / 2, rel=0.02)


def test_sessions_have_the_size_and_gap_asked_for() -> None:
    long = dataclasses.replace(MANY, users=50, length_mu=7.0, length_cap=3_000)
    log = whole(long)
    gap_N = np.diff(log.time)[np.diff(log.user) == 0]
    inside_N = gap_N < 20 * 60_000  # e ** -30 of gaps inside a session are longer
    assert 1 / np.mean(~inside_N) == pytest.approx(long.session_events, rel=0.15)
    assert gap_N[inside_N].mean() == pytest.approx(1000 * long.event_gap_s, rel=0.05)


@pytest.mark.parametrize("events", [100_000, 200_000])
def test_a_history_too_long_for_its_time_is_packed_closer(events: int) -> None:
    packed = dataclasses.replace(TINY, users=2, length_mu=np.log(events), length_sigma=0, length_cap=events, days=40)
    log = whole(packed)
    assert log.time.max() < packed.days * DAY_MS
    assert np.all(np.diff(log.time)[np.diff(log.user) == 0] >= 0)


def test_requests_of_a_user_lie_in_one_visit() -> None:
    visiting = dataclasses.replace(MANY, visit_days=0.5, requests_a_user=20)
    log = whole(visiting)
    late_N = log.time >= visiting.window_ms
    first_U = np.full(visiting.users, np.iinfo(np.int64).max)
    last_U = np.zeros(visiting.users, dtype=np.int64)
    np.minimum.at(first_U, log.user[late_N], log.time[late_N])
    np.maximum.at(last_U, log.user[late_N], log.time[late_N])
    assert (last_U - first_U).max() < 0.5 * DAY_MS
    assert np.ptp(first_U) > 0.9 * visiting.request_days * DAY_MS
    assert log.time.max() < visiting.days * DAY_MS


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.3])
def test_popularity_is_zipf(exponent: float) -> None:
    log = whole(dataclasses.replace(MANY, popularity_exponent=exponent, items=4_000))
    counts = np.bincount(log.item // MANY.genres)
    assert counts[0] / counts[9] == pytest.approx(10**exponent, rel=0.2)
    assert counts[3] / counts[30] == pytest.approx((31 / 4) ** exponent, rel=0.2)


def test_popularity_drifts() -> None:
    """The ten most popular items of the first and the last days: the same without drift, others with it."""
    shared = {}
    for days in (None, 10.0):
        log = whole(dataclasses.replace(MANY, popularity_days=days, items=4_000))
        early, late = (
            set(
                np.argsort(-np.bincount(log.item[(log.time >= begin * DAY_MS) & (log.time < (begin + 5) * DAY_MS)]))[
                    :10
                ]
            )
            for begin in (50, 84)
        )
        shared[days] = len(early & late)
    assert shared[None] >= 8
    assert shared[10.0] <= 1


def test_a_session_stays_in_its_genre(log: EventLog) -> None:
    """Neighbours share the genre in focus ** 2 of cases, and otherwise by chance, one in ten; a session's end is one
    neighbour in 25."""
    same_N = (np.diff(log.attributes["genre"]) == 0)[np.diff(log.user) == 0]
    inside = MANY.session_focus**2 + (1 - MANY.session_focus**2) / MANY.genres
    assert same_N.mean() == pytest.approx(inside, abs=0.04)


def test_attributes_are_the_items_own(log: EventLog) -> None:
    for name in ("genre", "author"):
        of_item = np.zeros(MANY.items, dtype=np.int64)
        of_item[log.item] = log.attributes[name]
        assert np.array_equal(of_item[log.item], log.attributes[name])
    assert "genre" not in next(parts(dataclasses.replace(TINY, genre_feature=False))).attributes


def test_labels_can_be_learned(log: EventLog) -> None:
    """A model of what the first half of the events says (rate of the item; of this user in this genre) has an NE well
    below 1 on the second half."""
    train_N = np.arange(log.time.size) % 2 == 0
    logit_N = np.zeros(log.time.size)
    place_N = log.user * MANY.genres + log.attributes["genre"]
    rate = log.label[train_N].mean()
    for key_N in (log.item, place_N):
        shown = np.bincount(key_N[train_N], minlength=key_N.max() + 1)
        liked = np.bincount(key_N[train_N], weights=log.label[train_N], minlength=key_N.max() + 1)
        smooth = (liked + 4 * rate) / (shown + 4)
        logit_N += np.log(smooth / (1 - smooth))[key_N] - np.log(rate / (1 - rate))
    chance = 1 / (1 + np.exp(-(logit_N + np.log(rate / (1 - rate)))))
    label, guess = log.label[~train_N], chance[~train_N]
    loss = -np.mean(np.where(label == 1, np.log(guess), np.log1p(-guess)))
    base = label.mean()
    entropy = -(base * np.log(base) + (1 - base) * np.log(1 - base))
    assert loss / entropy < 0.93


def test_action_agrees_with_the_label(log: EventLog) -> None:
    assert np.array_equal(log.label == 1, log.actions["action"] >= 2)
    assert np.unique(log.actions["action"]).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"users": 0}, "users"),
        ({"length_cap": 1}, "length_cap: must be >= 5"),
        ({"request_days": 0}, "request_days"),
        ({"request_days": 90}, "request_days"),
        ({"items": 3}, "items"),
        ({"items": 2**31}, "items"),
        ({"heavy_share": 1.5}, "heavy_share"),
        ({"session_focus": -0.1}, "session_focus"),
        ({"popularity_days": 0.0}, "popularity_days"),
        ({"visit_days": 31.0}, "visit_days"),
    ],
)
def test_impossible_knobs(change: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        dataclasses.replace(TINY, **change)


def test_overrides() -> None:
    changed = override(TINY, ["users=7", "activity=0.25", "popularity_days=none", "genre_feature=false"])
    assert (changed.users, changed.activity, changed.popularity_days, changed.genre_feature) == (7, 0.25, None, False)
    for bad in ("users", "mood=1", "users=many", "name=x", "genre_feature=2", "users=0"):
        with pytest.raises(InputError):
            override(TINY, [bad])
