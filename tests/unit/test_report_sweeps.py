"""Without these tests a sweep could join settings that differ, drop an arm, take an overridden collision rate for the
data set's own, or book the gain of deduplication as one of priority. Runs are small simulations of a stand-in data set.

Not covered: whether a figure looks good, and whether any number is right.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from report_records import config, write_run
from sim_data import skewed

from experiments import grid, headline
from experiments.paper_values import PAPER_VALUES
from experiments.presets import BALANCE, BALANCE_PRIORITY, BALANCE_VBS_COST, BALANCERS, SDD, STALE, TORCHREC
from repro.config import Arm
from repro.errors import InputError
from repro.execution.simulated.executor import simulate
from repro.report.claims import claims
from repro.report.figures.collision import collision_figure
from repro.report.figures.collision_sweep import collision_sweep_figure, curves
from repro.report.figures.exposed import at_shares, exposed_figure, line_fit, low_shares, swept_run
from repro.report.figures.headline import headline_figure
from repro.report.figures.sweep import along, sweep_panels
from repro.report.sections.autotune import autotune_section
from repro.report.sections.collision import collision_section
from repro.report.sections.collision_sweep import collision_sweep_section
from repro.report.sections.exposed import exposed_section
from repro.report.sections.grid import grid_section
from repro.report.sections.headline import headline_section
from repro.report.sections.partitions import batch_section, scale_section
from repro.report.sections.stragglers import stragglers_section
from repro.report.sections.throughput import throughput_section
from repro.report.style import ARM_COLOUR, ARM_MARKER
from repro.timeline.schema import Metric
from repro.tracking.record import RunRecord

LADDER = (TORCHREC, SDD, BALANCE, BALANCE_PRIORITY)
LIKE_TUNED = replace(BALANCE_VBS_COST, name="balance_vbs_cost_tuned")
"""By name only: what is simulated has no times to learn from."""
DATA = skewed(16 * 8 * 8, seed=11)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[RunRecord]:
    base = config(steps=4, gpus=16)
    runs = [
        *(replace(base, experiment="fig03", gpus=gpus) for gpus in (8, 16)),
        *(replace(base, experiment="fig08b", batch=batch, arm=arm) for batch in (4, 8) for arm in BALANCERS),
        *(replace(base, experiment="fig08c", gpus=gpus, arm=arm) for gpus in (8, 16) for arm in BALANCERS),
        *(replace(base, experiment="stragglers", arm=arm) for arm in BALANCERS),
        *(replace(base, experiment="autotune", arm=arm) for arm in (BALANCE_VBS_COST, LIKE_TUNED)),
        *(replace(base, experiment="fig09", max_uih=cap, arm=arm) for cap in (1000, 8000) for arm in (*LADDER, STALE)),
        *(replace(base, experiment="fig11_qps", gpus=gpus, arm=arm) for gpus in (8, 16) for arm in LADDER),
        *(replace(base, experiment="headline", gpus=8, steps=3, arm=run.arm) for run in headline.EXPERIMENT.runs),
        *(replace(base, experiment="grid", gpus=8, steps=3, arm=run.arm) for run in grid.EXPERIMENT.runs),
    ]
    results = tmp_path_factory.mktemp("results")
    made = [write_run(results, run, simulate(run, DATA, run_id="r")) for run in runs]
    return made + [
        sweep_run(results / str(rate), arm, rate) for rate in RATES for arm in (TORCHREC, SDD, BALANCE_PRIORITY)
    ]


RATES = (2, 6, 9)


def sweep_run(results: Path, arm: Arm, rate: int) -> RunRecord:
    """A run at a collision rate, in per cent, with a known exposed time; only the prioritized arm counts rows."""
    run = replace(config(arm=arm, experiment="collision_sweep"), dataset=f"collisions-{rate}pct")
    record = write_run(results, run, simulate(run, DATA, run_id="r"))
    exposed = {"torchrec": 50.0, "sdd": 40.0}.get(arm.name, 1.0 + rate)
    known = {"exposed_embedding_ms": exposed, "exposed_comm_ms": 2 * exposed + 5}
    if arm == BALANCE_PRIORITY:
        known |= {"exchange_collision_pct": rate, "dedup_saving_pct": 25.0}
    metrics = {
        name: metric for name, metric in record.metrics.items() if "collision" not in name and "dedup" not in name
    }
    return replace(record, metrics=metrics | {name: Metric(value=value, unit="") for name, value in known.items()})


def of(records: list[RunRecord], experiment: str) -> list[RunRecord]:
    return [record for record in records if record.config.experiment == experiment]


@pytest.mark.parametrize(
    ("section", "experiment"),
    [
        (collision_section, "fig03"),
        (batch_section, "fig08b"),
        (scale_section, "fig08c"),
        (exposed_section, "fig09"),
        (collision_sweep_section, "collision_sweep"),
        (stragglers_section, "stragglers"),
        (autotune_section, "autotune"),
        (throughput_section, "fig11_qps"),
        (headline_section, "headline"),
        (grid_section, "grid"),
    ],
)
def test_every_section_answers_shows_and_lists_its_runs(section, experiment, records, tmp_path: Path) -> None:
    made = section(records, PAPER_VALUES, tmp_path)
    assert made.was_run
    assert made.answer.endswith(".")
    assert made.command == f"repro run {experiment}"
    assert "imulated" in made.illustrations[0].caption or experiment == "fig03"
    assert made.table is not None
    assert all(len(row) == len(made.table.header) for row in made.table.rows)
    assert (tmp_path / f"{made.illustrations[0].figure.name}.png").exists()
    nothing = section([], PAPER_VALUES, tmp_path)
    assert not nothing.was_run
    assert nothing.command == f"repro run {experiment}"


def test_panels_join_only_what_differs_in_the_knob(records) -> None:
    ((shared, panel),) = sweep_panels(of(records, "fig08b"), "batch", "straggler_pct")
    assert shared == "simulated, 16 GPUs, synthetic, UIH 2K"
    assert set(panel) == {arm.name for arm in BALANCERS}
    assert {tuple(sorted(curve)) for curve in panel.values()} == {(4, 8)}
    both = sweep_panels([*of(records, "fig08b"), *of(records, "fig08c")], "batch", "straggler_pct")
    assert [shared for shared, _ in both] == ["simulated, 8 GPUs, synthetic, UIH 2K", shared]
    with pytest.raises(InputError, match="needs at least one run"):
        along([], "gpus", "qps", "requests/s")


def test_every_partition_has_a_colour_and_a_marker_of_its_own() -> None:
    for styles in (ARM_COLOUR, ARM_MARKER):
        assert len({styles[arm.name] for arm in BALANCERS}) == len(BALANCERS)


def test_line_fit_is_least_squares() -> None:
    assert line_fit({1: 3.0, 2: 5.0, 3: 7.0}) == pytest.approx((1, 2, 1))
    start, slope, r2 = line_fit({0: 0.0, 1: 1.0, 2: 0.0})
    assert (start, slope, r2) == pytest.approx((1 / 3, 0, 0))


def test_the_overridden_rate_is_told_from_the_data_sets_own(records, tmp_path: Path) -> None:
    swept = swept_run(of(records, "fig09"))
    assert swept is not None
    run, arms = swept
    assert run.config.max_uih == 8000
    assert list(at_shares(run)) == [1, 2, 5, 10, 15, 100]
    assert list(low_shares(run)) == [1, 2, 5, 10, 15]
    assert set(arms) == {arm.name for arm in (*LADDER, STALE)}
    section = exposed_section(records, PAPER_VALUES, tmp_path)
    assert section.table is not None
    overridden = [row for row in section.table.rows if "overridden" in row]
    assert [row[1] for row in overridden][-1] == "same rows, synchronous"
    assert len(overridden) == 6
    own = f"{run.metric('exchange_collision_pct'):.0f}"
    assert f"own rate ({own}\u00a0% of exchanged rows)" in section.answer


def test_a_rate_that_was_counted_serves_all_arms_of_its_data(records, tmp_path: Path) -> None:
    sweep = of(records, "collision_sweep")
    assert curves(sweep) == {
        "torchrec": {2: 50, 6: 50, 9: 50},
        "sdd": {2: 40, 6: 40, 9: 40},
        "balance+priority": {2: 3, 6: 7, 9: 10},
    }
    answer = collision_sweep_section(sweep, PAPER_VALUES, tmp_path).answer.replace("\u00a0", " ")
    assert "where 9.0 % of the exchanged rows collide: 50.0 ms with torchrec, 10.0 ms with balance+priority" in answer
    assert "80 % less; 25 % of the lookups" in answer and "40.0 ms with sdd" in answer
    assert "over 2.0-9.0 % the line of balance+priority is 1.0 ms + 1.00 ms a per cent (R² 1.000;" in answer
    assert "with the dense AllReduce: 105.0 ms with torchrec, 25.0 ms with balance+priority (76 % less)" in answer
    assert "of all communication 2.00 ms a per cent, R² 1.000" in answer
    assert "torchrec stays between 50.0 and 50.0 ms" in answer
    unpaired = [record for record in sweep if record.config.arm != BALANCE_PRIORITY]
    assert curves(unpaired) == {}
    assert "No setting has both" in collision_sweep_section(unpaired, PAPER_VALUES, tmp_path).answer
    other = replace(sweep[-1], config=replace(sweep[-1].config, gpus=16))
    with pytest.raises(InputError, match="one mode, world size"):
        collision_sweep_figure([*sweep, other])


def test_each_partitions_stragglers_are_set_against_torchrecs_of_the_same_setting(records, tmp_path: Path) -> None:
    known = {"torchrec": 20.0, "balance": 5.0, "balance_kk": 0.0}
    runs = [
        replace(run, metrics=run.metrics | {"straggler_pct": Metric(value=known[run.config.arm.name], unit="%")})
        for run in of(records, "stragglers")
        if run.config.arm.name in known
    ]
    section = stragglers_section(runs, PAPER_VALUES, tmp_path)
    answer = section.answer.replace("\u00a0", " ")
    assert (
        "20.0 % of the step with torchrec, 5.0 % with balance (4.0× less), 0.0 % with balance_kk (none left)" in answer
    )
    assert section.table is not None
    assert {row[1]: row[-1] for row in section.table.rows} == {
        "torchrec": "1.0",
        "balance": "4.0",
        "balance_kk": "none left",
    }
    alone = stragglers_section([run for run in runs if run.config.arm == BALANCE], PAPER_VALUES, tmp_path)
    assert "no torchrec run to compare with" in alone.answer


def test_the_headline_is_computed_and_judged(records, tmp_path: Path) -> None:
    runs = of(records, "headline")
    arms = {run.config.arm.name: run for run in runs}
    before, after = (arms[name].metric("exposed_comm_ms") for name in ("torchrec", "freescale"))
    change = 100 * (after / before - 1)
    answer = headline_section(runs, PAPER_VALUES, tmp_path).answer.replace("\u00a0", " ")
    assert f"{change:+.1f} % with freescale" in answer
    wanted = "reproduced" if abs(change + 90.3) <= 9.03 else "direction only" if change < 0 else "not reproduced"
    assert f"the paper: -90.3 % with freescale (A), so {wanted};" in answer
    compute = [
        arms[name].metric("step_ms") * (1 - arms[name].metric("bubble_pct") / 100)
        for name in ("balance+priority", "freescale")
    ]
    assert f"compute of a step changes by {100 * (compute[1] / compute[0] - 1):+.1f} %" in answer
    (stars,) = [line for line in headline_figure(runs, PAPER_VALUES).axes[0].lines if line.get_marker() == "*"]
    assert (float(np.asarray(stars.get_xdata())[0]), stars.get_linestyle()) == (-90.3, "None")


def test_the_headline_is_that_of_the_largest_setting_with_a_baseline(records, tmp_path: Path) -> None:
    runs = of(records, "headline")
    larger = [replace(run, config=replace(run.config, gpus=128)) for run in runs]
    for more, gpus in ((larger, 128), ([run for run in larger if run.config.arm != TORCHREC], 8)):
        section = headline_section([*runs, *more], PAPER_VALUES, tmp_path)
        assert f"{gpus} GPUs" in section.answer
        assert section.table is not None
        assert len(section.table.rows) == len(runs)
    assert not headline_section([run for run in runs if run.config.arm != TORCHREC], PAPER_VALUES, tmp_path).was_run


def test_shares_of_the_grid_add_up_to_the_whole_change(records, tmp_path: Path) -> None:
    runs = of(records, "grid")
    steps = {run.config.arm.name: run.metric("step_ms") for run in runs}
    table = grid_section(runs, PAPER_VALUES, tmp_path).table
    assert table is not None
    for form, name in (("host_ring", "smfree"), ("host_ring_hidden", "smfree_hidden")):
        means = [float(row[4]) for row in table.rows if row[0] == f"step, with {form}"]
        assert len(means) == 3
        assert sum(means) == pytest.approx(steps[f"balance+priority+{name}"] - steps["torchrec"], abs=0.02)


def test_a_grid_with_a_gap_says_which_run_it_lacks(records, tmp_path: Path) -> None:
    runs = [run for run in of(records, "grid") if run.config.arm.name != "balance+smfree"]
    section = grid_section(runs, PAPER_VALUES, tmp_path)
    assert "with host_ring: no run with balancing + host_ring" in section.answer
    assert section.table is not None
    assert {row[0] for row in section.table.rows} == {
        "exposed communication, with host_ring_hidden",
        "step, with host_ring_hidden",
    }


def test_autotune_says_what_it_took_from_the_wait_and_from_the_step(records, tmp_path: Path) -> None:
    known = {"balance_vbs_cost": (20.0, 100.0), "balance_vbs_cost_tuned": (5.0, 80.0)}
    runs = [
        replace(
            run,
            metrics=run.metrics
            | {
                name: Metric(value=value, unit="")
                for name, value in zip(("straggler_pct", "step_ms"), known[run.config.arm.name], strict=True)
            },
        )
        for run in of(records, "autotune")
    ]
    answer = autotune_section(runs, PAPER_VALUES, tmp_path).answer.replace("\u00a0", " ")
    assert "the others wait 20.0 % of the step with equal shares" in answer
    assert "5.0 % with shares that follow" in answer and "a step takes 20 % less time" in answer
    assert "no setting has both" in autotune_section(runs[:1], PAPER_VALUES, tmp_path).answer


def test_figures_have_paper_values_apart(records) -> None:
    exposed = exposed_figure(of(records, "fig09"), PAPER_VALUES)
    stars = [line for line in exposed.axes[0].lines if line.get_marker() == "*"]
    assert [line.get_linestyle() for line in stars] == ["None", "None"]
    assert {float(np.asarray(line.get_ydata())[0]) for line in stars} == {111.0, 13.0}
    collision = collision_figure(of(records, "fig03"), PAPER_VALUES)
    levels = [line for line in collision.axes[0].lines if "paper" in str(line.get_label())]
    assert len(levels) == 2
    with pytest.raises(InputError, match="one setting"):
        exposed_figure([*of(records, "fig09"), *of(records, "fig08c")])


def test_claims_name_the_stand_in_and_its_collisions(records) -> None:
    without = [record for record in records if record.config.experiment not in ("headline", "grid")]
    found = {(c.published.experiment, c.published.metric, c.published.arm): c.findings["simulated"] for c in
             claims(without, PAPER_VALUES)}  # fmt: skip
    exposed = found["fig09", "exposed_embedding_ms", "freescale"]
    assert exposed is not None
    assert "balance+priority for freescale" in exposed.differs
    assert "% of exchanged rows collide" in exposed.differs
    baseline = found["fig09", "exposed_embedding_ms", "torchrec"]
    assert baseline is not None
    assert "for freescale" not in baseline.differs
    saved = found["fig11_qps", "metadata_saving_ms", "sdd"]
    assert saved is not None
    assert float(saved.text.split()[0]) > 0
    (claim,) = [c for c in claims(records, PAPER_VALUES) if c.published.experiment == "headline"]
    finding = claim.findings["simulated"]
    assert finding is not None
    assert "for freescale" not in finding.differs
