"""Feeds AutoTune what ranks measured, while batches are under way.

A rank learns how long a batch took some steps after it was dealt, and by then others have been. So the modelled cost of
each batch's shares is kept until the times for it come in with the header of a later exchange. Every rank sees the same
headers, so all hold the same state.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from repro.balance.autotune import TuneConfig, TuneState, start, update

# W ranks

LAG = 2
"""Steps between a batch's training and the exchange that reports its time: a GPU's events are done by then."""


class Shares(Protocol):
    """Each rank's share of the work."""

    def current(self) -> np.ndarray | None:
        """Shares for the next batch, float (W,); None: equal, and the partition need not know."""

    def dealt(self, batch: int, cost_W: np.ndarray) -> None:
        """Batch number `batch` was dealt; modelled cost of each rank's part."""

    def measured(self, batch: int, nanoseconds_W: np.ndarray) -> None:
        """Dense work of batch number `batch` took so long on each rank."""


class EqualShares:
    """Every rank is as fast as the others."""

    def current(self) -> np.ndarray | None:
        """Equal."""
        return None

    def dealt(self, batch: int, cost_W: np.ndarray) -> None:
        """Nothing to remember."""

    def measured(self, batch: int, nanoseconds_W: np.ndarray) -> None:
        """Nothing to learn."""


class TunedShares:
    """Shares that follow measurements (`repro.balance.autotune`)."""

    def __init__(self, world: int, config: TuneConfig | None = None, state: TuneState | None = None) -> None:
        """`state`: of a checkpoint, to go on from; None starts equal."""
        self._config = config or TuneConfig()
        self.state = state or start(world)
        self._cost_of_batch: dict[int, np.ndarray] = {}

    def current(self) -> np.ndarray | None:
        """As corrected so far."""
        return self.state.share_array()

    def dealt(self, batch: int, cost_W: np.ndarray) -> None:
        """Kept until the batch's times come in."""
        self._cost_of_batch[batch] = cost_W

    def measured(self, batch: int, nanoseconds_W: np.ndarray) -> None:
        """One more measurement."""
        cost_W = self._cost_of_batch.pop(batch, None)
        if cost_W is not None:
            self.state = update(self.state, self._config, nanoseconds_W / 1e9, cost_W)
