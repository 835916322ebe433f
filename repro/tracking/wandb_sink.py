"""W&B sink: one W&B run a run record (group = experiment, job type = mode), online or offline.

Nothing leaves the results folder: runs lie in `results/wandb/`, staged artifact files in `results/wandb/data/`.
Offline runs are uploaded later with

    wandb sync results/wandb/offline-run-*

The sink may raise anything; `repro.tracking.sinks.publish` turns that into one warning line.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from repro.errors import InputError
from repro.tracking.record import RECORD, SPANS, STEPS, RunRecord
from repro.tracking.wandb_readback import count_history_rows

PROJECT = "freescale-repro"
WandbMode = Literal["auto", "online", "offline", "disabled"]
_INIT_SECONDS = 30
_FINISH_SECONDS = 120
_FLUSH_SECONDS = 5.0


def publish_wandb(
    record: RunRecord,
    rows: Sequence[dict[str, Any]],
    images: Mapping[str, Path],
    mode: WandbMode,
    results: Path,
    folder: Path,
) -> str:
    """Log a finished run to W&B and say what became of it.

    Args:
        images: Figure name -> PNG file.
        folder: The run's folder; its record, rows and spans become an artifact.

    Raises:
        Exception: anything W&B or the file system raises.
    """
    if mode == "disabled":
        return "disabled"
    with wandb_run(
        results,
        mode,
        name=run_name(record),
        group=record.config.experiment,
        job_type=record.config.mode,
        tags=run_tags(record),
        config=run_config(record),
    ) as started:
        _log(started.wandb, started.run, record, rows, images, folder)
    return started.status(expected=len(rows))


@dataclasses.dataclass(frozen=True)
class Started:
    """A W&B run under way."""

    wandb: Any
    """The client."""
    run: Any
    online: bool

    def status(self, *, expected: int) -> str:
        """What became of the run, once it is finished; `expected` rows of history should have been kept."""
        return (
            f"online: {self.run.url}" if self.online else _offline_status(Path(self.run.dir).parent, expected=expected)
        )


@contextmanager
def wandb_run(results: Path, mode: WandbMode, **identity: Any) -> Iterator[Started]:
    """A W&B run that lies in `results/wandb`, finished at the end. `identity`: name, group and so on, as `wandb.init`.

    Raises:
        Exception: anything W&B or the file system raises.
    """
    home = results.resolve() / "wandb"
    _require_writable(home)
    with _contained(home):
        import wandb

        online = mode == "online" or (mode == "auto" and logged_in())
        run = wandb.init(
            project=PROJECT,
            dir=str(results.resolve()),
            reinit="create_new",
            settings=wandb.Settings(
                mode="online" if online else "offline",
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,
                x_save_requirements=False,
                init_timeout=_INIT_SECONDS,
                finish_timeout=_FINISH_SECONDS,
            ),
            **identity,
        )
        try:
            yield Started(wandb, run, online)
        finally:
            run.finish()


def logged_in() -> bool:
    """Whether W&B itself finds credentials for its server (API key, netrc or identity token); asks nobody."""
    import wandb
    from wandb.sdk.lib import wbauth

    host = wandb.setup().settings.base_url
    found = wbauth.authenticate_session(host=host, source="repro", prompt=False, update_session=False)
    return found is not None


def run_name(record: RunRecord) -> str:
    """Readable name, unique within group and job type for the sweeps of this project."""
    config = record.config
    return f"{config.arm.name}-{config.dataset}-{config.gpus}gpu-uih{config.max_uih}-b{config.batch}-s{config.seed}"


def run_tags(record: RunRecord) -> list[str]:
    """Mode, data set, world size, arm, commit."""
    config, commit = record.config, record.provenance.commit
    return [config.mode, config.dataset, f"{config.gpus}gpu", config.arm.name, f"commit-{commit[:12]}"]


def run_config(record: RunRecord) -> dict[str, Any]:
    """The resolved config, and beside it where the numbers come from."""
    return {
        **record.config.to_dict(),
        "provenance": dataclasses.asdict(record.provenance),
        "run_id": record.run_id,
        "notes": list(record.notes),
    }


def _log(
    wandb: Any,
    run: Any,
    record: RunRecord,
    rows: Sequence[dict[str, Any]],
    images: Mapping[str, Path],
    folder: Path,
) -> None:
    for row in rows:
        run.log(row, step=row["step"])
    if images and rows:
        # At the last step, so that the images join its row instead of adding one.
        shown = {f"figures/{name}": wandb.Image(str(path)) for name, path in images.items()}
        run.log(shown, step=rows[-1]["step"])
    for name, metric in record.metrics.items():
        run.summary[name] = metric.value
    artifact = wandb.Artifact(
        name=_artifact_name(f"{record.config.experiment}-{record.run_id}"),
        type="run-record",
        metadata={"fingerprint": record.provenance.fingerprint, "mode": record.config.mode},
    )
    for name in (RECORD, STEPS, SPANS):
        artifact.add_file(str(folder / name), name=name)
    run.log_artifact(artifact)


def _offline_status(run_folder: Path, *, expected: int) -> str:
    (run_file,) = run_folder.glob("run-*.wandb")
    # `finish` returns a few milliseconds before W&B's service has flushed the file.
    deadline = time.monotonic() + _FLUSH_SECONDS
    while (kept := count_history_rows(run_file)) < expected and time.monotonic() < deadline:
        time.sleep(0.05)
    where = f"wandb/{run_folder.name}"
    if kept != expected:
        raise OSError(f"{where} kept {kept} of {expected} rows (disk full?)")
    return f"offline: {where}, {kept} rows"


def _require_writable(home: Path) -> None:
    """W&B falls back to the system's temporary folder without a word when it cannot write."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            pass
    except OSError as error:
        raise InputError(f"{home} is not a writable folder ({error.strerror})") from None


def _artifact_name(name: str) -> str:
    """`name` in the characters W&B allows for artifacts; arms such as `balance+priority` have others."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", name)


@contextmanager
def _contained(home: Path) -> Iterator[None]:
    """Keep W&B's staging, cache and process-wide hooks to this block: it takes folders from the environment only."""
    environment, hook = dict(os.environ), sys.excepthook
    os.environ.update(
        WANDB_DATA_DIR=str(home / "data"), WANDB_CACHE_DIR=str(home / "cache"), WANDB_ERROR_REPORTING="false"
    )
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        sys.excepthook = hook
