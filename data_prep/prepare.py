"""Prepares a data set once: skips what is there, and lets the folder appear only when it is whole."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from data_prep import (
    archives,
    delimited,
    event_log,
    fields,
    json_lines,
    parquet_log,
    request_file,
    requests,
    row_file,
    shards,
    sorted_users,
    staging,
    user_hash,
    vocabulary,
    writer,
)
from data_prep.download import fetch, recorded_sha256
from data_prep.source import Source
from repro.data.schema import COLUMNS, MANIFEST, SCHEMA_VERSION, read_manifest
from repro.errors import InputError

_COMMON_CODE = tuple(
    Path(module.__file__ or "")
    for module in (
        archives,
        delimited,
        event_log,
        fields,
        json_lines,
        parquet_log,
        request_file,
        requests,
        row_file,
        shards,
        sorted_users,
        staging,
        user_hash,
        vocabulary,
        writer,
    )
)


def prepare_source(
    source: Source,
    data_root: Path,
    *,
    key_path: Path,
    mirror: str | None = None,
    force: bool = False,
    log: Callable[[str], None] = print,
) -> Path:
    """Prepare `source` in `data_root / source.name`, unless it is there already and unchanged.

    A data set stays prepared when the raw files that it was downloaded from are removed.

    Returns:
        The data set's folder.

    Raises:
        InputError: malformed input, a file that cannot be had, a folder that cannot be written or is something else,
            another process at work.
    """
    folder = data_root / source.name
    started = time.perf_counter()
    try:
        if not force and _is_prepared(folder, source):
            log(f"{source.name}: already prepared in {folder}")
            return folder
        _check_replaceable(folder)
        key = user_hash.load_key(key_path, data_root)
        log(f"{source.name}: {source.description}")
        log(f"{source.name}: licence: {source.licence}")
        inputs = {file.name: fetch(file, source.licence, mirror, log) for file in source.remote}
        inputs |= _local_checksums(source)
        with _partial_folder(folder) as partial:
            manifest = writer.write_data_set(partial, source, key, fingerprint(source, inputs), inputs, log)
            _replace(folder, partial)
    except OSError as error:
        raise InputError(
            f"{error.filename or folder}: {error.strerror or error}; free the space or mend the permissions, then run "
            f"`repro prepare {source.name}` again"
        ) from None
    for oddity, count in manifest.quality.items():
        if count:
            log(f"{source.name}: {oddity.replace('_', ' ')}: {count:,}")
    size = sum((folder / name).stat().st_size for name in manifest.outputs)
    log(
        f"{source.name}: {manifest.requests:,} requests of {manifest.users:,} users in {folder} "
        f"({size / 1e6:.1f} MB, {time.perf_counter() - started:.1f} s)"
    )
    return folder


def fingerprint(source: Source, inputs: dict[str, str]) -> str:
    """SHA-256 (hex) over the schema version, the preparing code, the parameters and the input files' checksums."""
    value = {
        "schema_version": SCHEMA_VERSION,
        "code": {path.name: writer.sha256(path) for path in (*_COMMON_CODE, source.code)},
        "parameters": writer.parameters(source),
        "inputs": inputs,
    }
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _local_checksums(source: Source) -> dict[str, str]:
    """By name; files of the same name in different folders are told apart by their place in the list."""
    names = [path.name for path in source.inputs]
    return {
        path.name if names.count(path.name) == 1 else f"{place}/{path.name}": writer.sha256(path)
        for place, path in enumerate(source.inputs)
    }


def _is_prepared(folder: Path, source: Source) -> bool:
    try:
        manifest = read_manifest(folder)
    except InputError:
        return False
    inputs = _local_checksums(source)
    for file in source.remote:
        checksum = recorded_sha256(file) if file.path.is_file() else manifest.inputs.get(file.name)
        if checksum is None:
            return False
        inputs[file.name] = checksum
    return manifest.fingerprint == fingerprint(source, inputs) and all(
        (folder / name).is_file() and writer.sha256(folder / name) == checksum
        for name, checksum in manifest.outputs.items()
    )


def _check_replaceable(folder: Path) -> None:
    """Refuse to replace anything that holds files of someone else's."""
    if not folder.exists() and not folder.is_symlink():
        return
    strange = folder.is_symlink() or not folder.is_dir()
    if strange or any(not _is_ours(path.name) for path in folder.iterdir()):
        raise InputError(f"{folder}: is in the way and not a prepared data set; move it or choose another folder")


def _is_ours(name: str) -> bool:
    return name in (MANIFEST, COLUMNS) or (name.startswith(("events-", "requests-")) and name.endswith(".parquet"))


@contextlib.contextmanager
def _partial_folder(folder: Path) -> Iterator[Path]:
    """A hidden empty folder beside `folder`, locked for this process and gone afterwards whatever happens.

    A killed process leaves its partial folder; the next one takes it over, since the lock died with its holder.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    descriptor = _lock_folder(partial, folder.name)
    try:
        _empty(partial)
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(_replaced(folder), ignore_errors=True)
        os.close(descriptor)


def _lock_folder(partial: Path, name: str) -> int:
    while True:
        partial.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise InputError(f"{name}: another process is preparing it; wait for that to end") from None
        except OSError:
            return descriptor  # a file system without locks
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), partial.stat()):
                return descriptor
        os.close(descriptor)  # its holder has just finished and renamed it away


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _replaced(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.replaced")


def _replace(folder: Path, partial: Path) -> None:
    if folder.exists():
        old = _replaced(folder)
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    partial.rename(folder)
