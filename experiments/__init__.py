"""Recipes: what is run, in which arms and modes, and which paper item it speaks to.

A recipe is a typed value made from a baseline by its delta. `EXPERIMENTS` lists them in the order of the report.
"""

from __future__ import annotations

from experiments import (
    autotune,
    collision_sweep,
    emulated_ladder,
    fig02,
    fig03,
    fig08a,
    fig08b,
    fig08c,
    fig09,
    fig11_qps,
    grid,
    headline,
    ladder,
    stragglers,
    transports,
)
from experiments.experiment import Experiment
from repro.errors import InputError

EXPERIMENTS: tuple[Experiment, ...] = (
    ladder.EXPERIMENT,
    fig02.EXPERIMENT,
    fig03.EXPERIMENT,
    fig08a.EXPERIMENT,
    fig08b.EXPERIMENT,
    fig08c.EXPERIMENT,
    fig09.EXPERIMENT,
    fig11_qps.EXPERIMENT,
    headline.EXPERIMENT,
    grid.EXPERIMENT,
    emulated_ladder.EXPERIMENT,
    stragglers.EXPERIMENT,
    autotune.EXPERIMENT,
    collision_sweep.EXPERIMENT,
    transports.EXPERIMENT,
)


def experiment(name: str) -> Experiment:
    """The experiment of that name.

    Raises:
        InputError: there is none.
    """
    for candidate in EXPERIMENTS:
        if candidate.name == name:
            return candidate
    names = ", ".join(candidate.name for candidate in EXPERIMENTS)
    raise InputError(
        f"no experiment {name!r}; there are {names} (see `repro list`), or give a recipe file ending in .json"
    )
