"""What each of several techniques does to a number, when every combination of them was run.

What a technique seems to do depends on what was there before it, so three answers are given: alone (added to none),
last (added to all others), and the mean over all orders in which they could be added (its Shapley value). The means add
up to the whole change.

Example: 100 with neither of A and B, 60 with A, 70 with B, 50 with both. A: alone -40, last -20, mean -30. B: alone
-30, last -10, mean -20; together -50.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from math import factorial

from repro.config import Arm
from repro.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Share:
    """Changes that one technique makes, in the unit of the number."""

    alone: float
    last: float
    mean: float


def techniques(arm: Arm) -> frozenset[str]:
    """Which of the paper's three techniques an arm has; technique 3 by the name of its transport."""
    has = {
        "balancing": arm.partition != "identity",
        "prioritized updates": arm.exchange == "prioritized",
        arm.transport: arm.transport != "process_group",
    }
    return frozenset(name for name, on in has.items() if on)


def missing(values: Mapping[frozenset[str], float]) -> str:
    """The combinations that were not run, in words; empty when all were."""
    found = sorted(set().union(*values))
    every = (frozenset(some) for size in range(len(found) + 1) for some in combinations(found, size))
    return "; ".join(" + ".join(sorted(some)) or "none" for some in every if some not in values)


def own_shares(values: Mapping[frozenset[str], float]) -> dict[str, Share]:
    """Share of every technique.

    Args:
        values: the number, by the techniques that were on; of all combinations.

    Raises:
        InputError: a combination is missing.
    """
    if missing(values):
        raise InputError(f"shares of techniques: no run with {missing(values)}")
    every = sorted(set().union(*values))
    return {technique: _share(technique, values, len(every)) for technique in every}


def _share(technique: str, values: Mapping[frozenset[str], float], n: int) -> Share:
    gains = {before: values[before | {technique}] - values[before] for before in values if technique not in before}
    orders = {before: factorial(len(before)) * factorial(n - 1 - len(before)) for before in gains}
    return Share(
        alone=gains[frozenset()],
        last=gains[max(gains, key=len)],
        mean=sum(orders[before] * gain for before, gain in gains.items()) / factorial(n),
    )
