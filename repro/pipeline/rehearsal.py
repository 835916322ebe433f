"""Makes DDP sum gradients in a run that goes on from a checkpoint in the order in which it summed them before.

DDP regroups gradients into other buckets once, after its first backward passes, by the order in which they come. With
three ranks or more the grouping decides in which order ranks are summed, hence the last bit. A run that was not cut
short has regrouped long ago; one that goes on would do so after its first steps. So it rehearses: it passes zeros
forward and back before its state is restored, of which nothing stays but the order of gradients.
"""

from __future__ import annotations

import torch
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from repro.data.batch import JaggedBatch
from repro.embedding.prioritized import Values
from repro.pipeline.instrument import data_parallel

PASSES = 2
"""DDP regroups before the second; with a static graph, which TorchRec asks for, before the third."""


def rehearse(model: nn.Module, batch: JaggedBatch, width: int) -> None:
    """Every rank must call it, before the first step and before the model gets its parameters.

    Args:
        model: a `Ranker` as wrapped for training.
        batch: any, on the model's device; the tables are not touched.
        width: of embeddings.
    """
    ranker = data_parallel(model).module
    embeddings, ranker.embeddings = ranker.embeddings, _Zeros(width)
    for _ in range(PASSES):
        loss, _ = model(batch)
        loss.backward()
    ranker.embeddings = embeddings


class _Zeros(nn.Module):
    """Embeddings that ask for gradients."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Values]:
        """Zeros, float32 (ids of the key, width), by key."""
        ids = {key: features[key].values() for key in list(features.keys())}
        return {
            key: Values(torch.zeros((of_key.shape[0], self._width), device=of_key.device, requires_grad=True))
            for key, of_key in ids.items()
        }
