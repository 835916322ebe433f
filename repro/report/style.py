"""The one style file of all figures.

Colour says which arm (Okabe-Ito and Tol, safe for colour-blind readers; light and dark alternate so that arms differ in
grey too). Marker and hatch say which mode, so that paper, simulated, emulated and measured never look alike.
Text is drawn in `INK`, which the HTML report replaces by the page's own text colour.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from repro.report.published import PaperValue

INK = "#24292f"
GRID = "#8c959f"
WIDTH = 9.0
"""Width of every figure, inches; text sizes are set for it."""

ARM_COLOUR = {
    "torchrec": "#E69F00",
    "sdd": "#F0E442",
    "balance": "#0072B2",
    "balance+priority": "#56B4E9",
    "freescale": "#009E73",
    "freescale_hidden": "#B5D99C",
    "stale": "#8A8A8A",
    "balance_vbs": "#D55E00",
    "balance_kk": "#CC79A7",
    "balance_cost": "#44AA99",
    "balance_vbs_cost": "#882255",
    "balance_vbs_cost_tuned": "#332288",
}
DATASET_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#882255")
_PEER_COLOUR = "#CC79A7"
ARM_LINE = {
    "torchrec": "-",
    "sdd": "-.",
    "balance": "--",
    "balance+priority": ":",
    "freescale": (0, (5, 1, 1, 1)),
    "freescale_hidden": (0, (1, 1)),
}
ARM_MARKER = {
    "torchrec": "o",
    "sdd": "D",
    "balance": "s",
    "balance+priority": "P",
    "freescale": "X",
    "freescale_hidden": "p",
    "stale": "x",
    "balance_vbs": "^",
    "balance_kk": "v",
    "balance_cost": "<",
    "balance_vbs_cost": ">",
}
"""Where several arms of one mode lie close together; a title then says the mode."""

MODE_HATCH = {"paper": "..", "simulated": "////", "emulated": "xxxx", "measured": ""}
MODE_MARKER = {"paper": "*", "simulated": "o", "emulated": "D", "measured": "s"}

RC: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "hatch.linewidth": 0.7,
    "svg.fonttype": "none",
    "svg.hashsalt": "freescale-repro",
}


def arm_colour(arm: str) -> str:
    """Colour of an arm; peers outside the ladder share one."""
    return ARM_COLOUR.get(arm, _PEER_COLOUR)


def bar_style(arm: str, mode: str) -> dict[str, Any]:
    """Keyword arguments of a bar: the arm's colour, the mode's hatch; paper bars are outlines only."""
    colour = arm_colour(arm)
    if mode == "paper":
        return {"facecolor": "none", "edgecolor": colour, "hatch": MODE_HATCH[mode], "linewidth": 1.4}
    return {"facecolor": colour, "edgecolor": INK, "hatch": MODE_HATCH[mode], "linewidth": 0.6}


def paper_style(value: PaperValue) -> dict[str, Any]:
    """Keyword arguments of a published point: a hollow star in its arm's colour."""
    return {
        "linestyle": "none",
        "marker": MODE_MARKER["paper"],
        "markersize": 14,
        "markerfacecolor": "none",
        "markeredgewidth": 1.6,
        "color": arm_colour(value.arm),
        "label": f"{value.arm}, paper {value.figure} ({value.confidence}): {value.text()}",
    }


def arm_handles(arms: list[str]) -> list[Patch]:
    """Legend entries of arms."""
    return [Patch(facecolor=arm_colour(arm), edgecolor=INK, linewidth=0.6, label=arm) for arm in arms]


def mode_handles(modes: list[str]) -> list[Patch]:
    """Legend entries of modes."""
    return [
        Patch(facecolor="none", edgecolor=INK, hatch=MODE_HATCH[mode], linewidth=1.4 if mode == "paper" else 0.6)
        for mode in modes
    ]


@contextmanager
def styled() -> Iterator[None]:
    """Draw inside this block; matplotlib's own settings are untouched outside it."""
    with matplotlib.rc_context(RC):
        yield


@dataclass(frozen=True, kw_only=True)
class SavedFigure:
    """A figure on disk, and as markup for the report."""

    name: str
    svg: Path
    png: Path
    inline_svg: str
    """Transparent, text in the page's colour."""


def save_figure(figure: Figure, folder: Path, name: str) -> SavedFigure:
    """Write `name.svg` and `name.png` into `folder`, each atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    svg, png = folder / f"{name}.svg", folder / f"{name}.png"
    _replace(svg, _svg(figure, facecolor="white").encode())
    image = io.BytesIO()
    with styled():
        FigureCanvasAgg(figure).print_figure(image, format="png", dpi=150, facecolor="white", bbox_inches="tight")
    _replace(png, image.getvalue())
    inline = _svg(figure, facecolor="none").replace(INK, "currentColor")
    return SavedFigure(name=name, svg=svg, png=png, inline_svg=inline[inline.index("<svg") :])


def _svg(figure: Figure, *, facecolor: str) -> str:
    text = io.StringIO()
    with styled():
        # Without a date the same numbers give the same bytes.
        FigureCanvasSVG(figure).print_figure(
            text, format="svg", facecolor=facecolor, bbox_inches="tight", metadata={"Date": None}
        )
    return text.getvalue()


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_bytes(content)
    partial.replace(path)
