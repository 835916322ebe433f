"""What a published number is: a value, the setting it holds for, and how far to trust it.

The values themselves stand in `experiments/paper_values.py`; the report takes them as an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from repro.errors import InputError

Confidence = Literal["A", "B", "C"]
"""A: abstract, or several notes agree. B: one note made from the full text. C: notes disagree, or second-hand."""
Relation = Literal["=", "~", ">", "<"]
"""How the value is published: exactly, about, as a lower or as an upper bound."""

CONFIDENCE_MEANING: dict[str, str] = {
    "A": "abstract, or several public notes agree",
    "B": "one public note made from the full text",
    "C": "public notes disagree, or second-hand",
}


@dataclass(frozen=True, kw_only=True)
class PaperValue:
    """One number (or bound) the paper reports. A field of the setting is None where none was published."""

    figure: str
    experiment: str
    metric: str
    arm: str
    gpus: int | None
    max_uih: int | None
    batch: int | None
    value: float
    unit: str
    confidence: Confidence
    relation: Relation
    note: str

    def __post_init__(self) -> None:
        if self.confidence not in get_args(Confidence) or self.relation not in get_args(Relation):
            raise InputError(f"{self.figure} {self.metric}: confidence {self.confidence!r}, relation {self.relation!r}")

    @property
    def is_bound(self) -> bool:
        """Whether the value is a bound, not an estimate."""
        return self.relation in (">", "<")

    def text(self) -> str:
        """The value as people write it: `~ 2.4 %`, `> 20 %`."""
        prefix = "" if self.relation == "=" else f"{self.relation} "
        return prefix + with_unit(f"{self.value:g}", self.unit)


def with_unit(number: str, unit: str) -> str:
    """A number with its unit: `22 %`, `9×`."""
    return f"{number}×" if unit == "x" else f"{number} {unit}"
