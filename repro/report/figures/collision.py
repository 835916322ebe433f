"""Collision rate of consecutive global batches (paper, Fig. 3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from repro.errors import InputError
from repro.report.published import PaperValue
from repro.report.style import DATASET_COLOURS, INK, WIDTH, styled
from repro.tracking.record import RunRecord

MEAN, P99 = "collision_pct", "collision_p99_pct"
_MARKERS = "osDv^P"


def collision_figure(records: Sequence[RunRecord], published: Sequence[PaperValue] = ()) -> Figure:
    """Mean (mark) and 99th percentile (whisker) over pairs of batches, by requests in a global batch. The paper's
    values have no such setting and are levels.

    Raises:
        InputError: no runs, or one that did not count rows.
    """
    if not records:
        raise InputError("the collision figure needs at least one run")
    with styled():
        figure = Figure(figsize=(WIDTH, 3.9), layout="constrained")
        axes = figure.subplots()
        for index, dataset in enumerate(dict.fromkeys(run.config.dataset for run in records)):
            runs = sorted((r for r in records if r.config.dataset == dataset), key=lambda r: r.config.global_batch)
            colour = DATASET_COLOURS[index % len(DATASET_COLOURS)]
            x = [run.config.global_batch for run in runs]
            mean = [run.metric(MEAN) for run in runs]
            above = [max(run.metric(P99) - run.metric(MEAN), 0) for run in runs]
            axes.errorbar(
                x,
                mean,
                yerr=np.array([[0.0] * len(x), above]),
                linestyle="none",
                marker=_MARKERS[index % len(_MARKERS)],
                color=colour,
                capsize=3,
                label=f"{dataset}, counted; whisker to p99",
            )
            for at in dict.fromkeys(x):
                same = [run for run in runs if run.config.global_batch == at]
                axes.annotate(
                    ", ".join(f"{run.config.gpus} × {run.config.batch}" for run in same),
                    (at, min(run.metric(MEAN) for run in same)),
                    xytext=(0, -13),
                    textcoords="offset points",
                    ha="center",
                    fontsize=7.5,
                )
        for level in published:
            if level.metric in (MEAN, P99):
                name, line = ("p99", ":") if level.metric == P99 else ("mean", "--")
                label = f"paper {level.figure} ({level.confidence}), {name}: {level.text()}"
                axes.axhline(level.value, linestyle=line, color=INK, linewidth=1, label=label)
        axes.set_xscale("log", base=2)
        sizes = sorted({run.config.global_batch for run in records})
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
        axes.set_xlabel("requests in a global batch (GPUs × batch; log scale)")
        axes.set_ylabel("rows that the batch before touches, %")
        axes.set_ylim(0, 100)
        axes.margins(x=0.1)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2)
    return figure
