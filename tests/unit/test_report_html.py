"""Without these tests the report could need a network to open, hide that a figure was never run, let text in as
markup, or show an old page for new runs.

Not covered: how the page looks in a browser, and browsers other than the parser below.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_records import BALANCE, TORCHREC, config, drop_metric, write_run, write_small_results

from experiments.paper_values import PAPER_VALUES
from repro.errors import InputError
from repro.report.build import build_report
from repro.report.claims import claims
from repro.report.definitions import DEFINITIONS
from repro.report.published import PaperValue
from repro.tracking.record import RunRecord, write_record


@dataclass(frozen=True)
class _Assumption:
    number: str = "A1"
    statement: str = "Lengths are real <b>"
    source: str = "none"
    confidence: str = "H"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[RunRecord]]]:
    results = tmp_path_factory.mktemp("results")
    records = write_small_results(results)
    build_report(results, PAPER_VALUES, [_Assumption()], lambda _: None)
    yield results, records


class _Loads(HTMLParser):
    """Everything a browser would fetch, and every anchor."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.anchors: list[str] = []
        self.ids: set[str] = set()
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            if name in ("src", "srcset", "data", "poster", "action"):
                self.loads.append(value or "")
            if name in ("href", "xlink:href"):
                (self.anchors if tag == "a" else self.loads).append(value or "")


def _read(page: str) -> _Loads:
    parser = _Loads()
    parser.feed(page)
    return parser


def test_page_fetches_nothing(built: tuple[Path, list[RunRecord]]) -> None:
    page = (built[0] / "report.html").read_text()
    read = _read(page)
    assert not [load for load in read.loads if not load.startswith(("#", "data:"))]
    assert not re.findall(r"url\((?!['\"]?#)[^)]*\)|@import", page)
    assert not read.tags & {"script", "iframe", "object", "embed"}
    assert {anchor for anchor in read.anchors if not anchor.startswith("#")} == {"https://arxiv.org/abs/2604.24073"}
    assert {anchor[1:] for anchor in read.anchors if anchor.startswith("#")} <= read.ids


def test_page_has_what_was_asked_of_it(built: tuple[Path, list[RunRecord]]) -> None:
    results, records = built
    page = (results / "report.html").read_text()
    assert "prefers-color-scheme: dark" in page
    assert page.index('<th class="text" scope="col">Claim</th>') < page.index('<section id="ladder">')
    for name in ("ladder", "straggler_uih", "ledger", "timeline_simulated", "timeline_measured", "ne"):
        assert (results / "figures" / f"{name}.svg").exists()
        assert (results / "figures" / f"{name}.png").exists()
    assert page.count("<figure>") == page.count("<svg ") == 6
    assert all(f"<code>{definition.metric}</code>" in page for definition in DEFINITIONS)
    assert {metric for record in records for metric in record.metrics} <= {d.metric for d in DEFINITIONS}
    assert "repro run ladder" in page
    assert "repro run fig08a" in page
    assert records[0].provenance.commit[:12] in page
    assert "torchrec 1.8.0" in page
    assert "Lengths are real &lt;b&gt;" in page
    assert all(f"{record.config.experiment}/{record.run_id}" in page for record in records)


def test_answers_are_computed_from_the_runs(built: tuple[Path, list[RunRecord]]) -> None:
    results, records = built
    page = (results / "report.html").read_text()
    pair = {r.config.arm.name: r for r in records if r.config.mode == "measured"}
    before, after = (pair[arm].metric("straggler_pct") for arm in ("torchrec", "balance"))
    assert f"balance changes straggler wait from {before:.1f}\u00a0% to {after:.1f}\u00a0%" in page


def test_claims_say_what_differs(built: tuple[Path, list[RunRecord]]) -> None:
    _, records = built
    found = claims(records, PAPER_VALUES)
    table = {(claim.published.experiment, claim.published.arm, claim.published.metric): claim for claim in found}
    assert len(found) == len(PAPER_VALUES)
    claim = table[("fig08a", "balance", "straggler_pct")]
    simulated, measured = claim.findings["simulated"], claim.findings["measured"]
    assert simulated is not None
    assert measured is not None
    assert simulated.differs == "synthetic data, batch 4 for 128, model tiny"
    assert measured.differs == "synthetic data, 2 CPU ranks for 64 GPUs, UIH 2K for 21K, batch 4 for 128, model tiny"
    absolute = table[("fig09", "torchrec", "exposed_embedding_ms")].findings["measured"]
    assert absolute is not None
    assert absolute.text == "CPU time, not compared"
    headline = table[("headline", "freescale", "exposed_comm_change_pct")]
    assert not headline.has_runs


def test_derived_claims_are_ratios_within_one_setting(tmp_path: Path) -> None:
    before, after = (write_run(tmp_path, config(arm=arm, gpus=64)) for arm in (TORCHREC, BALANCE))
    published = [_value("straggler_reduction"), _value("exposed_comm_change_pct"), _value("ne_difference")]
    found = [claim.findings["simulated"] for claim in claims([before, after], published)]
    straggler = before.metric("straggler_pct") / after.metric("straggler_pct")
    exposed = 100 * (after.metric("exposed_comm_ms") / before.metric("exposed_comm_ms") - 1)
    assert [item and item.text for item in found] == [f"{straggler:.3g}×", f"{exposed:.3g} %", None]


def _value(metric: str) -> PaperValue:
    unit = {"straggler_reduction": "x", "exposed_comm_change_pct": "%"}.get(metric, "NE")
    return PaperValue(
        figure="f",
        experiment="e",
        metric=metric,
        arm="balance",
        gpus=64,
        max_uih=2000,
        batch=4,
        value=1.0,
        unit=unit,
        confidence="B",
        relation="~",
        note="",
    )


def test_what_was_not_run_is_said(tmp_path: Path) -> None:
    write_run(tmp_path, config())
    lines: list[str] = []
    page = build_report(tmp_path, PAPER_VALUES, [], lines.append).read_text()
    assert page.count('<p class="missing">Not run: <code>repro run') == 14
    assert "not run: The workload (`repro run fig02`), Stragglers against UIH length (`repro run fig08a`)" in lines[-1]
    assert "No assumptions were handed to this report" in page


def test_missing_metric_stops_the_report_and_keeps_the_old_one(tmp_path: Path) -> None:
    record = write_run(tmp_path, config())
    report = build_report(tmp_path, PAPER_VALUES, [], lambda _: None)
    before = report.read_bytes()
    drop_metric(record, "straggler_pct")
    with pytest.raises(InputError, match="no metric 'straggler_pct'"):
        build_report(tmp_path, PAPER_VALUES, [], lambda _: None)
    assert report.read_bytes() == before


def test_rebuilt_only_when_something_changed(tmp_path: Path) -> None:
    record = write_run(tmp_path, config())
    lines: list[str] = []
    report = build_report(tmp_path, PAPER_VALUES, [], lines.append)
    build_report(tmp_path, PAPER_VALUES, [], lines.append)
    assert lines[-1].endswith("up to date, skipped")
    (tmp_path / "figures" / "ledger.png").unlink()
    build_report(tmp_path, PAPER_VALUES, [], lines.append)
    assert not lines[-1].endswith("skipped")
    for change in (
        lambda: write_record(replace(record, notes=("<script>alert(1)</script>",)), record.folder),
        lambda: report.write_text(""),
    ):
        change()
        build_report(tmp_path, PAPER_VALUES, [], lines.append)
        assert not lines[-1].endswith("skipped")
    build_report(tmp_path, PAPER_VALUES[:3], [], lines.append)
    assert not lines[-1].endswith("skipped")
    page = report.read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_no_runs_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="repro run ladder"):
        build_report(tmp_path, PAPER_VALUES, [])
