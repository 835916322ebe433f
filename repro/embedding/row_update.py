"""Optimizers of single rows, so that some rows of a step can be updated before others.

Same arithmetic as FBGEMM's fused EXACT_SGD and EXACT_ROWWISE_ADAGRAD (fbgemm_gpu.split_embedding_configs): a row is
updated once a step, with the sum of all ranks' gradients for it. Neither depends on a step count, so a row updated late
only needs the learning rate of the step that the update belongs to.
"""

from __future__ import annotations

from typing import Protocol, assert_never

import torch

from repro.config import SparseOptimizer

# D rows to update, K width

EPSILON = 1e-8
"""Added to the root of Adagrad's accumulated square (FBGEMM's default)."""


class RowUpdate(Protocol):
    """Updates some rows of a rank's storage in place."""

    def __call__(self, rows_D: torch.Tensor, gradient_DK: torch.Tensor, learning_rate: float) -> None:
        """
        Args:
            rows_D: local rows, distinct, int64 (D,).
            gradient_DK: gradient of each, float32 (D, K).
            learning_rate: that of the step the gradients belong to.
        """

    def state(self) -> dict[str, torch.Tensor]:
        """What it remembers of each local row, by name; the tensors themselves."""


class Sgd:
    """weight -= learning rate x gradient."""

    def __init__(self, weights: torch.Tensor) -> None:
        self.weights = weights

    def __call__(self, rows_D: torch.Tensor, gradient_DK: torch.Tensor, learning_rate: float) -> None:
        """See `RowUpdate`."""
        self.weights[rows_D] = self.weights[rows_D] - learning_rate * gradient_DK

    def state(self) -> dict[str, torch.Tensor]:
        """Nothing."""
        return {}


class RowwiseAdagrad:
    """One accumulated mean square a row."""

    def __init__(self, weights: torch.Tensor) -> None:
        self.weights = weights
        self.squares = torch.zeros(weights.shape[0], dtype=torch.float32, device=weights.device)
        """Accumulated mean squared gradient of each local row."""

    def __call__(self, rows_D: torch.Tensor, gradient_DK: torch.Tensor, learning_rate: float) -> None:
        """See `RowUpdate`."""
        squares_D = self.squares[rows_D] + gradient_DK.square().mean(dim=1)
        self.squares[rows_D] = squares_D
        scale_D = learning_rate / (squares_D.sqrt() + EPSILON)
        self.weights[rows_D] = self.weights[rows_D] - scale_D[:, None] * gradient_DK

    def state(self) -> dict[str, torch.Tensor]:
        """`squares`."""
        return {"squares": self.squares}


def row_update(optimizer: SparseOptimizer, weights: torch.Tensor) -> RowUpdate:
    """The optimizer of a rank's rows, float32 (local rows, K)."""
    match optimizer:
        case "sgd":
            return Sgd(weights)
        case "rowwise_adagrad":
            return RowwiseAdagrad(weights)
    assert_never(optimizer)
