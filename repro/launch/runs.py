"""Runs experiments: skips what is done, runs what is not, leaves each run complete or absent.

A run works in `results/runs/<experiment>/.<run id>.partial` and is renamed into place when its record is written, so an
interruption at any moment leaves only complete runs, and the next invocation goes on from there: with the run that was
interrupted from its newest checkpoint if it has one, else from its start.
"""

from __future__ import annotations

import dataclasses
import datetime
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from tqdm import tqdm

from repro.config import RunConfig
from repro.data.dataset import PreparedDataset
from repro.errors import InputError
from repro.execution.base import RunResult, summarize
from repro.execution.parts import RECORDED, drop_parts_after
from repro.execution.simulated.executor import simulate
from repro.launch.local import run_on_ranks
from repro.launch.provenance import git_state, run_fingerprint, versions
from repro.pipeline.checkpoint_folder import CHECKPOINTS, newest, step_of
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
    """Repeat runs that are done, and begin those that were cut short anew."""
    start: Callable[..., list[RunResult]] = run_on_ranks
    """What starts the ranks of measured runs and returns what they recorded: like `run_on_ranks`."""
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
    records: list[RunRecord] = []
    for job in jobs(configs):
        counter = f"[{len(records) + 1}-{len(records) + len(job)}/{len(configs)}]" if len(job) > 1 else (
            f"[{len(records) + 1}/{len(configs)}]"
        )  # fmt: skip
        records += _run_job(job, datasets[job[0].dataset], workspace, command, counter)
    return records


def jobs(configs: Sequence[RunConfig]) -> list[tuple[RunConfig, ...]]:
    """Runs that are executed together: neighbours on real ranks that differ only in their arm go side by side."""

    def but_the_arm(config: RunConfig) -> object:
        return dataclasses.replace(config, arm=configs[0].arm) if config.mode != "simulated" else object()

    return [tuple(group) for _, group in groupby(configs, key=but_the_arm)]


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


def _run_job(
    job: tuple[RunConfig, ...], dataset: PreparedDataset, workspace: Workspace, command: str, counter: str
) -> list[RunRecord]:
    names = [run_id(config) for config in job]
    folders = [workspace.results / "runs" / c.experiment / name for c, name in zip(job, names, strict=True)]
    fingerprints = [run_fingerprint(config, dataset.manifest.fingerprint, beside=job) for config in job]
    title = f"{job[0].experiment}/{' + '.join(names)}"
    done = _finished(folders, fingerprints)
    if done is not None and not workspace.force:
        workspace.log(f"{counter} {title}: done already, skipped")
        return done
    started, clock = datetime.datetime.now(datetime.UTC), time.monotonic()
    with ExitStack() as stack:
        partials = [stack.enter_context(_partial(folder, anew=workspace.force)) for folder in folders]
        begin_at = [step_of(found) if (found := newest(partial)) else 0 for partial in partials]
        workspace.log(f"{counter} {title}{_gone_on(begin_at)}")
        steps, before = sum(config.steps for config in job), sum(begin_at)
        with tqdm(total=steps, initial=before, unit="step", leave=False, desc=job[0].experiment, disable=None) as bar:
            results = _execute(job, dataset, partials, names, workspace, bar)
        records = []
        for config, name, fingerprint, result, partial in zip(job, names, fingerprints, results, partials, strict=True):
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
                notes=(*result.notes, *_beside(config, job)),
            )
            result.timeline.write(partial / SPANS)
            write_steps(rows, partial)
            write_record(record, partial)
            records.append(record)
    return [_publish(record, folder, workspace) for record, folder in zip(records, folders, strict=True)]


def _finished(folders: list[Path], fingerprints: list[str]) -> list[RunRecord] | None:
    """The records of a job that needs no repeat; None if any run of it is missing or was made from other input."""
    if not all((folder / RECORD).exists() for folder in folders):
        return None
    records = [read_record(folder) for folder in folders]
    current = all(r.provenance.fingerprint == f for r, f in zip(records, fingerprints, strict=True))
    return records if current else None


def _gone_on(begin_at: list[int]) -> str:
    if not any(begin_at):
        return ""
    return f": was cut short, goes on from the checkpoint after step {', '.join(map(str, begin_at))} (--force: anew)"


def _beside(config: RunConfig, job: tuple[RunConfig, ...]) -> tuple[str, ...]:
    others = [other.arm.name for other in job if other is not config]
    return (f"trained side by side with {', '.join(others)}, a few steps of each in turn",) if others else ()


def _execute(
    job: tuple[RunConfig, ...],
    dataset: PreparedDataset,
    partials: list[Path],
    names: list[str],
    workspace: Workspace,
    bar: tqdm,
) -> list[RunResult]:
    match job[0].mode:
        case "measured" | "emulated":
            folder = workspace.data / job[0].dataset
            # Emulated ranks live in network namespaces of this machine.
            start = workspace.start if job[0].mode == "measured" else run_on_ranks
            return start(job, folder, partials, names, port=workspace.port, on_step=lambda: bar.update())
        case "simulated":
            return [
                simulate(config, dataset, run_id=name, progress=lambda _: bar.update())
                for config, name in zip(job, names, strict=True)
            ]


def _publish(record: RunRecord, folder: Path, workspace: Workspace) -> RunRecord:
    record = dataclasses.replace(record, folder=folder)
    with TemporaryDirectory() as images:
        drawn = {} if workspace.wandb == "disabled" else run_images(record, Path(images))
        status = publish(record, record.steps(), drawn, workspace.wandb, workspace.results, workspace.log)
    record = dataclasses.replace(record, tracking=status)
    write_record(record, folder)
    return record


def partial_of(folder: Path) -> Path:
    """Where the run that ends in `folder` works."""
    return folder.with_name(f".{folder.name}.partial")


@contextmanager
def _partial(folder: Path, *, anew: bool) -> Iterator[Path]:
    """A folder that becomes `folder` if the block succeeds: fresh, or that of an attempt that left a checkpoint. A
    failed run's folder stays for its logs and checkpoints. A run that is done needs none: its record has all that was
    recorded before them."""
    partial = partial_of(folder)
    checkpoint = None if anew else newest(partial)
    if checkpoint is None:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    else:
        _clear_for_another_attempt(partial, step_of(checkpoint))
    yield partial
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    for needed_no_more in (CHECKPOINTS, RECORDED):
        shutil.rmtree(folder / needed_no_more, ignore_errors=True)


def _clear_for_another_attempt(partial: Path, step: int) -> None:
    """Leave checkpoints, what was recorded up to the newest, and logs, those of the last attempt under another name."""
    drop_parts_after(partial, step)
    for path in partial.iterdir():
        if path.is_file():
            path.unlink()
    if (partial / "logs").exists():
        attempts = len(list(partial.glob("logs-of-attempt-*")))
        (partial / "logs").rename(partial / f"logs-of-attempt-{attempts + 1}")
