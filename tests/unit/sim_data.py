"""Stand-in for a prepared data set: skewed lengths, ids drawn from a Zipf-like law, batches in order.

Each request has a history of its own; users that come back are the real reader's affair.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np


class StandIn:
    """As much of `PreparedDataset` as the simulator reads. An event has an item and an action, a candidate an item."""

    def __init__(self, lengths_S: np.ndarray, counts_S: np.ndarray, *, items: int = 5000, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        self.lengths, self.counts = lengths_S.astype(np.int64), counts_S.astype(np.int64)
        self.manifest = SimpleNamespace(
            features=(
                SimpleNamespace(name="item", vocabulary=items, of_candidate=True),
                SimpleNamespace(name="action", vocabulary=4, of_candidate=False),
            ),
            fingerprint=f"stand-in {seed} {items} {self.lengths.sum()} {self.lengths.size}",
        )
        self.uih_end = np.cumsum(self.lengths)
        self.candidate_offsets = np.concatenate([[0], np.cumsum(self.counts)])
        self._events = {
            "item": (items * generator.random(int(self.uih_end[-1])) ** 3).astype(np.int32),
            "action": generator.integers(0, 4, int(self.uih_end[-1]), dtype=np.int32),
        }
        self._candidates = (items * generator.random(int(self.candidate_offsets[-1])) ** 3).astype(np.int32)

    def __len__(self) -> int:
        return self.lengths.size

    def global_batches(self, global_batch: int) -> int:
        return self.lengths.size // global_batch

    def global_rows(self, t: int, global_batch: int) -> np.ndarray:
        return np.arange(t * global_batch, (t + 1) * global_batch)

    def uih_lengths(self, rows: np.ndarray, max_uih: int) -> np.ndarray:
        return np.minimum(self.lengths[rows], max_uih)

    def candidate_counts(self, rows: np.ndarray) -> np.ndarray:
        return self.counts[rows]

    def event_feature(self, name: str) -> np.ndarray:
        return self._events[name]

    def candidate_feature(self, name: str) -> np.ndarray:
        assert name == "item"
        return self._candidates


def skewed(requests: int, *, seed: int = 0, items: int = 5000) -> StandIn:
    """Lognormal lengths, 1 to 16 candidates."""
    generator = np.random.default_rng(seed)
    lengths_S = np.exp(generator.normal(6.0, 1.5, requests)).astype(np.int64)
    return StandIn(lengths_S, generator.integers(1, 17, requests), seed=seed, items=items)
