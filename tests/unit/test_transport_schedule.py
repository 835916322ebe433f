"""Without this, a schedule could lose or double bytes, order the two ends of a pair differently, or deadlock for lack
of staging chunks, and only on some world size or message size would a run hang. Plays schedules without a network.

Not covered: real messages and copies (tests/distributed/test_transport).
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.comm.transport.schedule import Schedule, all_gather, all_to_all


def _play(
    schedules: list[Schedule], inputs: list[bytes], sizes: list[int], *, chunks: int, depth: int, seed: int
) -> list[bytes]:
    """Outputs of all ranks, where a rank has `chunks` staging chunks to receive into and a send ends only once its
    receive is posted. Ranks take turns at random; nobody being able to go on is a deadlock."""
    world = len(schedules)
    turn = random.Random(seed)
    outputs = [bytearray(size) for size in sizes]
    sent, posted, landed = [0] * world, [0] * world, [0] * world
    held: list[set[int]] = [set() for _ in range(world)]  # receives whose chunk is in use
    wire: dict[tuple[int, int], list[bytes]] = {}
    for rank, schedule in enumerate(schedules):
        first, at, size = schedule.own
        outputs[rank][at : at + size] = inputs[rank][first : first + size]

    def send(rank: int) -> bool:
        sends = schedules[rank].sends
        if sent[rank] == len(sends):
            return False
        move = sends[sent[rank]]
        if move.passes_on is not None and move.passes_on >= landed[rank]:
            return False
        receives = schedules[move.peer].receives
        index = [i for i, receive in enumerate(receives) if receive.peer == rank][
            sum(earlier.peer == move.peer for earlier in sends[: sent[rank]])
        ]
        if index >= posted[move.peer]:
            return False
        source = inputs[rank] if move.passes_on is None else outputs[rank]
        wire.setdefault((rank, move.peer), []).append(bytes(source[move.first : move.last]))
        if move.passes_on is not None:
            held[rank].discard(move.passes_on)
        sent[rank] += 1
        return True

    def post(rank: int) -> bool:
        if posted[rank] == len(schedules[rank].receives) or posted[rank] - landed[rank] >= depth:
            return False
        if len(held[rank]) >= chunks:
            return False
        held[rank].add(posted[rank])
        posted[rank] += 1
        return True

    def land(rank: int) -> bool:
        """The oldest receive, and only when no further one can be posted: as the receiving half does it."""
        receives = schedules[rank].receives
        full = posted[rank] - landed[rank] >= depth or posted[rank] == len(receives)
        if landed[rank] == posted[rank] or not full:
            return False
        receive = receives[landed[rank]]
        arrived = wire.get((receive.peer, rank))
        if not arrived:
            return False
        data = arrived.pop(0)
        assert len(data) == receive.last - receive.first, "both ends cut alike"
        outputs[rank][receive.first : receive.last] = data
        if not receive.is_passed_on:
            held[rank].discard(landed[rank])
        landed[rank] += 1
        return True

    moves = [(move, rank) for move in (send, post, land) for rank in range(world)]
    while True:
        turn.shuffle(moves)
        if not any(move(rank) for move, rank in moves):
            break
    for rank, schedule in enumerate(schedules):
        assert sent[rank] == len(schedule.sends) and landed[rank] == len(schedule.receives), f"deadlock at rank {rank}"
    assert not any(wire.values()), "sent and never received"
    return [bytes(output) for output in outputs]


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(1, 8), st.integers(1, 9), st.integers(1, 4), st.integers(0, 2**16))
def test_all_to_all_delivers_every_byte_and_never_deadlocks(
    data: st.DataObject, world: int, chunk: int, depth: int, seed: int
) -> None:
    size = st.one_of(st.just(0), st.integers(0, 30))
    sent = [data.draw(st.lists(size, min_size=world, max_size=world)) for _ in range(world)]
    received = [[sent[source][rank] for source in range(world)] for rank in range(world)]
    inputs = [random.Random(seed + rank).randbytes(sum(sent[rank])) for rank in range(world)]
    schedules = [all_to_all(rank, world, received[rank], sent[rank], chunk) for rank in range(world)]
    outputs = _play(schedules, inputs, [sum(sizes) for sizes in received], chunks=depth, depth=depth, seed=seed)
    for rank in range(world):
        expected = b"".join(
            inputs[source][sum(sent[source][:rank]) : sum(sent[source][: rank + 1])] for source in range(world)
        )
        assert outputs[rank] == expected


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 8), st.integers(0, 60), st.integers(1, 9), st.integers(1, 4), st.integers(0, 2**16))
def test_all_gather_delivers_every_block_and_never_deadlocks(
    world: int, size: int, chunk: int, depth: int, seed: int
) -> None:
    inputs = [random.Random(seed + rank).randbytes(size) for rank in range(world)]
    schedules = [all_gather(rank, world, size, chunk, depth) for rank in range(world)]
    outputs = _play(schedules, inputs, [size * world] * world, chunks=2 * depth + 1, depth=depth, seed=seed)
    assert outputs == [b"".join(inputs)] * world


def test_block_by_block_deadlocks_where_interleaved_groups_do_not() -> None:
    """The reason for `interleave`: the same ring with whole blocks needs as much staging memory as a block."""
    world, size, chunk, depth = 3, 64, 1, 2
    inputs = [bytes([rank]) * size for rank in range(world)]
    whole = [all_gather(rank, world, size, chunk, interleave=size) for rank in range(world)]
    with pytest.raises(AssertionError, match="deadlock"):
        _play(whole, inputs, [size * world] * world, chunks=2 * depth + 1, depth=depth, seed=0)


def test_ring_order() -> None:
    plan = all_to_all(1, 4, received=[1, 1, 1, 1], sent=[1, 1, 1, 1], chunk=8)
    assert [send.peer for send in plan.sends] == [2, 3, 0]
    assert [receive.peer for receive in plan.receives] == [0, 3, 2]
    gather = all_gather(1, 4, size=1, chunk=8, interleave=2)
    assert {send.peer for send in gather.sends} == {2} and {receive.peer for receive in gather.receives} == {0}
