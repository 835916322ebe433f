"""What data sets are like: history lengths, popularity, candidates, collisions. Functions of their statistics.

Without any statistics each figure says which command makes them, so that a notebook runs before it has been used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from repro.data.statistics import QUANTILES, DatasetStatistics
from repro.report.comparison import events
from repro.report.style import INK, WIDTH, styled

_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
_LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (1, 1)))

Statistics = Sequence[DatasetStatistics]
NONE_YET = "No data set is described yet: run `repro describe NAME`"


def dataset_figure(statistics: DatasetStatistics) -> Figure:
    """One data set: four panels."""
    with styled():
        figure = Figure(figsize=(WIDTH, 6.4), layout="constrained")
        panels = figure.subplots(2, 2).reshape(-1)
        for axes, draw in zip(panels, (_lengths, _popularity, _candidates, _collisions), strict=True):
            draw(axes, [statistics])
            if axes.get_legend_handles_labels()[1]:
                axes.legend(fontsize=8)
        figure.suptitle(
            f"{statistics.name}: {statistics.users:,} users, {statistics.events:,} events, "
            f"{statistics.requests:,} requests",
            fontsize=10,
        )
    return figure


def length_curves(statistics: Statistics) -> Figure:
    """Share of requests whose history is longer, against length."""
    return _one_panel(_lengths, statistics)


def popularity_curves(statistics: Statistics) -> Figure:
    """Share of events of an item against its rank."""
    return _one_panel(_popularity, statistics)


def candidate_bars(statistics: Statistics) -> Figure:
    """Requests by number of candidates."""
    return _one_panel(_candidates, statistics)


def collision_points(statistics: Statistics) -> Figure:
    """Collision rate of consecutive global batches along each data set."""
    return _one_panel(_collisions, statistics)


def _one_panel(draw: Callable[[Axes, Statistics], None], statistics: Statistics) -> Figure:
    with styled():
        figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
        axes = figure.subplots()
        if statistics:
            draw(axes, statistics)
            figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")
        else:
            axes.set_axis_off()
            axes.text(0.5, 0.5, NONE_YET, ha="center", va="center", color=INK)
    return figure


def _lengths(axes: Axes, statistics: Statistics) -> None:
    # The last quantile, 1, has no place on a log axis.
    share = [100 * (1 - q) for q in QUANTILES[:-1]]
    for one, colour, line in zip(statistics, cycle(_COLOURS), cycle(_LINES)):
        label = None if len(statistics) == 1 else one.name
        axes.plot(one.uih_length.quantiles[:-1], share, color=colour, linestyle=line, marker=".", label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_yticks([100, 10, 1, 0.1], ["100", "10", "1", "0.1"])
    axes.set_xlabel("UIH length, events (log scale)")
    axes.set_ylabel("requests with a longer one, % (log scale)")
    if len(statistics) == 1:
        length = statistics[0].uih_length
        axes.set_title(f"Length: median {length.at(0.5):,.0f}, p99 {length.at(0.99):,.0f}, most {length.at(1.0):,.0f}")


def _popularity(axes: Axes, statistics: Statistics) -> None:
    single = len(statistics) == 1
    curves = [
        (f"{curve.feature} ({curve.distinct:,} ids)" if single else one.name, one, curve)
        for one in statistics
        for curve in (one.popularity if single else [one.item])
    ]
    for (label, one, curve), colour, line in zip(curves, cycle(_COLOURS), cycle(_LINES)):
        percent = [100 * count / one.events for count in curve.counts]
        axes.plot(curve.ranks, percent, color=colour, linestyle=line, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("rank, 1 = most popular (log scale)")
    axes.set_ylabel("of all events, % (log scale)")
    if single:
        top = 100 * statistics[0].item.top_shares["0.01"]
        axes.set_title(f"Popularity: 1 % of items have {top:.0f} % of events")


def _candidates(axes: Axes, statistics: Statistics) -> None:
    width = 0.8 / len(statistics)
    for place, (one, colour) in enumerate(zip(statistics, cycle(_COLOURS))):
        counts = one.candidate_counts[1:]
        at = [number + 1 + (place - (len(statistics) - 1) / 2) * width for number in range(len(counts))]
        label = None if len(statistics) == 1 else one.name
        percent = [100 * count / one.requests for count in counts]
        axes.bar(at, percent, width=width, color=colour, edgecolor=INK, linewidth=0.4, label=label)
    axes.set_xlabel("candidates of a request")
    axes.set_ylabel("requests, %")
    if len(statistics) == 1:
        axes.set_title(f"Candidates: {statistics[0].candidates.mean:.1f} on average")


def _collisions(axes: Axes, statistics: Statistics) -> None:
    single = len(statistics) == 1
    for one, colour, line in zip(statistics, cycle(_COLOURS), cycle(_LINES)):
        found = one.collision
        if found is None:
            continue
        size = len(found.global_pct)
        along = [100 * (pair + 0.5) / size for pair in range(size)]
        label = "over all ranks" if single else f"{one.name}, batch {found.global_batch:,}"
        axes.plot(along, found.global_pct, color=colour, linestyle=line, marker="o", label=label)
        if single:
            axes.plot(along, found.rank_pct, color=_COLOURS[1], linestyle="--", marker="s", label="mean rank")
    axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
    axes.set_xlim(0, 100)
    axes.set_xlabel("place in the data set, % of its requests")
    axes.set_ylabel("rows that the batch before touched, %")
    if single:
        found = statistics[0].collision
        axes.set_title(
            "Collision: fewer than two global batches"
            if found is None
            else f"Collision: global batch {found.ranks} x {found.global_batch // found.ranks}, "
            f"UIH {events(found.max_uih)}"
        )
