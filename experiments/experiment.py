"""What an experiment is."""

from __future__ import annotations

from dataclasses import dataclass

from repro.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A question and the runs that answer it."""

    name: str
    """Stable; what `repro run` takes."""
    figure: str
    """Paper item."""
    question: str
    expected: str
    """What the paper reports, with its confidence mark."""
    duration: str
    """On two CPU cores."""
    runs: tuple[RunConfig, ...]
    default: bool = True
    """Whether a plain `repro reproduce` runs it; `repro reproduce --full` runs all."""

    @property
    def command(self) -> str:
        """What makes these numbers again."""
        return f"repro run {self.name}"

    @property
    def datasets(self) -> tuple[str, ...]:
        """Data sets the runs need, in order of first use."""
        return tuple(dict.fromkeys(run.dataset for run in self.runs))

    @property
    def modes(self) -> tuple[str, ...]:
        """Modes of the runs, in order of first use."""
        return tuple(dict.fromkeys(run.mode for run in self.runs))
