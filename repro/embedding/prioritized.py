"""Prioritized embedding updates: sharded tables whose exchange hides behind dense work, exactly.

Takes the place of TorchRec's sharded `EmbeddingCollection` in the model. Rows of step t+1 that step t does not touch
(*exclusive*) are looked up and sent while t computes; gradients of rows that t+1 does not read follow without blocking.
Only rows that both steps touch (*collision*) stay on the critical path: their gradients go first, the rows are updated,
looked up again and sent. Every row is read after all its updates, so the numbers are those of synchronous training,
bit for bit. Comments number the paper's steps (technique 2, https://arxiv.org/abs/2604.24073); labels are the step
plan's ops.

Which rows count as colliding is a parameter (`repro.embedding.id_exchange`): with `everything` this is the
synchronous exchange, with `nothing` the stale one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import astuple
from typing import Any

import torch
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from repro.comm.groups import Way
from repro.comm.traced import CollectiveInFlight, start_all_to_all
from repro.comm.transport import as_transport
from repro.config import SparseOptimizer
from repro.data.schema import Feature
from repro.device.lane import Lane
from repro.embedding.id_exchange import Collide, IdExchange, PreparedBatch, RowCounts, Side, blamed, nothing
from repro.embedding.row_space import RowSpace
from repro.embedding.row_update import row_update
from repro.embedding.tables import feature_keys, fill_rows
from repro.errors import RunError
from repro.pipeline.ops import Op
from repro.timeline.recorder import Recorder

# N lookups of this rank, U distinct rows it needs, S rows asked of it, D distinct ones of these, K width

LOOKAHEAD = 2
"""Batches that must have been announced, the one in training included (fewer at the end)."""

COUNTS, READ_AHEAD = "counts_of_next", "read_ahead"
"""Names in the state of what is not this rank's rows."""


class Values:
    """Embeddings of one key, with the accessor of TorchRec's `JaggedTensor`."""

    def __init__(self, values: torch.Tensor) -> None:
        self._values = values

    def values(self) -> torch.Tensor:
        """float32 (ids of the key, K)."""
        return self._values


class PrioritizedEmbeddings(nn.Module):
    """Row-wise sharded float32 tables of one width, with a fused, split optimizer."""

    def __init__(
        self,
        features: tuple[Feature, ...],
        width: int,
        optimizer: SparseOptimizer,
        learning_rate: Callable[[], float],
        *,
        collide: Collide,
        ids: Way,
        priority: Way,
        exclusive: Way,
        recorder: Recorder,
        device: torch.device,
        seed: int,
    ) -> None:
        """
        Args:
            learning_rate: asked at each backward, so a schedule may tick every step.
            ids, priority, exclusive: process groups that nothing else uses; one thread issues on each.
            seed: rows start as those of `repro.embedding.tables.fill_rows`.
        """
        super().__init__()
        between = as_transport(priority)
        self._rank, self._world = between.rank, between.world
        self._keys_of_table = [feature_keys(feature) for feature in features]
        self._width = width
        self._learning_rate = learning_rate
        self._priority, self._exclusive = priority, exclusive
        self._recorder = recorder
        self._space = RowSpace(tuple(feature.vocabulary for feature in features), self._world)
        self._tables = tuple(feature.name for feature in features)
        self.weights = self._initial(seed).to(device)
        """This rank's rows, float32 (local rows, K). Not a parameter: it is updated here, row by row."""
        self._update = row_update(optimizer, self.weights)
        self._id_exchange = IdExchange(self._space, ids, recorder, collide)
        self._id_lane, self._background = Lane("ids"), Lane("exclusive")
        self._announced: deque[Future[PreparedBatch]] = deque()
        self._ended = False
        self._early: Future[torch.Tensor] | None = None
        self._late: tuple[CollectiveInFlight, torch.Tensor] | None = None
        self._stale = collide is nothing
        self._counts_of_first: RowCounts | None = None
        self._anchor = torch.zeros(1, device=device, requires_grad=True)
        """Gives the autograd function an input that asks for gradients."""
        self.counts: list[RowCounts] = []
        """Of each step so far."""

    def announce(self, features: KeyedJaggedTensor | None) -> None:
        """The next batch to come; None after the last. Its ids are exchanged from now on."""
        if features is None:
            self._ended = True
            return
        ids = [torch.cat([features[key].values() for key in keys]).cpu() for keys in self._keys_of_table]
        step = self._recorder.step
        self._announced.append(self._id_lane.submit(lambda: self._id_exchange.prepare(ids, step)))

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Values]:
        """Embeddings of each key of the oldest announced batch, which must be this one.

        Raises:
            RunError: the batch was not announced, or too few batches after it were; a rank died or stalled.
        """
        if not self._announced or (len(self._announced) < LOOKAHEAD and not self._ended):
            raise RunError(f"{LOOKAHEAD} batches must be announced before one is trained")
        batch = self._wait(self._announced.popleft())
        after = self._wait(self._announced[0]) if self._announced else None
        row_UK = self._gather(batch)
        self._start_early(after)
        row_UK = _TrainedRows.apply(self._anchor, row_UK, lambda gradient: self._backward(batch, after, gradient))
        embedding_NK = row_UK.index_select(0, batch.place_N.to(row_UK.device))
        self.counts.append(self._counts_of_first or batch.row_counts())
        self._counts_of_first = None
        sizes = [features[key].values().shape[0] for keys in self._keys_of_table for key in keys]
        keys = [key for keys in self._keys_of_table for key in keys]
        if sum(sizes) != embedding_NK.shape[0]:
            raise RunError("the batch in training is not the one announced")
        return {key: Values(part) for key, part in zip(keys, embedding_NK.split(sizes), strict=True)}

    def drain(self) -> None:
        """Apply every gradient still on its way. Tables are those of synchronous training afterwards, and the lanes
        have nothing to do until the next step. That changes no number: rows are read after all their updates anyway."""
        self._id_lane.drain()
        self._background.drain()

    def state(self) -> dict[str, torch.Tensor]:
        """All that a run needs to go on after `drain`, by name: this rank's rows, what their optimizer remembers, the
        counts of the next batch (they compare it with the one before), and where rows are read stale, those of the next
        batch. Rows and optimizer state share memory with this module; `resume` takes the others.
        """
        state = {"weights": self.weights, **self._update.state()}
        if self._announced:
            state[COUNTS] = torch.tensor(astuple(self._announced[0].result().row_counts()))
            if self._stale and self._early is not None:
                state[READ_AHEAD] = self._early.result()
        return state

    def resume(self, state: dict[str, torch.Tensor]) -> None:
        """Before the first batch is announced: what `state` said beside rows and optimizer state."""
        if COUNTS in state:
            self._counts_of_first = RowCounts(*state[COUNTS].tolist())
        if READ_AHEAD in state:
            self._early = Future()
            self._early.set_result(state[READ_AHEAD].to(self.weights.device))

    def close(self) -> None:
        """End the lanes."""
        self._id_lane.close()
        self._background.close()

    def local_rows(self) -> list[tuple[str, int, torch.Tensor]]:
        """(table, its first local row, local rows (n, K)), as `repro.embedding.tables.local_rows`."""
        found = []
        for index, name in enumerate(self._tables):
            first, count = self._space.owned(index, self._rank)
            offset = self._space.offsets[index]
            found.append((name, first, self.weights[offset : offset + count]))
        return found

    def _gather(self, batch: PreparedBatch) -> torch.Tensor:
        """Forward, part 3: the exclusive rows (started a step ago) and the collision rows of this batch, merged."""
        if self._early is None:  # the first batch: nothing came before it, so all its rows are exclusive
            self._start_early(batch)
        assert self._early is not None
        early = self._wait(self._early)
        row_UK = early.new_empty((batch.asked.rows.shape[0], self._width))
        row_UK[~batch.asked.late] = early
        if self._late is not None:
            in_flight, late = self._late
            with blamed(Op.COLLISION_EMBEDDING_ALL_TO_ALL, self._priority, self._recorder.step):
                in_flight.wait()
            row_UK[batch.asked.late] = late
        return row_UK

    def _start_early(self, after: PreparedBatch | None) -> None:
        """Forward, parts 1 and 2, behind dense work: the lane has the exclusive gradients of t-1 before it (1); then it
        looks up and sends the rows of t+1 that t does not touch (2)."""
        if after is None:
            return
        step = self._recorder.step
        self._early = self._background.submit(lambda: self._send_early(after, step))

    def _send_early(self, batch: PreparedBatch, step: int) -> torch.Tensor:
        out = self.weights[batch.served.rows[~batch.served.late].to(self.weights.device)]
        in_flight, received = self._move(
            out,
            (batch.asked, ~batch.asked.late),
            (batch.served, ~batch.served.late),
            Op.EXCLUSIVE_EMBEDDING_ALL_TO_ALL,
            self._exclusive,
            step,
        )
        with blamed(Op.EXCLUSIVE_EMBEDDING_ALL_TO_ALL, self._exclusive, step):
            in_flight.finish()
        return received

    def _backward(self, batch: PreparedBatch, after: PreparedBatch | None, gradient_UK: torch.Tensor) -> None:
        """Backward: collision gradients, their rows' update and resending, then the exclusive gradients."""
        gradient_UK = gradient_UK / self._world
        rate, step = self._learning_rate(), self._recorder.step
        # 4. Collision gradients first, and wait for them.
        urgent_U, urgent_S = batch.asked.urgent, batch.served.urgent
        in_flight, received = self._move(
            gradient_UK[urgent_U],
            (batch.served, urgent_S),
            (batch.asked, urgent_U),
            Op.COLLISION_GRADIENT_ALL_TO_ALL,
            self._priority,
            step,
        )
        with blamed(Op.COLLISION_GRADIENT_ALL_TO_ALL, self._priority, step):
            in_flight.wait()
        with self._recorder.during(Op.COLLISION_UPDATE):
            self._update_rows(batch, urgent_S, received, rate)
        # 5. Their rows, updated, to whoever needs them at t+1; waited for there.
        self._late = None
        if after is not None:
            with self._recorder.during(Op.COLLISION_LOOKUP):
                out = self.weights[after.served.rows[after.served.late].to(self.weights.device)]
            self._late = self._move(
                out,
                (after.asked, after.asked.late),
                (after.served, after.served.late),
                Op.COLLISION_EMBEDDING_ALL_TO_ALL,
                self._priority,
                step,
            )
        # 6. The exclusive gradients follow, and nobody waits.
        exclusive = gradient_UK[~urgent_U]
        self._background.submit(lambda: self._apply_exclusive(batch, exclusive, rate, step))

    def _apply_exclusive(self, batch: PreparedBatch, gradient: torch.Tensor, rate: float, step: int) -> None:
        in_flight, received = self._move(
            gradient,
            (batch.served, ~batch.served.urgent),
            (batch.asked, ~batch.asked.urgent),
            Op.EXCLUSIVE_GRADIENT_ALL_TO_ALL,
            self._exclusive,
            step,
        )
        with blamed(Op.EXCLUSIVE_GRADIENT_ALL_TO_ALL, self._exclusive, step):
            in_flight.finish()
        self._update_rows(batch, ~batch.served.urgent, received, rate)

    def _update_rows(self, batch: PreparedBatch, mask_S: torch.Tensor, gradient: torch.Tensor, rate: float) -> None:
        """Sum the ranks' gradients of each row, in rank order, and update the rows. A row's gradients all come at once:
        its owner decided for all ranks whether it collides, so the sum is the same however rows are split."""
        place = batch.place_S[mask_S]
        touched_D = torch.zeros(batch.distinct_D.shape[0], dtype=torch.bool)
        touched_D[place] = True
        compact_D = touched_D.cumsum(0) - 1
        total = gradient.new_zeros((int(touched_D.sum()), self._width))
        total.index_add_(0, compact_D[place].to(gradient.device), gradient)
        self._update(batch.distinct_D[touched_D].to(gradient.device), total, rate)

    def _move(
        self,
        out: torch.Tensor,
        receiving: tuple[Side, torch.Tensor],
        sending: tuple[Side, torch.Tensor],
        op: Op,
        group: Way,
        step: int,
    ) -> tuple[CollectiveInFlight, torch.Tensor]:
        """AllToAll of rows: those of a mask at the sending end become those of the mask at the receiving end."""
        received = [count * self._width for count in receiving[0].split_counts(receiving[1])]
        sent = [count * self._width for count in sending[0].split_counts(sending[1])]
        buffer = out.new_empty(sum(received))
        with blamed(op, group, step):
            in_flight = start_all_to_all(buffer, out.reshape(-1), received, sent, op, group, self._recorder, step)
        return in_flight, buffer.view(-1, self._width)

    def _wait(self, future: Future[Any]) -> Any:
        """Result of a lane's work. What the main thread waits for here is what could not be hidden."""
        if future.done():
            return future.result()
        with self._recorder.waiting():
            return future.result()

    def _initial(self, seed: int) -> torch.Tensor:
        weights = torch.zeros((self._space.local_rows, self._width))
        for index, offset in enumerate(self._space.offsets):
            first, count = self._space.owned(index, self._rank)
            fill_rows(weights[offset : offset + count], seed, self._tables[index], first)
        return weights


class _TrainedRows(torch.autograd.Function):
    """Identity forward; backward hands the gradient to the exchange instead of to autograd."""

    @staticmethod
    def forward(
        ctx: Any, anchor: torch.Tensor, row_UK: torch.Tensor, backward: Callable[[torch.Tensor], None]
    ) -> torch.Tensor:
        ctx.backward_of_exchange = backward
        return row_UK.view_as(row_UK)

    @staticmethod
    def backward(ctx: Any, *gradient: Any) -> tuple[None, None, None]:
        ctx.backward_of_exchange(gradient[0])
        return None, None, None
