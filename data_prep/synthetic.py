"""The knobs of the synthetic industrial workload, and the source made from them.

Every knob is a quantity one can measure on a real log. `synthetic_events` turns knobs into events, `synthetic_presets`
has sets of knobs with names, `synthetic_fit` finds the knobs of a prepared data set.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from data_prep import synthetic_events
from data_prep.requests import RequestRule
from data_prep.source import Source
from data_prep.synthetic_events import DAY_MS
from repro.errors import InputError


@dataclass(frozen=True, kw_only=True)
class SyntheticLog:
    """What decides a synthetic log. A user brings a history to the request window, the log's last days, and ranks
    candidates there; what happens in the window joins the history of later requests.
    """

    name: str
    users: int
    seed: int = 0

    length_mu: float
    """Mean of ln(events of the history a user brings): exp of it is the median."""
    length_sigma: float
    """Standard deviation of ln(events)."""
    length_floor: int = 1
    """Fewest events."""
    length_cap: int
    """Most events."""
    heavy_share: float = 0.0
    """Share of users from a second population, whose lengths have `heavy_mu` and `heavy_sigma`."""
    heavy_mu: float = 0.0
    heavy_sigma: float = 0.0

    days: float = 90
    """Time the log covers."""
    request_days: float = 10
    """The window: requests come from the log's last days only."""
    requests_a_user: float
    """Mean requests a user makes in the window. The fewer, the less do consecutive global batches share."""
    visit_days: float | None = None
    """A user's requests all fall into one visit of that many days, somewhere in the window; None: anywhere in it. The
    shorter, the fewer users come back in the next global batch."""
    activity: float = 0.5
    """Requests of a user are in proportion to length ** activity: 0, all users come equally often; 1, whoever has
    twice the history comes twice as often."""
    max_candidates: int = 16
    """Candidates of a request: uniform in 1..max_candidates, so (max + 1) / 2 on average."""
    session_events: float = 25.0
    """Mean events a session (geometric)."""
    event_gap_s: float = 40.0
    """Mean seconds between events of a session (exponential)."""

    items: int
    """Items there are. The more, the fewer rows do consecutive global batches share."""
    genres: int = 50
    """Categories of items."""
    genre_feature: bool = True
    """Whether events and candidates carry the genre as an id of its own, beside item and author."""
    authors: int = 10_000
    """Authors of items."""
    popularity_exponent: float = 1.0
    """Zipf: the k-th most popular item of a genre has weight k ** -exponent. 0: all alike. The lower, the fewer rows do
    consecutive global batches share."""
    popularity_days: float | None = None
    """Drift: days for which an item keeps its place in the order of popularity; None: forever."""
    preferred_share: float = 0.5
    """Share of a user's sessions in the user's preferred genre; the others are in any genre."""
    session_focus: float = 0.8
    """Locality: share of a session's events in the session's genre; the others are in any genre."""

    base_log_odds: float = -0.6
    """Log-odds of label 1 for an average item outside the preferred genre."""
    preference_log_odds: float = 1.5
    """Added inside the preferred genre."""
    item_log_odds_sd: float = 0.8
    """Standard deviation of the items' own log-odds."""

    def __post_init__(self) -> None:
        for name in ("users", "length_floor", "genres", "authors", "items", "max_candidates", "session_events"):
            self._require(getattr(self, name) >= 1, name, "must be >= 1")
        for name in ("length_sigma", "heavy_sigma", "popularity_exponent", "event_gap_s", "item_log_odds_sd"):
            self._require(getattr(self, name) >= 0, name, "must be >= 0")
        for name in ("heavy_share", "preferred_share", "session_focus"):
            self._require(0 <= getattr(self, name) <= 1, name, "must be a share in 0..1")
        self._require(self.length_cap >= self.length_floor, "length_cap", f"must be >= {self.length_floor} (the floor)")
        self._require(0 < self.request_days < self.days, "request_days", f"must be > 0 and < {self.days} (days)")
        self._require(self.requests_a_user > 0, "requests_a_user", "must be > 0")
        good = self.visit_days is None or 0 < self.visit_days <= self.request_days
        self._require(good, "visit_days", f"must be > 0 and <= {self.request_days} (request_days)")
        self._require(self.genres <= self.items < 2**31, "items", f"must be in {self.genres} (genres)..{2**31 - 1}")
        self._require(self.popularity_days is None or self.popularity_days > 0, "popularity_days", "must be > 0")

    def _require(self, good: bool, name: str, message: str) -> None:
        if not good:
            raise InputError(f"synthetic.{name}: {message}, got {getattr(self, name)}")

    @property
    def window_ms(self) -> int:
        """Time at which the request window begins, ms."""
        return round((self.days - self.request_days) * DAY_MS)

    @property
    def rule(self) -> RequestRule:
        """How the window is cut into requests."""
        return RequestRule(max_candidates=self.max_candidates, first_time=self.window_ms, seed=self.seed)


def override(knobs: SyntheticLog, assignments: list[str]) -> SyntheticLog:
    """Apply `knob=value` assignments such as `users=20000`; `none` stands for None.

    Raises:
        InputError: no `=`, no such knob, or a value it cannot take.
    """
    types = {spec.name: str(spec.type) for spec in dataclasses.fields(SyntheticLog) if spec.name != "name"}
    changes: dict[str, int | float | None] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or name not in types:
            raise InputError(f"--set {assignment}: write knob=value; knobs are {', '.join(types)}")
        try:
            if "None" in types[name] and text.lower() == "none":
                changes[name] = None
            elif types[name] == "bool":
                changes[name] = {"true": True, "false": False}[text.lower()]
            else:
                changes[name] = int(text) if types[name] == "int" else float(text)
        except (KeyError, ValueError):
            raise InputError(f"--set {assignment}: {text!r} is not of type {types[name]}") from None
    return dataclasses.replace(knobs, **changes)  # type: ignore[arg-type]


def source(knobs: SyntheticLog) -> Source:
    """A data set made from `knobs`."""
    return Source(
        name=knobs.name,
        description=f"generated, seed {knobs.seed}: {knobs.users:,} users with lognormal history lengths",
        licence="none: generated data, free to use",
        code=Path(synthetic_events.__file__),
        inputs=(),
        parameters=dataclasses.asdict(knobs),
        rule=knobs.rule,
        read=lambda: synthetic_events.parts(knobs),
        ordered_items=knobs.items,
    )
