"""The ranking model: sharded embeddings, HSTU encoder, candidate head, loss.

The loss of a rank is its *sum* of log losses x world / labels of the global batch. DDP and TorchRec both average
gradients over ranks, so dense and sparse gradients become exactly those of the mean loss over the global batch,
whatever the ranks' shares are (a mean of local means would be biased as soon as shares differ).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from repro.config import ModelConfig
from repro.data.batch import UIH_PREFIX, JaggedBatch
from repro.data.schema import CANDIDATE_PREFIX, Feature
from repro.model.encoder import HstuEncoder

# B requests, T UIH events, C candidates, D model dim

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
}


class DenseRanker(nn.Module):
    """Everything replicated: token mixing, encoder and head, in the model's dense dtype."""

    def __init__(self, config: ModelConfig, max_length: int) -> None:
        super().__init__()
        self.encoder = HstuEncoder(config.layers, config.dim, config.heads, max_length)
        self.head = nn.Sequential(nn.LayerNorm(config.dim), nn.Linear(config.dim, config.dim), nn.SiLU())
        self.logit = nn.Linear(config.dim, 1)
        self.to(DTYPES[config.dense_dtype])

    def forward(self, history_TD: torch.Tensor, candidate_CD: torch.Tensor, batch: JaggedBatch) -> torch.Tensor:
        """Logit of every candidate, (C,). Inputs are cast to the dense dtype."""
        dtype = self.logit.weight.dtype
        encoded_CD = self.encoder(
            history_TD.to(dtype), candidate_CD.to(dtype), batch.uih_lengths, batch.candidate_counts
        )
        return self.logit(self.head(encoded_CD)).squeeze(1)


class Ranker(nn.Module):
    """From a batch to (loss to differentiate, what metrics need), the form TorchRec's pipelines expect."""

    def __init__(
        self,
        embeddings: nn.Module,
        features: tuple[Feature, ...],
        config: ModelConfig,
        *,
        max_length: int,
        world: int,
    ) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.dense = DenseRanker(config, max_length)
        self.loss = LogLossSum()
        self.uih_keys = [UIH_PREFIX + feature.name for feature in features]
        self.candidate_keys = [CANDIDATE_PREFIX + feature.name for feature in features if feature.of_candidate]
        self.world = world

    def forward(self, batch: JaggedBatch) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Returns (loss, (sum of log losses of this rank, logits (C,)))."""
        embedded = self.embeddings(batch.features)
        history_TD = sum_of([embedded[key].values() for key in self.uih_keys])
        candidate_CD = sum_of([embedded[key].values() for key in self.candidate_keys])
        logit_C = self.dense(history_TD, candidate_CD, batch)
        loss_sum = self.loss(logit_C, batch.labels)
        return loss_sum * (self.world / batch.global_labels), (loss_sum.detach(), logit_C.detach())


def sum_of(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Elementwise sum: a token is the sum of its features' embeddings."""
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total


class LogLossSum(nn.Module):
    """Sum of binary cross entropies. A module, so that TorchRec's tracer of `Ranker.forward` need not look inside."""

    def forward(self, logit_C: torch.Tensor, label_C: torch.Tensor) -> torch.Tensor:
        """Nats, a scalar of the logits' dtype, at least float32."""
        wide = logit_C if logit_C.dtype == torch.float64 else logit_C.float()
        return F.binary_cross_entropy_with_logits(wide, label_C.to(wide.dtype), reduction="sum")
