"""Without this a technique's share could depend on the order in which techniques were listed, the shares could miss the
whole change, or a published claim could be called reproduced by a number far from it. Not covered: whether the runs
that the numbers come from are right."""

from dataclasses import replace

import pytest

from experiments.grid import EXPERIMENT, corner
from experiments.paper_values import PAPER_VALUES
from experiments.presets import BALANCE, FREESCALE, FREESCALE_HIDDEN, TORCHREC
from repro.errors import InputError
from repro.report.shares import missing, own_shares, techniques
from repro.report.verdict import verdict_of_change

HEADLINE = next(value for value in PAPER_VALUES if value.experiment == "headline")


def test_shares_of_two_by_hand():
    """The example of the docstring."""
    found = own_shares({frozenset(): 100, frozenset("A"): 60, frozenset("B"): 70, frozenset("AB"): 50})
    assert (found["A"].alone, found["A"].last, found["A"].mean) == (-40, -20, -30)
    assert (found["B"].alone, found["B"].last, found["B"].mean) == (-30, -10, -20)


def test_shares_of_three_add_up_and_a_technique_without_effect_has_none():
    """C does nothing; A and B gain 1 each and 5 more together, which they share."""
    effect = {"": 0, "A": 1, "B": 1, "AB": 7}
    values = {
        frozenset(on): effect["".join(sorted(set(on) - {"C"}))]
        for on in ("", "A", "B", "C", "AB", "AC", "BC", "ABC")
    }  # fmt: skip
    found = own_shares(values)
    assert (found["C"].alone, found["C"].last, found["C"].mean) == (0, 0, 0)
    assert found["A"].mean == pytest.approx(3.5)
    assert sum(share.mean for share in found.values()) == pytest.approx(7)


def test_a_combination_that_was_not_run_is_named():
    values = {frozenset(): 1.0, frozenset("AB"): 2.0, frozenset("B"): 2.0}
    assert missing(values) == "A"
    with pytest.raises(InputError, match="no run with A"):
        own_shares(values)


def test_the_grid_has_every_combination_with_each_form_of_technique_3():
    arms = [run.arm for run in EXPERIMENT.runs]
    for form in ("host_ring", "host_ring_hidden"):
        of_form = {techniques(arm): 0.0 for arm in arms if arm.transport in ("process_group", form)}
        assert len(of_form) == 8
        assert missing(of_form) == ""
    assert len({arm.name for arm in arms}) == len(arms) == 12


def test_corners_of_the_grid_are_the_ladders_arms_by_other_names():
    assert corner(False, False, "process_group") == TORCHREC
    assert corner(True, False, "process_group") == BALANCE
    assert replace(corner(True, True, "host_ring"), name="freescale") == FREESCALE
    assert replace(corner(True, True, "host_ring_hidden"), name="freescale_hidden") == FREESCALE_HIDDEN


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (-90.3, "reproduced"),
        (-81.4, "reproduced"),
        (-81.2, "direction only"),
        (-99.4, "direction only"),
        (-1.0, "direction only"),
        (0.0, "not reproduced"),
        (5.0, "not reproduced"),
    ],
)
def test_verdicts(found, verdict):
    assert verdict_of_change(HEADLINE, found) == verdict
