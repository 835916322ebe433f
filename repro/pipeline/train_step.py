"""One training run of one rank, readable top to bottom: the path of a batch.

read (data) -> exchange (balance) -> collate -> pipeline (`repro.pipeline.build`): ids AllToAll -> lookup ->
embeddings AllToAll -> dense forward -> loss -> dense backward -> gradients AllToAll, row update; dense AllReduce ->
optimizer step
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from repro.balance.autotune import TuneState
from repro.balance.exchange import BalancedExchange, Exchange, Unbalanced
from repro.balance.tuning import EqualShares, Shares, TunedShares
from repro.comm.groups import Groups
from repro.comm.traced import traced_collectives
from repro.comm.transport.choose import carried_by, let_go
from repro.config import RunConfig
from repro.data.batch import JaggedBatch, collate
from repro.data.dataset import PreparedDataset, RequestBlock
from repro.data.prefetch import prefetch
from repro.device import Device
from repro.embedding.id_exchange import RowCounts
from repro.pipeline.build import Built, build
from repro.pipeline.instrument import advance_behind_compute
from repro.pipeline.ops import Op
from repro.pipeline.pace import Pace, PacedCompute
from repro.timeline.recorder import Recorder


@dataclass(frozen=True)
class RankStep:
    """What one rank knows of one step."""

    step: int
    requests: int
    labels: int
    positives: int
    uih_tokens: int
    longest_uih: int
    loss_sum: float
    rows: RowCounts | None
    """None where nobody counted."""


@dataclass(frozen=True)
class Position:
    """Where a run begins or goes on."""

    step: int = 0
    """The next to be trained."""
    tuned: TuneState | None = None
    """What AutoTune had learned; None: nothing."""


START = Position()


@dataclass(frozen=True)
class Trained:
    """The outcome on one rank: the model as trained, and its steps."""

    built: Built
    steps: list[RankStep]


class Training:
    """A run under way on this rank; may pause between steps. Every rank of `groups` must make the same calls."""

    def __init__(
        self,
        config: RunConfig,
        dataset: PreparedDataset,
        device: Device,
        groups: Groups,
        recorder: Recorder,
        learning_rate: Callable[[], float] | None = None,
        pace: Pace | None = None,
        position: Position = START,
    ) -> None:
        """See `repro.pipeline.build.build` for arguments and errors.

        Args:
            pace: how long dense compute is made to last.
            position: where to begin; the state that belongs to it is restored afterwards, before the first step.
        """
        self.config = config
        self.recorder = recorder
        self._groups = groups = carried_by(config.arm.transport, groups, device.torch_device)
        self.built = build(config, dataset, device, groups, recorder, learning_rate)
        self._shares = TunedShares(groups.world, state=position.tuned) if config.arm.balance.autotune else EqualShares()
        exchange = _exchange(config, groups, recorder, self._shares, position.step)
        self.paced = PacedCompute(self.built.model, pace, device) if pace is not None else None
        advance_behind_compute(self.built.model, exchange)
        self._in_flight: deque[JaggedBatch] = deque()
        blocks = prefetch(blocks_of_rank(config, dataset, groups, position.step))
        batches = _batches(blocks, exchange, device, recorder, self._in_flight)
        announce = self.built.announce
        self._source = batches if announce is None else _announced(batches, announce)
        self._first = self._taken = self._done = position.step
        self._losses: list[torch.Tensor] = []
        self._trained: list[JaggedBatch] = []

    @property
    def steps_done(self) -> int:
        """Optimizer steps so far, those before the run was cut short included: the position of schedules."""
        return self._done

    @property
    def tuned(self) -> TuneState | None:
        """What AutoTune has learned; None where it does not run."""
        return self._shares.state if isinstance(self._shares, TunedShares) else None

    def run(self, steps: int, on_step: Callable[[], None] = lambda: None) -> None:
        """Train the next `steps` global batches.

        Raises:
            RunError: a rank died, or the ranks disagree on the data.
        """
        with traced_collectives(self.recorder):
            for _ in range(steps):
                self.recorder.begin_step(self.steps_done)
                loss_sum, _logit_C = self.built.pipeline.progress(self._source)
                self._losses.append(loss_sum)
                self._trained.append(self._in_flight.popleft())
                self._done += 1
                on_step()

    def take_steps(self) -> list[RankStep]:
        """What this rank knows of the steps since the last call."""
        steps = range(self._taken, self._done)
        counts: list[RowCounts | None] = [*self.built.row_counts()[self._taken - self._first :]] or [None] * len(steps)
        done = zip(steps, self._trained, self._losses, counts, strict=True)
        found = [_rank_step(step, batch, float(loss), rows) for step, batch, loss, rows in done]
        self._taken, self._trained, self._losses = self._done, [], []
        return found

    def outcome(self) -> Trained:
        """The model and what this rank knows of the steps not taken yet; ends the run."""
        self.built.finish()
        let_go(self._groups)
        return Trained(self.built, self.take_steps())


def train(config: RunConfig, dataset: PreparedDataset, device: Device, groups: Groups, recorder: Recorder) -> Trained:
    """Train `config.steps` global batches without a pause; see `Training`."""
    training = Training(config, dataset, device, groups, recorder)
    training.run(config.steps)
    return training.outcome()


def _exchange(config: RunConfig, groups: Groups, recorder: Recorder, shares: Shares, first: int) -> Exchange:
    if config.arm.partition == "identity" or groups.world == 1:
        return Unbalanced()
    return BalancedExchange(
        config.arm.partition,
        groups.balance,
        recorder,
        capacity=config.batch,
        balance=config.arm.balance,
        shares=shares,
        first=first,
    )


def blocks_of_rank(
    config: RunConfig, dataset: PreparedDataset, groups: Groups, first: int = 0
) -> Iterator[tuple[RequestBlock, int]]:
    """What this rank's reader delivers, in order, each with the number of labels in its global batch."""
    for t in range(first, config.steps):
        rows = dataset.global_rows(t, config.global_batch)
        labels = int(dataset.candidate_counts(rows).sum())
        yield dataset.read(rows[groups.rank :: groups.world], config.max_uih), labels


def _batches(
    blocks: Iterator[tuple[RequestBlock, int]],
    exchange: Exchange,
    device: Device,
    recorder: Recorder,
    in_flight: deque[JaggedBatch],
) -> Iterator[JaggedBatch]:
    """This rank's batches in order; each also goes into `in_flight`, oldest first. The next is being exchanged."""
    labels: deque[int] = deque()

    def start_next() -> None:
        block, global_labels = next(blocks, (None, 0))
        labels.append(global_labels)
        exchange.start(block)

    with recorder.during(Op.DATA_LOAD):
        start_next()
    while True:
        with recorder.during(Op.DATA_LOAD):
            share = exchange.finish()
            if share is None:
                break
            batch = device.pinned(collate(share, labels.popleft()))
            start_next()
        in_flight.append(batch)
        yield batch


def _announced(
    batches: Iterator[JaggedBatch], announce: Callable[[KeyedJaggedTensor | None], None]
) -> Iterator[JaggedBatch]:
    """The batches, each announced when it comes and passed on when the one after it has come."""
    before: JaggedBatch | None = None
    for batch in batches:
        announce(batch.features)
        if before is not None:
            yield before
        before = batch
    announce(None)
    if before is not None:
        yield before


def _rank_step(step: int, batch: JaggedBatch, loss_sum: float, rows: RowCounts | None) -> RankStep:
    return RankStep(
        step=step,
        requests=int((batch.request_id >= 0).sum()),
        labels=batch.labels.numel(),
        positives=int(batch.labels.sum()),
        uih_tokens=int(batch.uih_lengths.sum()),
        longest_uih=int(batch.uih_lengths.max()),
        loss_sum=loss_sum,
        rows=rows,
    )
