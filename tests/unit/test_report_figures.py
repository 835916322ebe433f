"""Without these tests a figure could leave out an arm, join modes, or draw a missing number as 0.

Not covered: whether a figure looks good. That needs eyes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure
from report_records import BALANCE, TORCHREC, config, drop_metric, write_run, write_small_results

from experiments.paper_values import PAPER_VALUES
from repro.errors import InputError, RunError
from repro.report.figures import (
    ablation_bars,
    ledger_bars,
    ne_curves,
    run_images,
    step_timeline,
    straggler_against_uih,
    typical_step,
)
from repro.report.figures.ablation import ablation_values
from repro.report.figures.ledger import KINDS, kind_of_part, kind_shares, ledger_shares
from repro.report.figures.timeline import shown_ranks, step_segments
from repro.report.style import INK, MODE_HATCH, MODE_MARKER, save_figure
from repro.timeline.ledger import PARTS, STRAGGLER, build_ledger
from repro.tracking.jsonl import write_steps
from repro.tracking.record import RunRecord, read_record


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[RunRecord]:
    return write_small_results(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def ladder(records: list[RunRecord]) -> list[RunRecord]:
    return [record for record in records if record.config.experiment == "ladder"]


def _legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_ablation_has_every_arm_in_every_setting_and_the_paper(ladder: list[RunRecord]) -> None:
    published = [value for value in PAPER_VALUES if value.experiment == "fig08a"]
    bars = ablation_values(ladder, published, "straggler_pct")
    assert {(bar.mode, bar.arm) for bar in bars} == {
        (mode, arm) for mode in ("paper", "simulated", "measured") for arm in ("torchrec", "balance")
    }
    assert len(bars) == 2 + len(ladder)
    figure = ablation_bars(ladder, published)
    assert _legend(figure) == ["torchrec", "balance", "paper", "simulated", "measured"]
    assert not [line for axes in figure.axes for line in axes.lines], "bars of different modes are not joined"


def test_ablation_times_are_ratios(ladder: list[RunRecord]) -> None:
    for metric in ("exposed_comm_ms", "qps"):
        bars = ablation_values(ladder, [], metric)
        assert {bar.value.mean for bar in bars if bar.arm == "torchrec"} == {1.0}


def test_missing_metric_stops_the_figure(tmp_path: Path) -> None:
    record = write_run(tmp_path, config())
    drop_metric(record, "exposed_comm_ms")
    with pytest.raises(InputError, match="no metric 'exposed_comm_ms'"):
        ablation_bars([read_record(record.folder)])


@pytest.mark.parametrize("draw", [ablation_bars, straggler_against_uih, ne_curves, ledger_bars])
def test_no_runs_is_said_not_drawn(draw) -> None:
    with pytest.raises(InputError, match="need"):
        draw([])


def test_straggler_curves_and_published_points_are_apart(records: list[RunRecord]) -> None:
    sweep = [record for record in records if record.config.experiment == "fig08a"]
    (axes,) = straggler_against_uih(sweep, PAPER_VALUES).axes
    lines = {line.get_label(): line for line in axes.lines}
    for arm in ("torchrec", "balance"):
        line = lines[f"{arm}, simulated"]
        assert list(line.get_xdata()) == [1000, 8000, 21000]
        runs = {record.config.max_uih: record for record in sweep if record.config.arm.name == arm}
        assert list(line.get_ydata()) == [runs[uih].metric("straggler_pct") for uih in (1000, 8000, 21000)]
    published = [line for label, line in lines.items() if "paper" in str(label)]
    assert {line.get_linestyle() for line in published} == {"None"}
    assert sorted(line.get_marker() for line in published) == ["*", "*", "^"]
    assert all("(B)" in str(line.get_label()) for line in published)


def test_ne_curves_and_their_difference(ladder: list[RunRecord]) -> None:
    measured = [record for record in ladder if record.config.mode == "measured"]
    upper, lower = ne_curves(measured).axes
    assert [line.get_label() for line in upper.lines] == ["torchrec, measured", "balance, measured"]
    assert list(upper.lines[0].get_ydata()) == [row["quality/ne"] for row in measured[0].steps()]
    assert list(lower.lines[0].get_ydata()) == [0.0] * measured[0].config.steps
    with pytest.raises(InputError, match="quality/ne"):
        ne_curves([record for record in ladder if record.config.mode == "simulated"])


def test_ledger_parts_sum_to_the_step(ladder: list[RunRecord]) -> None:
    assert {kind_of_part(part) for part in PARTS} <= set(KINDS)
    for record in ladder:
        shares = ledger_shares(record)
        assert sum(shares.values()) == pytest.approx(100, abs=1e-9)
        assert sum(kind_shares(record).values()) == pytest.approx(100, abs=1e-9)
        assert shares[STRAGGLER] == pytest.approx(record.metric("straggler_pct"))
    assert _legend(ledger_bars(ladder))[-2:] == ["measured", "simulated"]


def test_ledger_that_does_not_add_up_is_refused(tmp_path: Path) -> None:
    record = write_run(tmp_path, config())
    rows = record.steps()
    rows[-1]["ledger/useful_compute_ms"] *= 2
    write_steps(rows, record.folder)
    with pytest.raises(RunError, match="sum to"):
        ledger_bars([record])
    del rows[-1]["ledger/useful_compute_ms"]
    write_steps(rows, record.folder)
    with pytest.raises(InputError, match="useful_compute_ms"):
        ledger_bars([record])


def test_timeline_waits_agree_with_the_ledger(ladder: list[RunRecord]) -> None:
    record = next(r for r in ladder if r.config.gpus == 8 and r.config.arm == TORCHREC)
    ledger = build_ledger(record.timeline())
    step = typical_step(record)
    segments, window = step_segments(record.timeline(), step)
    index = list(ledger.steps).index(step)
    assert window == pytest.approx(ledger.window_ns[index] / 1e6)
    for rank in range(8):
        waited = sum(s.duration_ms for s in segments if s.rank == rank and s.kind == "straggler wait")
        assert waited == pytest.approx(ledger.part(STRAGGLER)[index, rank] / 1e6)


def test_timeline_of_many_ranks_shows_the_extremes(ladder: list[RunRecord]) -> None:
    pair = [r for r in ladder if r.config.gpus == 64]
    step = typical_step(pair[0])
    segments, _ = step_segments(pair[0].timeline(), step)
    busy = {
        rank: sum(s.duration_ms for s in segments if s.rank == rank and s.kind == "useful compute")
        for rank in range(64)
    }
    ranks = shown_ranks(segments)
    assert len(ranks) == 8
    assert ranks[0] == min(busy, key=lambda rank: busy[rank])
    assert ranks[-1] == max(busy, key=lambda rank: busy[rank])
    titles = [axes.get_title(loc="left") for axes in step_timeline(pair, step).axes]
    assert all("8 of 64 ranks" in title and "simulated" in title for title in titles)
    assert [title.split(":")[0] for title in titles] == ["torchrec", "balance"]


def test_timeline_joins_no_modes_and_knows_its_steps(ladder: list[RunRecord]) -> None:
    with pytest.raises(InputError, match="one mode"):
        step_timeline(ladder, 3)
    with pytest.raises(InputError, match="no step 99"):
        step_timeline(ladder[:1], 99)


def test_modes_never_look_alike() -> None:
    assert len(set(MODE_HATCH.values())) == len(MODE_HATCH) == 4
    assert len(set(MODE_MARKER.values())) == len(MODE_MARKER) == 4


def test_saved_figure_is_repeatable_and_takes_the_pages_colour(tmp_path: Path) -> None:
    record = write_run(tmp_path, config(arm=BALANCE))
    first = save_figure(ledger_bars([record]), tmp_path / "a", "ledger")
    second = save_figure(ledger_bars([record]), tmp_path / "b", "ledger")
    assert first.svg.read_bytes() == second.svg.read_bytes()
    assert INK not in first.inline_svg
    assert "currentColor" in first.inline_svg
    assert first.inline_svg.startswith("<svg")
    assert first.png.read_bytes().startswith(b"\x89PNG")


def test_images_of_one_run(tmp_path: Path) -> None:
    images = run_images(write_run(tmp_path, config()), tmp_path / "images")
    assert sorted(images) == ["ledger", "timeline"]
    assert all(path.suffix == ".png" and path.exists() for path in images.values())
