"""`repro prepare synthetic`: a synthetic data set from a preset, from knobs, or like a prepared data set."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from data_prep import sources, synthetic_presets
from data_prep.prepare import prepare_source
from data_prep.synthetic import SyntheticLog, override, source
from data_prep.synthetic_events import DAY_MS
from data_prep.synthetic_fit import Target, fit
from repro.data.dataset import PreparedDataset
from repro.data.distance import HEADER, differences
from repro.data.statistics import statistics
from repro.errors import InputError

_LENGTH_QUANTILES = 201


def knobs_of(name: str, *, like: str, match: Path | None, assignments: Sequence[str]) -> SyntheticLog:
    """The knobs of preset `like`, fitted to the prepared data set in `match` if there is one, then changed by
    `knob=value` assignments.

    Raises:
        InputError: unknown preset or knob, a name that belongs to another data set, no prepared data set.
    """
    if name in sources.names() and name != sources.SYNTHETIC:
        raise InputError(f"--name {name}: this is the name of another data set; choose one of your own")
    presets = {preset.name: preset for preset in synthetic_presets.PRESETS}
    if like not in presets:
        raise InputError(f"--like {like}: not a preset; there are {', '.join(presets)}")
    knobs = dataclasses.replace(presets[like], name=name)
    if match is not None:
        knobs = fit(target_of(PreparedDataset.open(match)), knobs, name)
    return override(knobs, list(assignments))


def prepare_synthetic(
    knobs: SyntheticLog,
    data: Path,
    *,
    key_path: Path,
    match: Path | None = None,
    force: bool = False,
    log: Callable[[str], None] = print,
) -> Path:
    """Prepare `knobs` in `data / knobs.name`; with `match`, print how far it is from the prepared data set there.

    Raises:
        InputError: as `sources.prepare`.
    """
    log(f"{knobs.name}: knobs {json.dumps(dataclasses.asdict(knobs))}")
    folder = prepare_source(source(knobs), data, key_path=key_path, force=force, log=log)
    if match is not None:
        log(HEADER)
        for line in differences(PreparedDataset.open(match), PreparedDataset.open(folder)):
            log(line.text())
    return folder


def target_of(dataset: PreparedDataset) -> Target:
    """What is to be matched of a prepared data set."""
    found = statistics(dataset)
    length_R = dataset.uih_end - dataset.uih_begin
    return Target(
        users=int(np.unique(dataset.request_user).size),
        requests_a_user=found.requests_a_user.mean,
        activity=found.activity,
        length_quantiles=np.quantile(length_R, np.linspace(0, 1, _LENGTH_QUANTILES)),
        most_candidates=round(found.candidates.at(1.0)),
        positive_share=found.positive_pct / 100,
        events=found.events,
        items=found.item.distinct,
        item_gini=found.item.gini,
        days=float(dataset.request_time[-1] - dataset.request_time[0]) / DAY_MS,
    )
