"""What is known of a public log before it is read, and the comparison with what was read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from repro.errors import InputError

# U users


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Events a user."""

    users: int
    mean: float
    median: float
    p90: float
    p99: float
    longest: int

    @classmethod
    def of(cls, events_U: np.ndarray) -> Lengths:
        """From each user's number of events, int64 (U,)."""
        median, p90, p99 = np.percentile(events_U, (50, 90, 99)).tolist()
        return cls(
            users=events_U.size,
            mean=float(events_U.mean()),
            median=median,
            p90=p90,
            p99=p99,
            longest=int(events_U.max()),
        )

    def text(self) -> str:
        """One line."""
        return (
            f"{self.users:,} users; events a user: mean {self.mean:,.1f}, median {self.median:,.0f}, "
            f"p90 {self.p90:,.0f}, p99 {self.p99:,.0f}, most {self.longest:,}"
        )


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A published number."""

    name: str
    """`events`, or a field of `Lengths`."""
    value: float
    within: float = 0.0
    """Relative difference that still counts as the same, for numbers published in round figures."""
    sure: bool = True
    """False: quoted from memory, or expected to change; a difference is only reported."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """What the publisher says of the whole log."""

    figures: tuple[Figure, ...]
    fix: str
    """What to do when a figure is missed."""

    def check(self, name: str, events: int, lengths: Lengths, log: Callable[[str], None]) -> None:
        """Compare all figures; `events` counts those that the source left out, too.

        Raises:
            InputError: one that is sure is missed.
        """
        for figure in self.figures:
            found = events if figure.name == "events" else getattr(lengths, figure.name)
            # Half a unit, since published means and medians are rounded.
            if abs(found - figure.value) <= max(figure.within * figure.value, 0.5 if isinstance(found, float) else 0):
                continue
            message = f"{name}: {figure.name} is {found:,.10g}, published is {figure.value:,.10g}"
            if figure.sure:
                raise InputError(f"{message}; {self.fix}")
            log(f"warning: {message} (not sure)")
