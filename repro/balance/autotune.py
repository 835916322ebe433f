"""AutoTune: corrects each rank's share of the work from its own measured execution time.

A share of the modelled cost is right only as far as the model is: a rank on a slower GPU, or with a noisy neighbour,
takes longer over the same cost. Pure state, so that it can be simulated, tested and checkpointed; every rank that feeds
it the same times holds the same shares.

Example: two ranks, equal shares, times 1.5 s and 1.0 s. The slow rank's share falls towards 0.4, where both take 1.2 s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from repro.errors import InputError

# W ranks

_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class TuneConfig:
    """How fast shares follow measurements, and when they stay."""

    smoothing: float = 0.2
    """Weight of the newest measurement in the exponential average; 1 forgets the past."""
    largest_step: float = 0.1
    """A share changes by at most this factor - 1 a step."""
    start_above: float = 0.03
    """Correction starts when the slowest rank's averaged time is this far above the mean, relative ..."""
    stop_below: float = 0.01
    """... and goes on until it is less than this."""
    least_share: float = 0.2
    """No rank falls below this part of an equal share: a rank that stops for a while must get work to be measured."""
    settle_steps: int = 5
    """Measurements before the first correction."""

    def __post_init__(self) -> None:
        for name in ("smoothing", "largest_step", "least_share"):
            if not 0 < getattr(self, name) <= 1:
                raise InputError(f"autotune.{name}: must be in (0, 1], got {getattr(self, name)}")
        if not 0 <= self.stop_below <= self.start_above:
            raise InputError(
                f"autotune.stop_below: must be in 0..start_above ({self.start_above}), got {self.stop_below}"
            )
        if self.settle_steps < 1:
            raise InputError(f"autotune.settle_steps: must be >= 1, got {self.settle_steps}")


@dataclass(frozen=True, kw_only=True)
class TuneState:
    """Everything AutoTune remembers."""

    share: tuple[float, ...]
    """Of all work, for each rank; sum 1."""
    slowness: tuple[float, ...]
    """Averaged (time / work done), relative to the mean over ranks."""
    steps: int = 0
    """Measurements seen."""
    correcting: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain form for a checkpoint; JSON keeps it exactly."""
        return {
            "version": _VERSION,
            "share": list(self.share),
            "slowness": list(self.slowness),
            "steps": self.steps,
            "correcting": self.correcting,
        }

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> TuneState:
        """Inverse of `to_dict`.

        Raises:
            InputError: another version or missing fields.
        """
        if raw.get("version") != _VERSION:
            raise InputError(f"autotune state: version {raw.get('version')!r}, this code reads {_VERSION}")
        missing = sorted({"share", "slowness", "steps", "correcting"} - set(raw))
        if missing:
            raise InputError(f"autotune state: {', '.join(missing)} missing")
        return cls(
            share=tuple(float(value) for value in raw["share"]),
            slowness=tuple(float(value) for value in raw["slowness"]),
            steps=int(raw["steps"]),
            correcting=bool(raw["correcting"]),
        )

    def share_array(self) -> np.ndarray:
        """Shares as float64 (W,), for `repro.balance.partition.assign`."""
        return np.array(self.share)


def start(world: int) -> TuneState:
    """Equal shares.

    Raises:
        InputError: world < 1.
    """
    if world < 1:
        raise InputError(f"world: must be >= 1, got {world}")
    return TuneState(share=(1 / world,) * world, slowness=(1.0,) * world)


def update(state: TuneState, config: TuneConfig, seconds_W: np.ndarray, cost_W: np.ndarray) -> TuneState:
    """The state after one more step.

    What is averaged is time per modelled cost, not time: that belongs to the rank, whatever batch it just had, so
    neither an odd batch nor a changed share disturbs the average.

    Args:
        seconds_W: execution time of each rank's dense work, without waiting; float (W,), >= 0.
        cost_W: modelled cost of what it trained, float (W,). A rank with none keeps its average.

    Raises:
        InputError: shapes that do not fit the state, or times that are negative or not finite.
    """
    world = len(state.share)
    if seconds_W.shape != (world,) or cost_W.shape != (world,):
        raise InputError(f"autotune: times {seconds_W.shape} and costs {cost_W.shape} for {world} ranks")
    if not (np.isfinite(seconds_W).all() and (seconds_W >= 0).all()):
        raise InputError(f"autotune: times must be finite and >= 0, got {seconds_W.tolist()}")
    slowness_W = _averaged(state, config, seconds_W, cost_W)
    steps = state.steps + 1
    share_W = state.share_array()
    time_W = slowness_W * share_W
    excess = float(time_W.max() / time_W.mean() - 1)
    correcting = steps >= config.settle_steps and excess > (
        config.stop_below if state.correcting else config.start_above
    )
    if correcting:
        wanted_W = 1 / slowness_W
        wanted_W /= wanted_W.sum()
        bound = 1 + config.largest_step
        share_W = share_W * np.clip(wanted_W / share_W, 1 / bound, bound)
        share_W = np.maximum(share_W / share_W.sum(), config.least_share / world)
        share_W /= share_W.sum()
    return TuneState(
        share=tuple(share_W.tolist()), slowness=tuple(slowness_W.tolist()), steps=steps, correcting=correcting
    )


def _averaged(state: TuneState, config: TuneConfig, seconds_W: np.ndarray, cost_W: np.ndarray) -> np.ndarray:
    before_W = np.array(state.slowness)
    measured_W = (cost_W > 0) & (seconds_W > 0)
    if not measured_W.any():
        return before_W
    rate_W = np.divide(seconds_W, cost_W, out=np.ones(seconds_W.size), where=measured_W)
    # Scaled as the average of the same ranks was, so that a rank that was not measured stays comparable.
    rate_W *= before_W[measured_W].mean() / rate_W[measured_W].mean()
    # The plain mean of the first few, so that one odd first step does not weigh more than the later ones.
    smoothing = max(config.smoothing, 1 / (state.steps + 1))
    averaged_W: np.ndarray = np.where(measured_W, (1 - smoothing) * before_W + smoothing * rate_W, before_W)
    return averaged_W / averaged_W.mean()
