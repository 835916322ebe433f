"""Without these tests a half-written or foreign run record could reach a table, or a missing metric read as 0.

Not covered: two processes that write the same run at once (the launcher's lock does that).
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from report_records import config, drop_metric, write_run

from repro.errors import InputError
from repro.tracking.record import read_record, read_records, write_record


def test_record_reads_back_as_written(tmp_path: Path) -> None:
    written = write_run(tmp_path, config(mode="measured", gpus=2))
    read = read_record(written.folder)
    assert read == written
    assert read.folder == written.folder
    assert len(read.steps()) == written.config.steps
    assert read.timeline().mode == "measured"


def test_missing_metric_is_an_error_not_zero(tmp_path: Path) -> None:
    record = write_run(tmp_path, config())
    with pytest.raises(InputError, match=r"no metric 'ne'; it has bubble_pct"):
        record.metric("ne")
    drop_metric(record, "qps")
    with pytest.raises(InputError, match="no metric 'qps'"):
        read_record(record.folder).metric("qps")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 99}'])
def test_damaged_or_foreign_record_says_what_to_do(text: str, tmp_path: Path) -> None:
    record = write_run(tmp_path, config())
    (record.folder / "record.json").write_text(text)
    with pytest.raises(InputError, match="run it again"):
        read_record(record.folder)


def test_only_complete_runs_are_found(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="repro run ladder"):
        read_records(tmp_path)
    record = write_run(tmp_path, config())
    (tmp_path / "runs" / "ladder" / "interrupted").mkdir()
    hidden = tmp_path / "runs" / "ladder" / ".partial"
    hidden.mkdir()
    write_record(record, hidden)
    assert [found.run_id for found in read_records(tmp_path)] == [record.run_id]


def test_writing_again_replaces_and_leaves_nothing_behind(tmp_path: Path) -> None:
    record = write_run(tmp_path, config())
    write_record(dataclasses.replace(record, tracking={"wandb": "disabled"}), record.folder)
    assert read_record(record.folder).tracking == {"wandb": "disabled"}
    assert not list(record.folder.glob("*.partial")) + list(record.folder.glob(".*"))
    assert "folder" not in json.loads((record.folder / "record.json").read_text())
