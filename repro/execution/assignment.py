"""What a launcher tells ranks of one run of a job, as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from repro.config import RunConfig, from_dict
from repro.pipeline.checkpoint_folder import Belonging


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """One run."""

    config: RunConfig
    out: Path
    """An existing folder, for what is recorded and for checkpoints."""
    run_id: str
    belongs_to: Belonging
    """What its checkpoints say that they belong to."""
    checkpoint: Path | None
    """The one to go on from, which has been checked; None: from the start."""

    def to_dict(self) -> dict[str, Any]:
        """Plain form, for JSON."""
        return {
            "config": self.config.to_dict(),
            "out": str(self.out),
            "run_id": self.run_id,
            "belongs_to": asdict(self.belongs_to),
            "checkpoint": str(self.checkpoint) if self.checkpoint else None,
        }


def assignment(raw: dict[str, Any]) -> Assignment:
    """Inverse of `Assignment.to_dict`.

    Raises:
        InputError: a bad config.
    """
    return Assignment(
        config=from_dict(raw["config"]),
        out=Path(raw["out"]),
        run_id=raw["run_id"],
        belongs_to=Belonging(**raw["belongs_to"]),
        checkpoint=Path(raw["checkpoint"]) if raw["checkpoint"] else None,
    )
