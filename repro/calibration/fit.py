"""Latency and bandwidth of a collective from its times at several sizes.

    seconds(bytes) = alpha + beta * bytes

Least squares of *relative* errors: sizes span orders of magnitude, and plain least squares would let the largest
message alone decide, latency included. Nothing is clipped: an alpha below zero says that the line does not fit, and so
does a large residual.

Source of the model: R. Hockney, "The communication challenge for MPP", Parallel Computing 20 (1994).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class AlphaBeta:
    """A fitted line."""

    alpha_s: float
    """Seconds of an empty message."""
    beta_s_per_byte: float
    residual: float
    """Root mean square of (fitted - measured) / measured; 0 is a perfect line."""

    def seconds(self, size: float) -> float:
        """Of a message of `size` bytes."""
        return self.alpha_s + self.beta_s_per_byte * size


def relative_fit(terms_NK: np.ndarray, seconds_N: np.ndarray) -> tuple[np.ndarray, float]:
    """Least squares of relative errors: seconds = terms x coefficients.

    Args:
        terms_NK: float (N, K), columns of one magnitude, so that the solver loses no digits.
        seconds_N: positive, float (N,).

    Returns:
        Coefficients, float64 (K,), and the root mean square of (fitted - measured) / measured.
    """
    columns_NK = terms_NK / seconds_N[:, None]
    found_K, *_ = np.linalg.lstsq(columns_NK, np.ones_like(seconds_N), rcond=None)
    return found_K, float(np.sqrt(np.mean((columns_NK @ found_K - 1.0) ** 2)))


def alpha_beta(sizes: Sequence[float], seconds: Sequence[float]) -> AlphaBeta:
    """Fit the line.

    Args:
        sizes: bytes, one entry a measurement; at least two different ones.
        seconds: their times, positive.

    Raises:
        ValueError: fewer than two different sizes, or a time that is not positive.
    """
    if len(set(sizes)) < 2:
        raise ValueError(f"alpha and beta need two different sizes, got {sorted(set(sizes))}")
    size_N, seconds_N = np.asarray(sizes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    if not (seconds_N > 0).all():
        raise ValueError("alpha and beta need times above zero")
    unit = float(size_N.max())
    (alpha, beta), residual = relative_fit(np.stack([np.ones_like(size_N), size_N / unit], axis=1), seconds_N)
    return AlphaBeta(float(alpha), float(beta) / unit, residual)
