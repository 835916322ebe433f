"""Without these, nobody knows whether the collision rate of Fig. 3 and 9 can be set at all: each knob that claims to
move it is turned, and the rate is measured on the prepared set, as the reader delivers it.

Not covered: the definition (test_embedding_collision.py), and batches of 64 x 128 requests, which need far more users.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from data_prep.prepare import prepare_source
from data_prep.synthetic import SyntheticLog, source
from data_prep.synthetic_presets import INDUSTRIAL_21K
from repro.data.dataset import PreparedDataset
from repro.data.statistics import collision

FEW = dataclasses.replace(
    INDUSTRIAL_21K, name="few", users=4_000, heavy_share=0.0, requests_a_user=0.3, items=20_000_000, authors=2_000_000
)
"""Users come about once, and there are far more items than a batch can touch."""


def collision_pct(knobs: SyntheticLog, root: Path) -> float:
    """Mean over pairs of consecutive global batches of 8 x 16 requests, over all ranks."""
    knobs = dataclasses.replace(knobs, name=f"set-{len(list(root.glob('data/*')))}")
    folder = prepare_source(source(knobs), root / "data", key_path=root / "key", log=lambda _: None)
    found = collision(PreparedDataset.open(folder), ranks=8, batch=16, max_uih=1_000, pairs=12)
    assert found is not None
    return float(np.mean(found.global_pct))


def test_from_one_to_fifteen_percent_by_popularity(tmp_path: Path) -> None:
    exponents = (0.6, 0.75, 0.9, 1.0, 1.1, 1.2)
    rates = [collision_pct(dataclasses.replace(FEW, popularity_exponent=e), tmp_path) for e in exponents]
    assert rates[0] < 1.0
    assert rates[-1] > 15.0
    assert np.all(np.diff(rates) > 0)
    assert np.diff(rates).max() < 7  # no gap between: any rate can be had by bisection


@pytest.mark.parametrize(("knob", "value"), [("items", 100_000), ("requests_a_user", 4.0)])
def test_other_knobs_that_move_it(tmp_path: Path, knob: str, value: float) -> None:
    low, high = (collision_pct(knobs, tmp_path) for knobs in (FEW, dataclasses.replace(FEW, **{knob: value})))
    assert low < 3.0
    assert high > low + 4.0
