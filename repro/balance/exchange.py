"""Moves samples between ranks so that each trains its share of the balanced partition, hidden behind compute.

Three stages, as in the paper (technique 1), each started by the hook after the one before:
  1. AllGather of a header (below), UIH lengths and candidate counts         started when the next batch is fetched
  2. AllGather of the composite candidate lengths (ids over all features)    started when dense forward begins
  3. the partition maps every sample of the global batch to a rank, and one
     AllToAll moves them, packed                                             started when dense backward begins

so batch t+1 travels while t computes. After stage 2 every rank knows the size of every sample, so stage 3 exchanges no
split sizes. Samples arrive in global-batch order, whatever the partition: a rank's batch is a deterministic function
of the assignment.

The header carries a sequence number (ranks out of step are an error, not a garbled batch), whether the rank has a
batch, so that ranks whose data ends at different times end together (no rank leaves a collective that others enter),
and how long an earlier batch took, for AutoTune.

Usable without this project's trainer: give it NumPy request blocks and a gloo group; `exchange(block)` runs all stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np
import torch

from repro.balance.cost import SampleCost
from repro.balance.packing import concatenate, pack, packed_words, take, unpack
from repro.balance.partition import assign
from repro.balance.tuning import LAG, EqualShares, Shares
from repro.comm.faults import blame
from repro.comm.groups import Way
from repro.comm.traced import CollectiveInFlight, PendingGather, start_all_gather, start_all_to_all
from repro.comm.transport import as_transport
from repro.config import BalanceConfig, Partition
from repro.data.dataset import RequestBlock
from repro.errors import InputError, RunError
from repro.pipeline.ops import Op
from repro.timeline.recorder import Recorder

# W ranks, K most requests a reader delivers, G samples of the global batch, N samples in hand, H header fields

EndPolicy = Literal["drop", "drain"]
"""When readers run out at different times. drop: all ranks stop with the first. drain: what is left is dealt to all
ranks until the last reader is empty. Either way a rank without samples trains one empty, weightless request."""

HEADER = 3
SEQUENCE, COUNT, NANOSECONDS = range(HEADER)
NO_BATCH = -1


class Exchange(Protocol):
    """From what this rank's reader delivers to what this rank trains, one batch at a time."""

    def start(self, block: RequestBlock | None) -> None:
        """Begin with this rank's next batch; None when its reader is empty."""

    def advance(self) -> None:
        """Go on to the next stage, if a batch is under way."""

    def finish(self) -> RequestBlock | None:
        """This rank's share of the batch that was started; None when training ends."""


class Unbalanced:
    """Every rank trains what its reader delivered."""

    def __init__(self) -> None:
        self._block: RequestBlock | None = None

    def start(self, block: RequestBlock | None) -> None:
        """Keep it."""
        self._block = block

    def advance(self) -> None:
        """Nothing is under way."""

    def finish(self) -> RequestBlock | None:
        """The block itself."""
        return self._block


@dataclass(frozen=True)
class _Sizes:
    """Of every sample of the global batch, in global-batch order (sample j of rank r before sample j of r+1)."""

    reader_G: np.ndarray
    uih_G: np.ndarray
    candidates_G: np.ndarray


class BalancedExchange:
    """The three-stage exchange. Every rank of `group` must make the same calls in the same order."""

    def __init__(
        self,
        partition: Partition,
        group: Way,
        recorder: Recorder,
        *,
        capacity: int,
        balance: BalanceConfig | None = None,
        at_end: EndPolicy = "drop",
        shares: Shares | None = None,
        first: int = 0,
    ) -> None:
        """
        Args:
            group: a gloo group of its own, so that nothing else's order can interfere.
            capacity: most requests a reader delivers at a time, equal on all ranks.
            balance: settings of the partition, equal on all ranks.
            shares: what each rank should get of the work; equal by default.
            first: number of the first batch, for a run that goes on from a checkpoint.
        """
        if at_end not in get_args(EndPolicy):
            raise InputError(f"at_end: {at_end!r} is not one of {', '.join(get_args(EndPolicy))}")
        self._partition = partition
        self._balance = balance or BalanceConfig()
        self._cost = SampleCost(attention_length=self._balance.attention_length)
        self._group = as_transport(group)
        self._world, self._rank = self._group.world, self._group.rank
        self._recorder = recorder
        self._capacity = capacity
        self._at_end = at_end
        self._shares: Shares = shares or EqualShares()
        self._reported = 0
        self._sequence = first
        self._block: RequestBlock | None = None
        self._lengths: PendingGather | None = None
        self._composite: PendingGather | None = None
        self._sizes: _Sizes | None = None
        self._moving: tuple[CollectiveInFlight, torch.Tensor, list[int]] | None = None
        self._kept_G: np.ndarray | None = None
        self._ended = False

    def __call__(self, block: RequestBlock | None) -> RequestBlock | None:
        """All stages at once."""
        self.start(block)
        return self.finish()

    def start(self, block: RequestBlock | None) -> None:
        """Stage 1 of the next batch.

        Raises:
            RunError: the block holds more requests than `capacity`.
        """
        self._sequence += 1
        if block is not None:
            self._block = block
        elif self._block is not None:
            self._block = take(self._block, np.zeros(0, dtype=np.int64))
        self._sizes = self._kept_G = self._moving = self._composite = None
        own = np.zeros(HEADER + 2 * self._capacity, dtype=np.int64)
        own[SEQUENCE], own[COUNT] = self._sequence, NO_BATCH
        self._reported = self._recorder.step - LAG
        own[NANOSECONDS] = self._recorder.dense_ns(self._reported)
        if block is not None:
            count = block.request_id.size
            if count > self._capacity:
                raise RunError(f"rank {self._rank}: a batch of {count} requests exceeds the capacity {self._capacity}")
            own[COUNT] = count
            own[HEADER : HEADER + count] = block.uih_lengths
            own[HEADER + self._capacity : HEADER + self._capacity + count] = block.candidate_counts
        self._lengths = start_all_gather(torch.from_numpy(own), Op.LENGTHS_ALL_GATHER, self._group, self._recorder)

    def advance(self) -> None:
        """Stage 2 after stage 1, stage 3 after stage 2; nothing when no batch is under way or all stages are."""
        if self._lengths is not None:
            with self._recorder.during(Op.DATA_LOAD):
                self._gather_composite()
        elif self._composite is not None:
            with self._recorder.during(Op.PARTITION):
                self._move_samples()

    def finish(self) -> RequestBlock | None:
        """This rank's share, in global-batch order; None when training ends on all ranks.

        Raises:
            RunError: a rank died, stalled, is out of step, or reads another data set.
        """
        while self._lengths is not None or self._composite is not None:
            self.advance()
        if self._ended:
            return None
        assert self._moving is not None and self._sizes is not None and self._kept_G is not None
        in_flight, words, splits = self._moving
        with blame(self._stage(Op.SAMPLES_ALL_TO_ALL), self._group.group):
            in_flight.wait()
        with self._recorder.during(Op.DATA_LOAD):
            chunks = np.split(words.numpy(), np.cumsum(splits)[:-1])
            reader_N = self._sizes.reader_G[self._kept_G]
            parts = [
                unpack(chunk, self._sizes_of(self._kept_G[reader_N == reader]), self._own)
                for reader, chunk in enumerate(chunks)
            ]
            arrived_N = np.argsort(reader_N, kind="stable")
            return take(concatenate(parts), np.argsort(arrived_N, kind="stable"))

    def _gather_composite(self) -> None:
        assert self._lengths is not None
        with blame(self._stage(Op.LENGTHS_ALL_GATHER), self._group.group):
            gathered_WH = self._lengths.wait().numpy()
        self._lengths = None
        self._check_sequence(gathered_WH[:, SEQUENCE])
        self._shares.measured(self._reported, gathered_WH[:, NANOSECONDS])
        count_W = gathered_WH[:, COUNT]
        out_W = count_W == NO_BATCH
        self._ended = bool(out_W.any() if self._at_end == "drop" else out_W.all())
        if self._ended:
            return
        lengths_WK, candidates_WK = np.split(gathered_WH[:, HEADER:], 2, axis=1)
        # Transposed, because sample j of rank r is request j x W + r of the global batch.
        held_KW = (np.arange(self._capacity)[None, :] < np.maximum(count_W, 0)[:, None]).T
        self._sizes = _Sizes(
            reader_G=np.broadcast_to(np.arange(self._world), held_KW.shape)[held_KW],
            uih_G=lengths_WK.T[held_KW],
            candidates_G=candidates_WK.T[held_KW],
        )
        composite_K = np.zeros(self._capacity, dtype=np.int64)
        composite_K[: self._own.request_id.size] = self._own.candidate_counts * len(self._own.candidate)
        self._composite = start_all_gather(
            torch.from_numpy(composite_K), Op.CANDIDATES_ALL_GATHER, self._group, self._recorder
        )

    def _move_samples(self) -> None:
        assert self._composite is not None and self._sizes is not None
        with blame(self._stage(Op.CANDIDATES_ALL_GATHER), self._group.group):
            composite_WK = self._composite.wait().numpy()
        self._composite = None
        self._check_composite(composite_WK)
        rank_G = assign(
            self._partition,
            self._sizes.uih_G,
            self._world,
            candidates_S=self._sizes.candidates_G,
            balance=self._balance,
            share_W=self._shares.current(),
        )
        cost_G = self._cost.of(self._sizes.uih_G, self._sizes.candidates_G)
        self._shares.dealt(self._sequence - 1, np.bincount(rank_G, weights=cost_G, minlength=self._world))
        own_G = np.flatnonzero(self._sizes.reader_G == self._rank)
        order_N = np.argsort(rank_G[own_G], kind="stable")
        chunks = pack(take(self._own, order_N), np.bincount(rank_G[own_G], minlength=self._world))
        self._kept_G = np.flatnonzero(rank_G == self._rank)
        reader_N = self._sizes.reader_G[self._kept_G]
        splits = [
            packed_words(self._sizes_of(self._kept_G[reader_N == reader]), self._own) for reader in range(self._world)
        ]
        words = torch.empty(sum(splits), dtype=torch.int32)
        in_flight = start_all_to_all(
            words,
            torch.from_numpy(np.concatenate(chunks)),
            splits,
            [chunk.size for chunk in chunks],
            Op.SAMPLES_ALL_TO_ALL,
            self._group,
            self._recorder,
        )
        self._moving = (in_flight, words, splits)

    @property
    def _own(self) -> RequestBlock:
        if self._block is None:
            raise RunError(f"rank {self._rank}: its reader delivered nothing at all, so it does not know the features")
        return self._block

    def _sizes_of(self, sample_N: np.ndarray) -> np.ndarray:
        """(UIH length, candidates) of samples, int64 (N, 2)."""
        assert self._sizes is not None
        return np.stack([self._sizes.uih_G[sample_N], self._sizes.candidates_G[sample_N]], axis=1)

    def _check_sequence(self, sequence_W: np.ndarray) -> None:
        astray = np.flatnonzero(sequence_W != self._sequence)
        if astray.size:
            raise RunError(
                f"balancing exchange: rank {self._rank} is at batch {self._sequence}, rank {astray[0]} at "
                f"{sequence_W[astray[0]]}; every rank must exchange every batch, in the same order"
            )

    def _check_composite(self, composite_WK: np.ndarray) -> None:
        assert self._sizes is not None
        expected = int(self._sizes.candidates_G.sum()) * len(self._own.candidate)
        if int(composite_WK.sum()) != expected:
            raise RunError(
                f"balancing exchange, batch {self._sequence}: candidates of another rank carry other features than "
                f"those of rank {self._rank}; do all ranks read the same data set?"
            )

    def _stage(self, op: Op) -> str:
        return f"balancing exchange, {op.label} of batch {self._sequence}"
