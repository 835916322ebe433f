"""Jagged request blocks as flat words, so that one AllToAll moves a sample's every field.

A chunk for one destination is int32 words, fields one after another: request ids and times (two words each), UIH event
times (two words each), every UIH feature, every candidate feature, labels. Lengths are not in it: the receiver
knows them already.
"""

from __future__ import annotations

import numpy as np

from repro.data.dataset import RequestBlock

# N requests, T UIH events of them, C candidates of them, W ranks, P parts

WORD = np.dtype(np.int32)


def take(block: RequestBlock, order_N: np.ndarray) -> RequestBlock:
    """Requests `order_N` (int64 positions in `block`) in that order, their jagged fields with them."""
    event_T = _jagged_positions(block.uih_lengths, order_N)
    candidate_C = _jagged_positions(block.candidate_counts, order_N)
    return RequestBlock(
        request_id=block.request_id[order_N],
        request_time=block.request_time[order_N],
        uih_lengths=block.uih_lengths[order_N],
        candidate_counts=block.candidate_counts[order_N],
        uih_time=block.uih_time[event_T],
        uih={name: column[event_T] for name, column in block.uih.items()},
        candidate={name: column[candidate_C] for name, column in block.candidate.items()},
        label=block.label[candidate_C],
    )


def concatenate(parts_P: list[RequestBlock]) -> RequestBlock:
    """Parts one after another."""
    first = parts_P[0]
    return RequestBlock(
        request_id=np.concatenate([part.request_id for part in parts_P]),
        request_time=np.concatenate([part.request_time for part in parts_P]),
        uih_lengths=np.concatenate([part.uih_lengths for part in parts_P]),
        candidate_counts=np.concatenate([part.candidate_counts for part in parts_P]),
        uih_time=np.concatenate([part.uih_time for part in parts_P]),
        uih={name: np.concatenate([part.uih[name] for part in parts_P]) for name in first.uih},
        candidate={name: np.concatenate([part.candidate[name] for part in parts_P]) for name in first.candidate},
        label=np.concatenate([part.label for part in parts_P]),
    )


def pack(block: RequestBlock, counts_W: np.ndarray) -> list[np.ndarray]:
    """One chunk a destination, int32 words; the first `counts_W[0]` requests go to rank 0, the next to rank 1, ..."""
    request_cuts = np.cumsum(counts_W)[:-1]
    event_cuts = _cuts(block.uih_lengths, request_cuts)
    candidate_cuts = _cuts(block.candidate_counts, request_cuts)
    fields = [
        (block.request_id, request_cuts),
        (block.request_time, request_cuts),
        (block.uih_time, event_cuts),
        *((block.uih[name], event_cuts) for name in sorted(block.uih)),
        *((block.candidate[name], candidate_cuts) for name in sorted(block.candidate)),
        (block.label, candidate_cuts),
    ]
    pieces = [[piece.view(WORD) for piece in np.split(column, cuts)] for column, cuts in fields]
    return [np.concatenate([piece[destination] for piece in pieces]) for destination in range(counts_W.size)]


def packed_words(sizes_N2: np.ndarray, like: RequestBlock) -> int:
    """Words of a chunk of requests with these (UIH length, candidates); `like` has the same features."""
    events, candidates = (int(total) for total in sizes_N2.sum(axis=0))
    return 4 * len(sizes_N2) + (2 + len(like.uih)) * events + (len(like.candidate) + 1) * candidates


def unpack(words: np.ndarray, sizes_N2: np.ndarray, like: RequestBlock) -> RequestBlock:
    """Inverse of `pack` for one chunk, given the (UIH length, candidates) of its requests, int64 (N, 2)."""
    requests = len(sizes_N2)
    events, candidates = (int(total) for total in sizes_N2.sum(axis=0))
    reader = _WordReader(words)
    return RequestBlock(
        request_id=reader.read(requests, np.dtype(np.int64)),
        request_time=reader.read(requests, np.dtype(np.int64)),
        uih_lengths=sizes_N2[:, 0].copy(),
        candidate_counts=sizes_N2[:, 1].copy(),
        uih_time=reader.read(events, np.dtype(np.int64)),
        uih={name: reader.read(events, WORD) for name in sorted(like.uih)},
        candidate={name: reader.read(candidates, WORD) for name in sorted(like.candidate)},
        label=reader.read(candidates, np.dtype(np.float32)),
    )


class _WordReader:
    def __init__(self, words: np.ndarray) -> None:
        self._words = words
        self._next = 0

    def read(self, count: int, dtype: np.dtype) -> np.ndarray:
        begin = self._next
        self._next += count * dtype.itemsize // WORD.itemsize
        return self._words[begin : self._next].view(dtype)


def _cuts(lengths_N: np.ndarray, request_cuts: np.ndarray) -> np.ndarray:
    ends = np.concatenate([[0], np.cumsum(lengths_N)])
    cuts: np.ndarray = ends[request_cuts]
    return cuts


def _jagged_positions(lengths_N: np.ndarray, order_N: np.ndarray) -> np.ndarray:
    """Positions of the elements of requests `order_N`, in that order, int64."""
    starts_N = np.cumsum(lengths_N) - lengths_N
    chosen = lengths_N[order_N]
    before = np.cumsum(chosen) - chosen
    positions: np.ndarray = np.repeat(starts_N[order_N] - before, chosen) + np.arange(int(chosen.sum()))
    return positions
