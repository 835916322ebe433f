"""How far apart two prepared data sets are, statistic by statistic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from repro.data.dataset import PreparedDataset
from repro.data.statistics import statistics

# R requests of a data set


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One line of the comparison."""

    quantity: str
    wanted: float
    made: float
    distance: float
    measure: str
    """What `distance` is."""

    def text(self) -> str:
        """One line."""
        return f"{self.quantity:<26}{self.wanted:>12.4g}{self.made:>12.4g}{self.distance:>12.4g}  {self.measure}"


HEADER = f"{'':<26}{'wanted':>12}{'made':>12}{'distance':>12}"


def differences(
    wanted: PreparedDataset, made: PreparedDataset, *, ranks: int = 8, batch: int = 16, max_uih: int = 21_000
) -> list[Difference]:
    """Compare `made` with `wanted`; collisions in global batches of ranks x batch requests, where both hold two.

    Distances of lengths and candidates are between whole distributions: Wasserstein-1 of ln(length) (0.1: a typical
    history is 10 % longer or shorter than its counterpart) and Kolmogorov-Smirnov.
    """
    one, two = (statistics(dataset, ranks=ranks, batch=batch, max_uih=max_uih) for dataset in (wanted, made))
    length_R, other_R = (dataset.uih_end - dataset.uih_begin for dataset in (wanted, made))
    count_R, other_count_R = (np.diff(dataset.candidate_offsets) for dataset in (wanted, made))
    found = [
        Difference(
            quantity="UIH length, median",
            wanted=one.uih_length.at(0.5),
            made=two.uih_length.at(0.5),
            distance=wasserstein(np.log(length_R), np.log(other_R)),
            measure="Wasserstein-1 of ln(length)",
        ),
        Difference(
            quantity="UIH length, p99",
            wanted=one.uih_length.at(0.99),
            made=two.uih_length.at(0.99),
            distance=kolmogorov_smirnov(length_R, other_R),
            measure="Kolmogorov-Smirnov",
        ),
        Difference(
            quantity="candidates, mean",
            wanted=one.candidates.mean,
            made=two.candidates.mean,
            distance=kolmogorov_smirnov(count_R, other_count_R),
            measure="Kolmogorov-Smirnov",
        ),
    ]
    pairs = [
        ("requests a user", one.requests_a_user.mean, two.requests_a_user.mean),
        ("activity exponent", one.activity, two.activity),
        ("positive labels, %", one.positive_pct, two.positive_pct),
        ("items that occur", one.item.distinct, two.item.distinct),
        ("item Gini", one.item.gini, two.item.gini),
        ("events of top 1 % items, %", 100 * one.item.top_shares["0.01"], 100 * two.item.top_shares["0.01"]),
        ("events of top 10 % items, %", 100 * one.item.top_shares["0.1"], 100 * two.item.top_shares["0.1"]),
    ]
    if one.collision is not None and two.collision is not None:
        rates = [float(np.mean(side.collision.global_pct)) for side in (one, two) if side.collision is not None]
        pairs.append(("collision (not fitted), %", rates[0], rates[1]))
    for quantity, a, b in pairs:
        found.append(Difference(quantity=quantity, wanted=a, made=b, distance=abs(b - a), measure="difference"))
    return found


def wasserstein(one_R: np.ndarray, other_R: np.ndarray) -> float:
    """Wasserstein-1 distance between two samples: the area between their distribution functions."""
    points = np.sort(np.concatenate([one_R, other_R]))
    return float((np.abs(_steps(one_R, points[:-1]) - _steps(other_R, points[:-1])) * np.diff(points)).sum())


def kolmogorov_smirnov(one_R: np.ndarray, other_R: np.ndarray) -> float:
    """Largest distance between the distribution functions of two samples, 0..1."""
    points = np.concatenate([one_R, other_R])
    return float(np.abs(_steps(one_R, points) - _steps(other_R, points)).max())


def _steps(sample_R: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Share of the sample that is at or below each point."""
    share: np.ndarray = np.searchsorted(np.sort(sample_R), points, side="right") / sample_R.size
    return share
