"""One rank's share of a global batch as TorchRec wants it: a KeyedJaggedTensor and what the model needs beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from repro.data.dataset import RequestBlock
from repro.data.schema import CANDIDATE_PREFIX

# B requests of this rank, T UIH events in all, C candidates in all

UIH_PREFIX = "uih_"


@dataclass(frozen=True, eq=False)
class JaggedBatch(Pipelineable):
    """Requests of one rank, jagged.

    Request b owns UIH events `sum(uih_lengths[:b]) .. sum(uih_lengths[:b+1])` and likewise candidates. The two
    length tensors stay on the host: the encoder splits by them, and reading them off the device would stall it.
    """

    features: KeyedJaggedTensor
    """Keys `uih_<feature>` (T ids each) and `candidate_<feature>` (C ids each), int64."""
    uih_lengths: torch.Tensor
    """int64 (B,), host."""
    candidate_counts: torch.Tensor
    """int64 (B,), host."""
    labels: torch.Tensor
    """float32 (C,), 0 or 1."""
    request_id: torch.Tensor
    """int64 (B,): row of the request in the data set, the same in every arm."""
    global_labels: int
    """Labels in the global batch: the loss's denominator on every rank."""

    def to(self, device: torch.device, non_blocking: bool = False) -> JaggedBatch:
        """The batch on `device`, lengths excepted."""
        return replace(
            self,
            features=self.features.to(device, non_blocking),
            labels=self.labels.to(device, non_blocking=non_blocking),
        )

    def record_stream(self, stream: torch.Stream) -> None:
        """Tell the allocator that `stream` uses the device tensors."""
        self.features.record_stream(stream)
        self.labels.record_stream(stream)

    def pin_memory(self) -> JaggedBatch:
        """The batch in page-locked memory."""
        return replace(self, features=self.features.pin_memory(), labels=self.labels.pin_memory())


def collate(block: RequestBlock, global_labels: int) -> JaggedBatch:
    """Requests as read (or as received from other ranks) to a batch.

    A rank without requests gets one request of no history, no candidates and hence no weight in the loss: TorchRec
    cannot shape a batch of zero.
    """
    lengths_B = torch.from_numpy(block.uih_lengths)
    counts_B = torch.from_numpy(block.candidate_counts)
    request_id_B = torch.from_numpy(block.request_id)
    if lengths_B.numel() == 0:
        lengths_B, counts_B = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
        request_id_B = torch.full((1,), -1, dtype=torch.int64)
    keys, values, lengths = [], [], []
    for prefix, columns, per_request_B in (
        (UIH_PREFIX, block.uih, lengths_B),
        (CANDIDATE_PREFIX, block.candidate, counts_B),
    ):
        for name in sorted(columns):
            keys.append(prefix + name)
            values.append(torch.from_numpy(columns[name]).to(torch.int64))
            lengths.append(per_request_B)
    features = KeyedJaggedTensor(keys=keys, values=torch.cat(values), lengths=torch.cat(lengths))
    return JaggedBatch(
        features=features,
        uih_lengths=lengths_B,
        candidate_counts=counts_B,
        labels=torch.from_numpy(block.label),
        request_id=request_id_B,
        global_labels=global_labels,
    )
