"""What a checkpoint is on disk, what it belongs to, and which one a run goes on from. Loads no torch.

    checkpoints/
        step-00000008/           complete: renamed into place when every rank had written
            meta.json            written last: the step, what the checkpoint belongs to, size and SHA-256 of each file
            .metadata, *.distcp  torch.distributed.checkpoint's
        .step-00000012.partial/  a crash while writing leaves this, and the one above as good as it was

A checkpoint belongs to a run: one config, data set, code and set of package versions. Under any other the numbers after
it would not be those of a run that was never cut short, so it is refused, with the field that differs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.config import RunConfig
from repro.errors import InputError

CHECKPOINTS = "checkpoints"
META = "meta.json"
META_VERSION = 1
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Belonging:
    """What must be the same for a run to go on from a checkpoint."""

    world_size: int
    data_set: str
    """Fingerprint of the prepared data set."""
    config: dict[str, Any]
    """`RunConfig.deciding`."""
    config_hash: str
    versions: dict[str, str]
    """Of the packages that decide numbers."""
    code: str
    """Fingerprint of the code that decides numbers."""


def belonging(config: RunConfig, data_set: str, versions: dict[str, str], code: str) -> Belonging:
    """That of a run of `config`."""
    return Belonging(
        world_size=config.gpus,
        data_set=data_set,
        config=config.deciding(),
        config_hash=config.fingerprint(),
        versions=versions,
        code=code,
    )


@dataclass(frozen=True, kw_only=True)
class CheckpointMeta:
    """`meta.json`."""

    step: int
    """Steps done: the next one to be trained."""
    belongs_to: Belonging
    run_ns: int
    """The run's clock when it stopped for this."""
    autotune: dict[str, Any] | None
    files: dict[str, tuple[int, str]]
    """Name -> bytes, SHA-256."""
    version: int = META_VERSION


def name_of(step: int) -> str:
    """Name of the checkpoint's folder."""
    return f"step-{step:08d}"


def step_of(checkpoint: Path) -> int:
    """Steps done at a checkpoint, by its folder's name."""
    return int(checkpoint.name.removeprefix("step-"))


def complete(run: Path) -> list[Path]:
    """Complete checkpoints of the run that works in folder `run`, oldest first."""
    return sorted((run / CHECKPOINTS).glob("step-*"))


def newest(run: Path) -> Path | None:
    """The checkpoint to go on from; None when there is none."""
    found = complete(run)
    return found[-1] if found else None


def read_meta(checkpoint: Path) -> CheckpointMeta:
    """Read `meta.json`.

    Raises:
        InputError: `checkpoint` is not a checkpoint, or one of another version.
    """
    path = checkpoint / META
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["version"] != META_VERSION:
            raise InputError(
                f"{path}: version {raw['version']}, this release reads {META_VERSION}; {_remove(checkpoint)}"
            )
        raw["belongs_to"] = Belonging(**raw["belongs_to"])
        raw["files"] = {name: (int(size), str(digest)) for name, (size, digest) in raw["files"].items()}
        return CheckpointMeta(**raw)
    except FileNotFoundError:
        raise InputError(f"{checkpoint}: not a checkpoint, there is no {META} in it; {_remove(checkpoint)}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not readable ({error}); {_remove(checkpoint)}") from None


def check(checkpoint: Path, run: Belonging) -> CheckpointMeta:
    """That `run` may go on from `checkpoint` and its files have their sizes; returns its `meta.json`.

    Raises:
        InputError: it may not; names the field that differs, or the file.
    """
    meta = read_meta(checkpoint)
    for field, theirs, ours in _differences(dataclasses.asdict(meta.belongs_to), dataclasses.asdict(run)):
        raise InputError(
            f"{checkpoint}: {field} differs: {theirs!r} in the checkpoint, {ours!r} in this run; "
            f"remove {checkpoint.parent} to start anew"
        )
    for name, (size, _) in meta.files.items():
        path = checkpoint / name
        found = path.stat().st_size if path.is_file() else None
        if found != size:
            state = "is missing" if found is None else f"is damaged: {found} bytes instead of {size}"
            raise InputError(f"{path}: {state}; {_remove(checkpoint)}")
    return meta


def check_contents(checkpoint: Path, names: Sequence[str]) -> None:
    """That files of a checkpoint are what was written.

    Raises:
        InputError: one is not.
    """
    files = read_meta(checkpoint).files
    for name in names:
        if describe(checkpoint / name) != files[name]:
            raise InputError(f"{checkpoint / name}: is damaged, its SHA-256 is another; {_remove(checkpoint)}")


def describe(path: Path) -> tuple[int, str]:
    """Bytes and SHA-256 of a file."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


def begin(run: Path, step: int) -> Path:
    """A fresh folder to write the checkpoint after `step` steps into; what crashes have left there goes."""
    for left in (run / CHECKPOINTS).glob(".*.partial"):
        shutil.rmtree(left)
    partial = run / CHECKPOINTS / f".{name_of(step)}.partial"
    partial.mkdir(parents=True)
    return partial


def finish(partial: Path, meta: CheckpointMeta, keep: int) -> Path:
    """Make complete what all ranks have written, and drop all but the newest `keep`; returns where it lies."""
    with (partial / META).open("w", encoding="utf-8") as file:
        json.dump(dataclasses.asdict(meta), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    run = partial.parents[1]
    final = partial.with_name(name_of(meta.step))
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    for old in complete(run)[:-keep]:
        # Renamed first: a crash while removing must not leave something that looks complete.
        gone = old.with_name(f".{old.name}.partial")
        old.rename(gone)
        shutil.rmtree(gone)
    return final


def _differences(theirs: Any, ours: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(field, there, here) of each that differs, in the order of `Belonging`."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in [*ours, *(name for name in theirs if name not in ours)]:
            yield from _differences(theirs.get(name), ours.get(name), f"{path}.{name}" if path else name)
    elif theirs != ours:
        yield path, theirs, ours


def _remove(checkpoint: Path) -> str:
    return f"remove {checkpoint} to go on from the checkpoint before it, or from the start"
