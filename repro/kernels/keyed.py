"""Reordering the samples of a KeyedJaggedTensor. Needs TorchRec and nothing else of this project.

Example: a batch of four samples with features f and g; `permute_samples(batch, torch.tensor([2, 0]))` is a batch of
two, sample 2 first. `KeyedJaggedTensor.permute` reorders features instead.
"""

from __future__ import annotations

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from repro.errors import InputError
from repro.kernels import jagged

# F features (keys), B samples, M samples of the result


def permute_samples(batch: KeyedJaggedTensor, index_M: torch.Tensor, *, total: int | None = None) -> KeyedJaggedTensor:
    """Samples `index_M` of every feature, in that order. On CUDA with `total`: a Triton kernel; else torch operations.

    Args:
        batch: equal batch size for all features; weights travel along.
        index_M: samples, int32 or int64, (M,), in 0..B-1, on the batch's device. Repeats are allowed.
        total: values of the result over all features, where known; spares a wait for the device.

    Returns:
        Keys as before, stride M, on the same device.

    Raises:
        InputError: a batch whose features differ in batch size, or an ill-shaped index.
    """
    if batch.variable_stride_per_key():
        raise InputError("permute_samples: features differ in batch size; an index over samples has no meaning then")
    features, samples = len(batch.keys()), batch.stride()
    feature_F1 = torch.arange(features, device=index_M.device)[:, None]
    index_FM = (feature_F1 * samples + index_M).reshape(-1)
    lengths_FB = batch.lengths()
    values, lengths_FM = _permute(batch.values(), lengths_FB, index_FM, total)
    weights = batch.weights_or_none()
    return KeyedJaggedTensor(
        keys=batch.keys(),
        values=values,
        weights=None if weights is None else _permute(weights, lengths_FB, index_FM, values.shape[0])[0],
        lengths=lengths_FM,
        stride=index_M.numel(),
    )


def _permute(
    values: torch.Tensor, lengths: torch.Tensor, index: torch.Tensor, total: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    if values.is_cuda and total is not None:
        # Triton comes with CUDA builds of torch only.
        from repro.kernels import triton_jagged

        return triton_jagged.permute(values, lengths, index, total=total)
    return jagged.permute(values, lengths, index, total=total)
