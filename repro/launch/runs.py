"""Runs experiments: skips what is done, runs what is not, leaves each run complete or absent.

A run works in `results/runs/<experiment>/.<run id>.partial` and is renamed into place when its record is written, so an
interruption at any moment leaves only complete runs, and the next invocation goes on from there.
"""

from __future__ import annotations

import dataclasses
import datetime
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tqdm import tqdm

from repro.config import RunConfig
from repro.data.dataset import PreparedDataset
from repro.errors import InputError
from repro.execution.base import RunResult, summarize
from repro.execution.simulated.executor import simulate
from repro.launch.local import run_measured
from repro.launch.provenance import git_state, run_fingerprint, versions
from repro.report.figures import run_images
from repro.tracking.jsonl import write_steps
from repro.tracking.record import RECORD, SPANS, Provenance, RunRecord, read_record, write_record
from repro.tracking.sinks import publish
from repro.tracking.wandb_sink import WandbMode


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """Where things lie and how runs are followed; nothing here changes a number."""

    results: Path
    data: Path
    """Folder of prepared data sets."""
    wandb: WandbMode
    port: int | None = None
    force: bool = False
    """Repeat runs that are done."""
    log: Callable[[str], None] = print


def run_id(config: RunConfig) -> str:
    """Name of the run's folder: readable, and unique to the config."""
    return f"{config.arm.name}-{config.mode}-{config.dataset}-{config.gpus}gpu-{config.fingerprint()[:8]}"


def run_all(configs: tuple[RunConfig, ...], workspace: Workspace, command: str) -> list[RunRecord]:
    """Bring every run into being, in order, and return the records.

    Args:
        command: what the user types to make these numbers again; stored in every record.

    Raises:
        InputError: a data set is absent, the results folder cannot be written, or a config asks the impossible.
        RunError: a run failed; those before it are kept.
    """
    check_writable(workspace.results)
    datasets = {name: PreparedDataset.open(workspace.data / name) for name in {config.dataset for config in configs}}
    for config in configs:
        _check_steps(config, datasets[config.dataset])
    return [
        _run_one(config, datasets[config.dataset], workspace, command, f"[{number}/{len(configs)}]")
        for number, config in enumerate(configs, start=1)
    ]


def check_writable(folder: Path) -> None:
    """Make `folder` and see that files can be made in it.

    Raises:
        InputError: they cannot.
    """
    probe = folder / f".writable-{time.time_ns()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        reason = error.strerror or error
        raise InputError(
            f"{folder}: cannot write results here ({reason}); choose another folder with --results"
        ) from None


def _check_steps(config: RunConfig, dataset: PreparedDataset) -> None:
    available = dataset.global_batches(config.global_batch)
    if config.steps > available:
        raise InputError(
            f"steps: {config.steps} steps of {config.gpus} x {config.batch} requests need more than the {len(dataset)} "
            f"requests of {config.dataset}; --set steps={available} or a smaller batch"
        )


def _run_one(
    config: RunConfig, dataset: PreparedDataset, workspace: Workspace, command: str, counter: str
) -> RunRecord:
    name = run_id(config)
    folder = workspace.results / "runs" / config.experiment / name
    fingerprint = run_fingerprint(config, dataset.manifest.fingerprint)
    if (folder / RECORD).exists() and not workspace.force:
        done = read_record(folder)
        if done.provenance.fingerprint == fingerprint:
            workspace.log(f"{counter} {config.experiment}/{name}: done already, skipped")
            return done
    workspace.log(f"{counter} {config.experiment}/{name}")
    started, clock = datetime.datetime.now(datetime.UTC), time.monotonic()
    with _partial(folder) as partial:
        with tqdm(total=config.steps, unit="step", leave=False, desc=name, disable=None) as bar:
            result = _execute(config, dataset, partial, name, workspace, bar)
        metrics, rows = summarize(config, result)
        commit, dirty = git_state()
        record = RunRecord(
            run_id=name,
            config=config,
            provenance=Provenance(
                fingerprint=fingerprint,
                dataset_fingerprint=dataset.manifest.fingerprint,
                commit=commit,
                dirty=dirty,
                versions={"python": platform.python_version(), **versions(config.mode)},
                hardware=result.hardware,
                command=command,
                started=started.isoformat(timespec="seconds"),
                seconds=round(time.monotonic() - clock, 3),
            ),
            metrics=metrics,
            notes=result.notes,
        )
        result.timeline.write(partial / SPANS)
        write_steps(rows, partial)
        write_record(record, partial)
    record = dataclasses.replace(record, folder=folder)
    with TemporaryDirectory() as images:
        drawn = {} if workspace.wandb == "disabled" else run_images(record, Path(images))
        status = publish(record, rows, drawn, workspace.wandb, workspace.results, workspace.log)
    record = dataclasses.replace(record, tracking=status)
    write_record(record, folder)
    return record


def _execute(
    config: RunConfig, dataset: PreparedDataset, partial: Path, name: str, workspace: Workspace, bar: tqdm
) -> RunResult:
    def progress(done: int) -> None:
        bar.update(done - bar.n)

    match config.mode:
        case "measured":
            dataset_folder = workspace.data / config.dataset
            return run_measured(config, dataset_folder, partial, name, port=workspace.port, on_step=progress)
        case "simulated":
            return simulate(config, dataset, run_id=name, progress=progress)


@contextmanager
def _partial(folder: Path) -> Iterator[Path]:
    """A fresh folder that becomes `folder` if the block succeeds. A failed run's folder stays for its logs."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
