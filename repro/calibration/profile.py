"""What a calibration found, as a value and as a JSON file. Every number in it was measured; what was not is named."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from repro.errors import InputError
from repro.tracking.record import write_atomically

SCHEMA = 1


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of repeated measurements."""

    median: float
    lower: float
    """First quartile."""
    upper: float
    """Third quartile."""
    repeats: int


def spread(values: Sequence[float]) -> Spread:
    """Of at least two measurements."""
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, lower, upper, len(values))


@dataclass(frozen=True, kw_only=True)
class Rate:
    """How fast one device does one thing."""

    device: str
    """cpu or cuda."""
    operation: str
    workload: str
    """Shapes and dtypes, for a reader."""
    unit: str
    """B/s, FLOP/s or s."""
    value: Spread


@dataclass(frozen=True, kw_only=True)
class CollectiveTime:
    """Seconds of the slowest rank."""

    transport: str
    chunk_bytes: int | None
    """Most bytes of a message; None where the transport has no chunks of ours."""
    collective: str
    world: int
    bytes: int
    """That each rank gives: to the other ranks together (all_to_all), to each (all_gather), to the sum (all_reduce)."""
    seconds: Spread


@dataclass(frozen=True, kw_only=True)
class CollectiveFit:
    """Line through the medians of one transport and collective; see `repro.calibration.fit`."""

    transport: str
    chunk_bytes: int | None
    collective: str
    world: int
    alpha_s: float
    beta_s_per_byte: float
    residual: float


@dataclass(frozen=True)
class Missing:
    """Something a full calibration has and this one has not."""

    what: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One calibration of one machine."""

    schema: int = SCHEMA
    mode: Literal["measured"] = "measured"
    started: str
    """ISO 8601, UTC."""
    seconds: float
    """The whole calibration took."""
    command: str
    commit: str
    """Git commit, or `unknown` outside a checkout."""
    dirty: bool
    versions: dict[str, str]
    hardware: dict[str, str]
    rates: tuple[Rate, ...]
    collectives: tuple[CollectiveTime, ...]
    fits: tuple[CollectiveFit, ...]
    missing: tuple[Missing, ...]


def write_profile(profile: Profile, path: Path) -> None:
    """Under a temporary name, then renamed."""
    write_atomically(path, json.dumps(dataclasses.asdict(profile), indent=1) + "\n")


def read_profile(path: Path) -> Profile:
    """
    Raises:
        InputError: the file cannot be read, is no profile, or is one of another schema.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}); make one with `repro calibrate --output {path}`") from None
    schema, mode = (raw.get("schema"), raw.get("mode")) if isinstance(raw, dict) else (None, None)
    if schema != SCHEMA or mode != "measured":
        raise InputError(
            f"{path}: schema {schema!r}, mode {mode!r}, not {SCHEMA}, 'measured'; make one with `repro calibrate`"
        )
    try:
        return _profile(raw)
    except (KeyError, TypeError) as error:
        raise InputError(f"{path}: not a profile ({error}); make one with `repro calibrate --output {path}`") from None


def _profile(raw: dict[str, Any]) -> Profile:
    return Profile(
        **{
            **raw,
            "rates": tuple(Rate(**{**row, "value": Spread(**row["value"])}) for row in raw["rates"]),
            "collectives": tuple(
                CollectiveTime(**{**row, "seconds": Spread(**row["seconds"])}) for row in raw["collectives"]
            ),
            "fits": tuple(CollectiveFit(**row) for row in raw["fits"]),
            "missing": tuple(Missing(**row) for row in raw["missing"]),
        }
    )
