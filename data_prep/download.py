"""Fetches raw files over HTTPS: resumed after a cut, retried, checked, and recorded beside the file.

    data/raw/<data set>/<file>          as its publisher serves it, never unpacked
    data/raw/<data set>/<file>.json     where it came from, its checksum and licence

A file put there by hand is as good as a downloaded one.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.transfer import Say, transfer
from repro.errors import InputError

BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """One file of a data set."""

    folder: Path
    """Where it belongs on this machine."""
    name: str
    url: str | None
    """HTTPS; None: it can only be had by hand."""
    page: str
    """Where a person finds it."""
    checksum: str | None
    """`sha256:...` or `md5:...` as published; None: none is, the first one seen is recorded."""
    changes: bool = False
    """Its publisher replaces it now and then, so another checksum is only reported."""

    @property
    def path(self) -> Path:
        """Its place on this machine."""
        return self.folder / self.name

    @property
    def record(self) -> Path:
        """Where it came from and what it was, as JSON."""
        return self.folder / f"{self.name}.json"


def fetch(file: RemoteFile, licence: str, mirror: str | None, say: Say) -> str:
    """Make sure that the file is in its place and the right one; downloaded when it is not there.

    Args:
        file: what is wanted.
        licence: recorded with it.
        mirror: folder or URL to take it from instead; a file of a folder is linked to, not copied.
        say: takes one line of progress at a time.

    Returns:
        Its SHA-256 (hex).

    Raises:
        InputError: cannot be had, or is not the published file; says which file to put where.
    """
    origin = mirror or file.url or file.page
    if file.path.is_file() and not file.path.is_symlink():
        if mirror is not None:
            say(f"{file.name}: {file.path} is there already; --from is not needed")
    elif mirror is not None and not _is_url(mirror):
        _link(_in_folder(Path(mirror), file), file)
    elif not file.path.is_file():
        url = f"{mirror.rstrip('/')}/{file.name}" if mirror else file.url
        if url is None:
            raise InputError(f"{file.path}: missing, and cannot be downloaded without an account; {_by_hand(file)}")
        file.path.unlink(missing_ok=True)  # a link to a folder that is gone
        transfer(url, file.path, say, advice=_by_hand(file))
    return recorded_sha256(file) or _check(file, licence, origin, say)


def recorded_sha256(file: RemoteFile) -> str | None:
    """SHA-256 of the file here, read from its record; None when there is no file, or it has changed since."""
    record = _read_record(file)
    if record is None or not _is_unchanged(file.path, record):
        return None
    checksum: str = record["sha256"]
    return checksum


def _by_hand(file: RemoteFile) -> str:
    return f"get {file.name} from {file.page} and put it at {file.path}, or name its folder or URL with --from"


def _is_url(mirror: str) -> bool:
    return mirror.startswith(("http://", "https://"))


def _in_folder(folder: Path, file: RemoteFile) -> Path:
    for path in (folder / file.folder.name / file.name, folder / file.name):
        if path.is_file():
            return path
    raise InputError(f"{folder / file.name}: missing; {_by_hand(file)}")


def _link(path: Path, file: RemoteFile) -> None:
    file.folder.mkdir(parents=True, exist_ok=True)
    file.path.unlink(missing_ok=True)
    file.path.symlink_to(path.resolve())


# ---- checksum -------------------------------------------------------------------------------------------------------


def _check(file: RemoteFile, licence: str, origin: str, say: Say) -> str:
    """Compare with the published checksum, or with the one recorded first, and record what was found."""
    say(f"{file.name}: checking")
    algorithms = {"sha256", *([file.checksum.split(":")[0]] if file.checksum else [])}
    found = _checksums(file.path, algorithms)
    record = _read_record(file)
    expected, known = file.checksum, "published"
    if expected is None and record is not None:
        expected, known = f"sha256:{record['sha256']}", "recorded when it was first seen"
    if expected is None:
        say(f"{file.name}: no checksum is published; sha256 {found['sha256']} is recorded for the next time")
    else:
        algorithm, _, wanted = expected.partition(":")
        if found[algorithm] != wanted:
            message = f"{file.path}: {algorithm} {found[algorithm]} is not the one {known} ({wanted})"
            if not file.changes:
                raise InputError(
                    f"{message}; it is damaged or another version: remove it (and {file.record.name}, if this version "
                    "is the one you want) and get it again"
                )
            say(f"warning: {message}; its publisher may have changed it")
    status = file.path.stat()
    content = {
        "url": origin,
        "sha256": found["sha256"],
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "licence": licence,
    }
    partial = file.record.with_name(f".{file.record.name}.{os.getpid()}")
    partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    partial.replace(file.record)
    return found["sha256"]


def _read_record(file: RemoteFile) -> dict[str, Any] | None:
    try:
        record = json.loads(file.record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    good = isinstance(record, dict) and {"sha256", "size", "mtime_ns"} <= record.keys()
    return record if good else None


def _is_unchanged(path: Path, record: dict[str, Any]) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns) == (record["size"], record["mtime_ns"])


def _checksums(path: Path, algorithms: set[str]) -> dict[str, str]:
    hashes = {name: hashlib.new(name, usedforsecurity=False) for name in sorted(algorithms)}
    with path.open("rb") as stream:
        while block := stream.read(BLOCK):
            for digest in hashes.values():
                digest.update(block)
    return {name: digest.hexdigest() for name, digest in hashes.items()}
