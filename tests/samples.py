"""Small request logs for tests, prepared through the real reader's block format."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from repro.data.dataset import RequestBlock
from repro.data.schema import Feature

ITEM = Feature(name="item", vocabulary=101, of_candidate=True)
FEATURES = (ITEM, Feature(name="action", vocabulary=6, of_candidate=False))
"""Not in alphabetical order: nothing may depend on it."""


class InMemoryRequests:
    """The part of `PreparedDataset` that training uses, over random requests. Some have no history."""

    def __init__(self, requests: int, seed: int = 0, longest: int = 40) -> None:
        random = np.random.default_rng(seed)
        self.name = "in-memory"
        self.manifest = SimpleNamespace(features=FEATURES, fingerprint=f"{requests}-{seed}-{longest}")
        self.lengths = np.minimum(random.lognormal(2.0, 1.3, requests).astype(np.int64), longest)
        self.candidates = random.integers(1, 17, requests).astype(np.int64)
        self.events = [
            {f.name: random.integers(0, f.vocabulary, n).astype(np.int32) for f in FEATURES} for n in self.lengths
        ]
        self.asked = [random.integers(0, ITEM.vocabulary, c).astype(np.int32) for c in self.candidates]
        self.labels = [(items % 3 == 0).astype(np.float32) for items in self.asked]

    def __len__(self) -> int:
        return self.lengths.size

    def global_batches(self, global_batch: int) -> int:
        return len(self) // global_batch

    def global_rows(self, t: int, global_batch: int) -> np.ndarray:
        return np.arange(t * global_batch, (t + 1) * global_batch)

    def candidate_counts(self, rows: np.ndarray) -> np.ndarray:
        return self.candidates[rows]

    def read(self, rows: np.ndarray, max_uih: int) -> RequestBlock:
        lengths = np.minimum(self.lengths[rows], max_uih)
        histories = [{name: column[-n:] if n else column[:0] for name, column in self.events[row].items()}
                     for row, n in zip(rows, lengths, strict=True)]  # fmt: skip
        return RequestBlock(
            request_id=rows.astype(np.int64),
            request_time=rows.astype(np.int64) * 1000,
            uih_lengths=lengths,
            candidate_counts=self.candidates[rows],
            uih_time=np.concatenate(
                [np.arange(n) + row * 1000 for row, n in zip(rows, lengths, strict=True)] or [[]]
            ).astype(np.int64),
            uih={f.name: _join([history[f.name] for history in histories], np.int32) for f in FEATURES},
            candidate={"item": _join([self.asked[row] for row in rows], np.int32)},
            label=_join([self.labels[row] for row in rows], np.float32),
        )


def _join(columns: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(columns).astype(dtype) if columns else np.zeros(0, dtype)
