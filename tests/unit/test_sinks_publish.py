"""Without these tests a tracking failure could kill a finished run, or W&B could lose rows or write elsewhere unseen.

Not covered: a real upload (it needs an account and a network); a disk that fills while W&B writes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import wandb
from report_records import config, write_run
from wandb.sdk.lib import wbauth

from repro.errors import InputError, RunError
from repro.tracking import sinks, wandb_sink
from repro.tracking.jsonl import write_steps
from repro.tracking.record import RunRecord, read_record
from repro.tracking.sinks import publish
from repro.tracking.wandb_readback import count_history_rows


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    return write_run(tmp_path, config(mode="measured", gpus=2))


@pytest.fixture
def png(tmp_path: Path) -> Path:
    import matplotlib.figure

    path = tmp_path / "figure.png"
    matplotlib.figure.Figure().savefig(path)
    return path


def test_offline_run_is_written_and_counted(record: RunRecord, png: Path, tmp_path: Path) -> None:
    before, hook = dict(os.environ), sys.excepthook
    lines: list[str] = []
    rows = record.steps()
    status = publish(record, rows, {"ledger": png}, "offline", tmp_path, lines.append)

    assert status["jsonl"] == "steps.jsonl"
    assert status["wandb"].startswith("offline: wandb/offline-run-")
    assert status["wandb"].endswith(f", {len(rows)} rows")
    (run_file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    assert count_history_rows(run_file) == len(rows)
    assert list((tmp_path / "wandb").glob("offline-run-*/files/media/images/**/*.png"))
    staged = list((tmp_path / "wandb" / "data").rglob("*"))
    assert sum(path.is_file() for path in staged) >= 3, "record, rows and spans are staged inside results"
    assert dict(os.environ) == before
    assert sys.excepthook is hook
    assert len(lines) == 1
    assert "torchrec | measured | synthetic | 2 ranks" in lines[0]


def test_run_is_found_by_stable_names(record: RunRecord, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: dict[str, object] = {}
    real_init = wandb.init

    def spy(**arguments: object) -> object:
        started.update(arguments)
        return real_init(**arguments)

    monkeypatch.setattr(wandb, "init", spy)
    publish(record, record.steps(), {}, "offline", tmp_path, lambda _: None)
    assert started["project"] == "freescale-repro"
    assert (started["group"], started["job_type"]) == ("ladder", "measured")
    assert started["tags"] == ["measured", "synthetic", "2gpu", "torchrec", "commit-0123456789ab"]
    assert isinstance(started["config"], dict)
    assert started["config"]["arm"]["name"] == "torchrec"
    assert started["config"]["provenance"]["commit"] == record.provenance.commit
    assert {"bubble/straggler_pct", "throughput/step_ms", "quality/ne", "ledger/straggler_wait_ms"} <= set(
        record.steps()[0]
    )


def test_disabled_leaves_no_folder(record: RunRecord, tmp_path: Path) -> None:
    assert publish(record, record.steps(), {}, "disabled", tmp_path, lambda _: None)["wandb"] == "disabled"
    assert not (tmp_path / "wandb").exists()


@pytest.mark.parametrize("found", [True, False])
def test_auto_follows_wandbs_own_credential_lookup(
    found: bool, record: RunRecord, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def authenticate(**arguments: object) -> object:
        assert arguments["prompt"] is False
        return object() if found else None

    def init(**arguments: object) -> None:
        settings = arguments["settings"]
        assert isinstance(settings, wandb.Settings)
        asked.append(settings.mode)
        raise RuntimeError("stop here")

    monkeypatch.setattr(wbauth, "authenticate_session", authenticate)
    monkeypatch.setattr(wandb, "init", init)
    publish(record, record.steps(), {}, "auto", tmp_path, lambda _: None)
    assert asked == ["online" if found else "offline"]


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("error", [TimeoutError("init took\nmore than 30 s"), SystemExit(1), RuntimeError("x" * 999)])
def test_failing_init_is_one_warning(
    error: BaseException, record: RunRecord, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(wandb, "init", lambda **_: _raise(error))
    _assert_only_warned(record, tmp_path)


def test_absent_wandb_is_one_warning(record: RunRecord, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    _assert_only_warned(record, tmp_path)


def test_folder_that_is_a_file_is_one_warning(record: RunRecord, tmp_path: Path) -> None:
    (tmp_path / "wandb").write_text("in the way")
    assert "not a writable folder" in _assert_only_warned(record, tmp_path)


def test_lost_rows_are_noticed(record: RunRecord, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(wandb_sink, "count_history_rows", lambda _: 2)
    monkeypatch.setattr(wandb_sink, "_FLUSH_SECONDS", 0.1)
    assert "kept 2 of 6 rows" in _assert_only_warned(record, tmp_path)


def _assert_only_warned(record: RunRecord, results: Path) -> str:
    before = record.folder.joinpath("record.json").read_bytes()
    environment = dict(os.environ)
    lines: list[str] = []
    status = publish(record, record.steps(), {}, "offline", results, lines.append)
    warnings = [line for line in lines if line.startswith("warning: W&B: ")]
    assert len(warnings) == 1
    assert "\n" not in warnings[0]
    assert len(warnings[0]) < 320
    assert status["wandb"].startswith("failed: ")
    assert record.folder.joinpath("record.json").read_bytes() == before
    assert read_record(record.folder).metrics == record.metrics
    assert dict(os.environ) == environment
    return status["wandb"]


def test_rows_flushed_late_are_waited_for(record: RunRecord, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = iter([0, 3, 6])
    monkeypatch.setattr(wandb_sink, "count_history_rows", lambda _: next(seen))
    status = publish(record, record.steps(), {}, "offline", tmp_path, lambda _: None)
    assert status["wandb"].endswith(", 6 rows")


def test_unknown_mode_is_the_users_error(record: RunRecord, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="auto, online, offline, disabled"):
        publish(record, [], {}, "sometimes", tmp_path)  # type: ignore[arg-type]


def test_rows_that_cannot_be_stored_fail_the_run(record: RunRecord, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"steps\.jsonl"):
        write_steps([{"step": 0, "bubble/straggler_pct": float("nan")}], record.folder)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"steps\.jsonl"):
        write_steps([], tmp_path / "file" / "run")


def test_console_line_leaves_out_what_is_not_there(tmp_path: Path) -> None:
    line = sinks.summary_line(write_run(tmp_path, config(gpus=8)))
    assert "NE" not in line
    assert "straggler" in line
