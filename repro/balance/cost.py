"""What a sample costs to train, as a balancer sees it: linear work and quadratic attention.

Deliberately simpler than the simulator's cost model, which judges the result: no kernel efficiency by length, no
launches, no thread blocks. What this leaves out shows up as a remainder in the simulated figures.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from repro.errors import InputError

# S samples of a global batch

PROFILED_ATTENTION_LENGTH = 4278.0
"""Tokens at which causal attention costs as much as all other dense work. Of a 185.4 ms HSTU step on H100 at 4,099
tokens a sample, attention took 79.9 ms, matmuls 43.9 and elementwise kernels 39.5: 4099 x (43.9 + 39.5) / 79.9.
Source: NVIDIA/recsys-examples, PERF_ANALYSIS.md (8 layers, D=1024). Narrower models cross over earlier."""


@dataclass(frozen=True, kw_only=True)
class SampleCost:
    """cost = tokens + 2 x (query, key) pairs / attention_length; the unit is one token's linear work."""

    attention_length: float = PROFILED_ATTENTION_LENGTH
    """History length, in tokens, at which attention costs as much as all linear work."""

    def __post_init__(self) -> None:
        if not self.attention_length > 0:
            raise InputError(f"attention_length: must be > 0 tokens, got {self.attention_length}")

    def of(self, lengths_S: np.ndarray, candidates_S: np.ndarray) -> np.ndarray:
        """Cost of each sample, float64 (S,), >= 0. History is causal; a candidate sees the history only.

        Args:
            lengths_S: UIH lengths, integer (S,).
            candidates_S: candidates, integer (S,).
        """
        history_S = lengths_S.astype(np.float64)
        pairs_S = history_S**2 / 2 + candidates_S * history_S
        cost_S: np.ndarray = history_S + candidates_S + 2 * pairs_S / self.attention_length
        return cost_S
