"""Tells owners which rows a batch needs, and everybody which of them collide with the batch before and the one after.

Runs for a batch two steps before it is trained, on a lane and a process group of its own, so all of it is hidden:

  1. this rank's ids -> distinct rows, shard-major (each row travels once a rank, however often it is looked up)
  2. AllToAll of how many rows go to whom, AllToAll of the rows
  3. each owner compares the rows that *any* rank asked of it for this batch and for the one before, with a bitmap
  4. AllToAll of the answers back to whoever asked

An owner decides, over all ranks: rank 0 may update a row at t that only rank 1 needs at t+1.

Source: paper, technique 2, https://arxiv.org/abs/2604.24073.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from repro.comm.faults import blame
from repro.comm.groups import Way
from repro.comm.traced import start_all_to_all
from repro.comm.transport import as_transport
from repro.embedding.row_space import RowSpace
from repro.pipeline.ops import Op
from repro.timeline.recorder import Recorder

# N lookups of this rank, U distinct rows it needs, S rows asked of it by all ranks, D distinct ones of these, W ranks

Collide = Callable[["Bitmap", torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(bitmap, rows_S, this batch's distinct rows, the other batch's distinct rows) -> bool (S,): which rows to treat as
colliding."""


class Bitmap:
    """Membership of local rows in a set, reused from batch to batch."""

    def __init__(self, local_rows: int) -> None:
        self._bits = torch.zeros(local_rows, dtype=torch.bool)

    def contains(self, rows_S: torch.Tensor, member_D: torch.Tensor) -> torch.Tensor:
        """Which of `rows_S` are in `member_D`, bool (S,)."""
        self._bits[member_D] = True
        found_S = self._bits[rows_S]
        self._bits[member_D] = False
        return found_S


def colliding(bitmap: Bitmap, rows_S: torch.Tensor, _own_D: torch.Tensor, other_D: torch.Tensor) -> torch.Tensor:
    """Rows that both batches touch: the exact split."""
    return bitmap.contains(rows_S, other_D)


def everything(_bitmap: Bitmap, rows_S: torch.Tensor, _own_D: torch.Tensor, _other_D: torch.Tensor) -> torch.Tensor:
    """All rows: nothing is prefetched and no update waits, which is the synchronous exchange."""
    return torch.ones(rows_S.shape[0], dtype=torch.bool)


def nothing(_bitmap: Bitmap, rows_S: torch.Tensor, _own_D: torch.Tensor, _other_D: torch.Tensor) -> torch.Tensor:
    """No row: everything is prefetched, so colliding rows are read before their update: stale by one step."""
    return torch.zeros(rows_S.shape[0], dtype=torch.bool)


@dataclass
class Side:
    """The rows of a batch as seen from one end of the exchange, and how many concern each rank."""

    rows: torch.Tensor
    """Local rows of their owner, int64: at the asking end (U,) owner by owner, at the owner (S,) asker by asker."""
    counts: list[int]
    """Rows per rank at the other end, W numbers."""
    late: torch.Tensor
    """bool: rows that the batch before updates, hence looked up only after that."""
    urgent: torch.Tensor
    """bool: rows that the batch after reads, hence updated first. Known once that batch is announced."""

    def split_counts(self, mask: torch.Tensor) -> list[int]:
        """Rows per rank among those of `mask`."""
        return [int(part.sum()) for part in mask.split(self.counts)]


@dataclass(frozen=True)
class RowCounts:
    """Rows of one batch, as one rank counts them."""

    colliding: int
    """Distinct rows that this rank owns and the batch before touches, too."""
    distinct: int
    """Distinct rows that this rank owns and somebody needs."""
    late: int
    """Rows this rank needs that collide."""
    exchanged: int
    """Distinct rows this rank needs: what it receives."""
    lookups: int
    """Lookups of this rank."""


@dataclass
class PreparedBatch:
    """Everything known of a batch's rows before it is trained."""

    place_N: torch.Tensor
    """Lookup -> its row among the distinct ones, int64 (N,)."""
    asked: Side
    """Rows this rank needs."""
    served: Side
    """Rows this rank owns and others (or itself) need."""
    distinct_D: torch.Tensor
    """Distinct rows of `served`, ascending, int64 (D,)."""
    place_S: torch.Tensor
    """Row of `served` -> its place in `distinct_D`, int64 (S,)."""

    def row_counts(self) -> RowCounts:
        """What this batch's exchange moves and how much of it collides."""
        late_D = torch.zeros(self.distinct_D.shape[0], dtype=torch.bool)
        late_D[self.place_S[self.served.late]] = True
        return RowCounts(
            colliding=int(late_D.sum()),
            distinct=late_D.shape[0],
            late=int(self.asked.late.sum()),
            exchanged=self.asked.rows.shape[0],
            lookups=self.place_N.shape[0],
        )


def blamed(op: Op, way: Way, step: int) -> AbstractContextManager[None]:
    """Start `op` or wait for it inside: if it fails, the error names the rank that did not take part, `op` and `step`.

    Raises:
        RunError: it failed.
    """
    return blame(f"prioritized exchange, {op.label} of step {step}", as_transport(way).group)


class IdExchange:
    """Prepares batches in order. Every rank must call it for every batch."""

    def __init__(self, space: RowSpace, group: Way, recorder: Recorder, collide: Collide) -> None:
        self._space = space
        self._group = group
        self._recorder = recorder
        self._collide = collide
        self._bitmap = Bitmap(space.local_rows)
        self._last: PreparedBatch | None = None

    def prepare(self, ids_of_table: list[torch.Tensor], step: int) -> PreparedBatch:
        """Exchange the ids of the next batch; also settles what was open of the batch before.

        Args:
            ids_of_table: for each table, the ids looked up in it, int64; lookups are numbered in this order.
            step: the step that spans are recorded under.

        Raises:
            RunError: a rank died or stalled.
        """
        key_N = torch.cat([self._space.keys(table, ids) for table, ids in enumerate(ids_of_table)])
        key_U, place_N = torch.unique(key_N, return_inverse=True)
        asked = self._asked(key_U)
        served = self._tell_owners(asked, step)
        distinct_D, place_S = torch.unique(served.rows, return_inverse=True)
        batch = PreparedBatch(place_N, asked, served, distinct_D, place_S)
        if self._last is not None:
            self._settle(self._last, batch, step)
        self._last = batch
        return batch

    def _asked(self, key_U: torch.Tensor) -> Side:
        rank_edges = torch.arange(self._space.world + 1) * self._space.local_rows
        counts = torch.searchsorted(key_U, rank_edges).diff().tolist()
        none = torch.zeros(key_U.shape[0], dtype=torch.bool)
        return Side(rows=key_U % self._space.local_rows, counts=counts, late=none, urgent=none)

    def _tell_owners(self, asked: Side, step: int) -> Side:
        counts = torch.empty(self._space.world, dtype=torch.int64)
        ones = [1] * self._space.world
        self._all_to_all(counts, torch.tensor(asked.counts), ones, ones, Op.ID_SPLITS_ALL_TO_ALL, step)
        served_counts = counts.tolist()
        rows_S = torch.empty(sum(served_counts), dtype=torch.int64)
        self._all_to_all(rows_S, asked.rows, served_counts, asked.counts, Op.ID_ALL_TO_ALL, step)
        none = torch.zeros(rows_S.shape[0], dtype=torch.bool)
        return Side(rows=rows_S, counts=served_counts, late=none, urgent=none)

    def _settle(self, before: PreparedBatch, batch: PreparedBatch, step: int) -> None:
        """Which rows of `before` are urgent and which of `batch` are late, at both ends."""
        urgent_S = self._collide(self._bitmap, before.served.rows, before.distinct_D, batch.distinct_D)
        late_S = self._collide(self._bitmap, batch.served.rows, batch.distinct_D, before.distinct_D)
        before.served.urgent, batch.served.late = urgent_S, late_S
        pairs_out = zip(urgent_S.split(before.served.counts), late_S.split(batch.served.counts), strict=True)
        answer = torch.cat([part for pair in pairs_out for part in pair]).to(torch.uint8)
        sent = [u + n for u, n in zip(before.served.counts, batch.served.counts, strict=True)]
        received = [u + n for u, n in zip(before.asked.counts, batch.asked.counts, strict=True)]
        heard = torch.empty(sum(received), dtype=torch.uint8)
        self._all_to_all(heard, answer, received, sent, Op.COLLISION_MASK_ALL_TO_ALL, step)
        sizes = [n for pair in zip(before.asked.counts, batch.asked.counts, strict=True) for n in pair]
        parts = heard.to(torch.bool).split(sizes)
        before.asked.urgent, batch.asked.late = torch.cat(parts[0::2]), torch.cat(parts[1::2])

    def _all_to_all(
        self, output: torch.Tensor, input: torch.Tensor, received: list[int], sent: list[int], op: Op, step: int
    ) -> None:
        with blamed(op, self._group, step):
            start_all_to_all(output, input, received, sent, op, self._group, self._recorder, step).finish()
