"""A run's global batches as the simulator needs them: real lengths, real partition, real rows."""

from __future__ import annotations

from functools import cache

import numpy as np

from repro.balance.partition import assign
from repro.config import RunConfig
from repro.data.dataset import PreparedDataset
from repro.execution.simulated.cost_model import GlobalBatch
from repro.execution.simulated.prioritized_costs import StepRows
from repro.execution.simulated.rows import RowCounter, RowTraffic


class Batches:
    """Global batches of one run, by step."""

    def __init__(self, config: RunConfig, dataset: PreparedDataset) -> None:
        self._config = config
        self._dataset = dataset
        self._counter = RowCounter(dataset, config.global_batch, config.max_uih)
        self._traffic = cache(self._count_traffic)

    def batch(self, step: int) -> GlobalBatch:
        """Global batch of `step`, dealt to ranks."""
        config, features = self._config, self._dataset.manifest.features
        requests_S = self._dataset.global_rows(step, config.global_batch)
        uih_S = np.asarray(self._dataset.uih_lengths(requests_S, config.max_uih), dtype=np.int64)
        candidates_S = np.asarray(self._dataset.candidate_counts(requests_S), dtype=np.int64)
        touched = self._counter.touched(step)
        assert touched is not None
        return GlobalBatch(
            uih=uih_S,
            candidates=candidates_S,
            origin=np.arange(uih_S.size, dtype=np.int64) % config.gpus,
            rank=assign(
                config.arm.partition, uih_S, config.gpus, candidates_S=candidates_S, balance=config.arm.balance
            ),
            uih_features=len(features),
            candidate_features=sum(feature.of_candidate for feature in features),
            distinct_rows=touched.distinct,
        )

    def collision_pct(self, step: int) -> float | None:
        """Global collision rate of `step`'s batch with the one before; None for the first."""
        touched, before = self._counter.touched(step), self._counter.touched(step - 1)
        return None if touched is None or before is None else 100.0 * touched.collision_share(before)

    def rows(self, step: int, batch: GlobalBatch) -> StepRows:
        """Rows of the exchange in `step`. The run's end is not simulated: batches after its last one come from the data
        set, and where that ends, its last batch stands in for those after it."""
        rows = StepRows(
            now=self._traffic(step),
            following=self._traffic(step + 1),
            announced=self._traffic(step + 2),
            lookups=np.bincount(batch.rank, weights=batch.ids(), minlength=self._config.gpus),
        )
        return rows.with_share(0.0) if self._config.arm.exchange == "stale" else rows

    def _count_traffic(self, step: int) -> RowTraffic:
        last = self._dataset.global_batches(self._config.global_batch) - 1
        if step > last:
            return self._traffic(last)
        return self._counter.traffic(step, self.batch(step).rank, self._config.gpus)
