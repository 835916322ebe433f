"""Stable descending order by radix sort: several times faster than a comparison sort, and the same on every machine.

NumPy's unstable sorts use whatever vector unit the machine has, so two ranks could order ties differently and then
disagree about who trains what.
"""

from __future__ import annotations

import numpy as np

# S samples

_DIGIT = 1 << 16


def descending(values_S: np.ndarray) -> np.ndarray:
    """Positions of `values_S` from largest to smallest, ties in their original order; int64 (S,).

    Args:
        values_S: integer, or float compared at float32 precision; all >= 0.
    """
    if values_S.size == 0:
        return np.empty(0, dtype=np.int64)
    if np.issubdtype(values_S.dtype, np.integer):
        top = int(values_S.max())
        if top < _DIGIT:
            return np.argsort((top - values_S.astype(np.int64)).astype(np.uint16), kind="stable")
        return np.argsort(-values_S.astype(np.int64), kind="stable")
    # The bits of floats >= 0 order as the floats do; complemented, from largest to smallest.
    bits_S = ~(values_S.astype(np.float32) + np.float32(0.0)).view(np.uint32)
    low_S = np.argsort((bits_S & (_DIGIT - 1)).astype(np.uint16), kind="stable")
    order_S: np.ndarray = low_S[np.argsort((bits_S >> 16).astype(np.uint16)[low_S], kind="stable")]
    return order_S
