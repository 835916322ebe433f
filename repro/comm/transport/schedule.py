"""Who sends which bytes to whom, and in which order: pure, so that it can be checked without a network.

AllToAll, ring-ordered: in step k a rank sends to r+k and receives from r-k, so every link carries one message a
direction at a time and no receiver is flooded.

    rank 0 of 3:   sends  to 1, to 2        receives  from 2, from 1

AllGather, a ring: every rank sends to r+1 alone and receives from r-1 alone, first its own block, then what it has
just received. Chunks go round in groups of `interleave`, not block by block: a chunk is passed on `interleave` sends
after it was received, so that about that many chunks of staging memory suffice, however large the block is. Block by
block, ranks with less memory than a block would deadlock: each waits for its neighbour to free a chunk.

Messages are cut into chunks from their beginning, so both ends cut alike and no sizes travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Send:
    """One chunk that leaves."""

    peer: int
    first: int
    last: int
    """Bytes first..last of the input; of the output when it passes on what was received."""
    passes_on: int | None = None
    """Index of the receive whose bytes these are; None: the rank's own."""


@dataclass(frozen=True, slots=True)
class Receive:
    """One chunk that arrives."""

    peer: int
    first: int
    last: int
    """Bytes first..last of the output."""
    is_passed_on: bool = False


@dataclass(frozen=True, slots=True)
class Schedule:
    """What one rank does in one collective; sends in this order, receives in this order, the two side by side."""

    sends: list[Send]
    receives: list[Receive]
    own: tuple[int, int, int]
    """What stays: first byte in the input, first in the output, number of bytes."""


def all_to_all(rank: int, world: int, received: Sequence[int], sent: Sequence[int], chunk: int) -> Schedule:
    """Ring-ordered exchange.

    Args:
        received, sent: bytes from and to each rank.
        chunk: most bytes of a message.
    """
    input_at, output_at = _starts(sent), _starts(received)
    sends, receives = [], []
    for step in range(1, world):
        to, source = (rank + step) % world, (rank - step) % world
        sends += [Send(to, first, last) for first, last in _chunks(input_at[to], sent[to], chunk)]
        receives += [
            Receive(source, first, last) for first, last in _chunks(output_at[source], received[source], chunk)
        ]
    return Schedule(sends, receives, (input_at[rank], output_at[rank], sent[rank]))


def all_gather(rank: int, world: int, size: int, chunk: int, interleave: int) -> Schedule:
    """Ring.

    Args:
        size: bytes of each rank's block.
        chunk: most bytes of a message.
        interleave: chunks of a block that go round together.
    """
    to, source = (rank + 1) % world, (rank - 1) % world
    sends: list[Send] = []
    receives: list[Receive] = []
    chunks = _chunks(0, size, chunk)
    for begin in range(0, len(chunks), interleave):
        together = chunks[begin : begin + interleave]
        passed_on: list[int | None] = [None] * len(together)
        for step in range(world - 1):
            leaving, coming = (rank - step) % world * size, (source - step) % world * size
            for place, (first, last) in enumerate(together):
                offset = leaving if step else 0
                sends.append(Send(to, first + offset, last + offset, passed_on[place]))
                passed_on[place] = len(receives)
                receives.append(Receive(source, first + coming, last + coming, is_passed_on=step < world - 2))
    return Schedule(sends, receives, (0, rank * size, size))


def _starts(sizes: Sequence[int]) -> list[int]:
    starts, at = [], 0
    for size in sizes:
        starts.append(at)
        at += size
    return starts


def _chunks(start: int, size: int, chunk: int) -> list[tuple[int, int]]:
    return [(at, min(at + chunk, start + size)) for at in range(start, start + size, chunk)]
