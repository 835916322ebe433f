"""Moves samples between ranks so that each trains its share of the balanced partition.

Three stages, as in the paper (technique 1):
  1. AllGather of each rank's UIH lengths and candidate counts;
  2. AllGather of the composite candidate lengths (ids a sample's candidates carry over all their features);
  3. the partition maps every sample of the global batch to a rank, and one AllToAll moves them, packed.

After stage 2 every rank knows the size of every sample, so stage 3 needs no exchange of split sizes. Samples arrive in
global-batch order, whatever the partition, so a rank's batch is a deterministic function of the assignment.

Usable without this project's trainer: give it NumPy request blocks and a gloo group.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist

from repro.balance.packing import concatenate, pack, packed_words, take, unpack
from repro.balance.partition import assign
from repro.comm.traced import all_gather
from repro.config import Partition
from repro.data.dataset import RequestBlock
from repro.errors import RunError
from repro.pipeline.ops import Op
from repro.timeline.recorder import Recorder

# W ranks, B samples of this rank, G = W x B samples of the global batch, N samples in hand


class Exchange(Protocol):
    """From what this rank's reader delivered to what this rank trains."""

    def __call__(self, block: RequestBlock) -> RequestBlock: ...


def keep(block: RequestBlock) -> RequestBlock:
    """No balancing: every rank trains what its reader delivered."""
    return block


class BalancedExchange:
    """The three-stage exchange. Every rank must call it for every global batch, with equally many requests."""

    def __init__(self, partition: Partition, group: dist.ProcessGroup, recorder: Recorder) -> None:
        self._partition = partition
        self._group = group
        self._world = dist.get_world_size(group)
        self._rank = dist.get_rank(group)
        self._recorder = recorder

    def __call__(self, block: RequestBlock) -> RequestBlock:
        """This rank's share of the global batch after balancing, in global-batch order.

        Raises:
            RunError: the ranks hold unequal numbers of requests.
        """
        sizes_WB2 = self._gather_sizes(block)
        with self._recorder.during(Op.PARTITION):
            # Request i of the global batch was read by rank i mod W as its sample i div W.
            sizes_G2 = sizes_WB2.transpose(1, 0, 2).reshape(-1, 2)
            rank_G = assign(self._partition, sizes_G2[:, 0], self._world)
            mine_B = np.arange(block.request_id.size) * self._world + self._rank
            order_B = np.argsort(rank_G[mine_B], kind="stable")
            sent = take(block, order_B)
            words_out = pack(sent, np.bincount(rank_G[mine_B], minlength=self._world))
            source_G = np.arange(rank_G.size) % self._world
            kept_G = rank_G == self._rank
            received_W = [sizes_G2[kept_G & (source_G == source)] for source in range(self._world)]
            splits_in = [packed_words(sizes, block) for sizes in received_W]
        words = self._all_to_all(words_out, splits_in)
        with self._recorder.during(Op.PARTITION):
            parts = [unpack(chunk, sizes, block) for chunk, sizes in zip(words, received_W, strict=True)]
            joined = concatenate(parts)
            position = np.concatenate([np.flatnonzero(kept_G & (source_G == s)) for s in range(self._world)])
            return take(joined, np.argsort(position, kind="stable"))

    def _gather_sizes(self, block: RequestBlock) -> np.ndarray:
        """(UIH length, candidates) of every sample, int64 (W, B, 2)."""
        own_B2 = np.stack([block.uih_lengths, block.candidate_counts], axis=1)
        sizes = all_gather(torch.from_numpy(own_B2), Op.LENGTHS_ALL_GATHER, self._group, self._recorder).numpy()
        composite_B = block.candidate_counts * len(block.candidate)
        composite = all_gather(
            torch.from_numpy(composite_B), Op.CANDIDATES_ALL_GATHER, self._group, self._recorder
        ).numpy()
        if not np.array_equal(composite, sizes[:, :, 1] * len(block.candidate)):
            raise RunError(
                f"rank {self._rank}: candidate lengths of another rank do not fit its candidate counts; "
                "the ranks read different data sets"
            )
        return np.asarray(sizes)

    def _all_to_all(self, chunks_out: list[np.ndarray], splits_in: list[int]) -> list[np.ndarray]:
        words_out = torch.from_numpy(np.concatenate(chunks_out))
        words_in = torch.empty(sum(splits_in), dtype=torch.int32)
        with self._recorder.labelled(Op.SAMPLES_ALL_TO_ALL):
            dist.all_to_all_single(
                words_in, words_out, splits_in, [chunk.size for chunk in chunks_out], group=self._group
            )
        return np.split(words_in.numpy(), np.cumsum(splits_in)[:-1])
