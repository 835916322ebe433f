"""Reads members of zip, tar.gz and gz files in place. Nothing is unpacked, so no member can land outside its folder.

Members are chosen by exact patterns of their base name. One that is a link, or whose path leaves the archive's folder,
is refused, and so is one that unpacks to more than any real log would.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

from repro.errors import InputError

MAX_RATIO = 100
"""Largest unpacked size, as a multiple of the archive's; text logs have about 3 to 10."""
ALWAYS_ALLOWED = 64 << 20
"""Unpacked bytes up to which the ratio does not count: small files may be monotonous."""
MAX_BYTES = 512 << 30
"""Largest unpacked size of a member; the largest public log here has 23 GB in several."""


@dataclass(frozen=True, kw_only=True)
class RawFile:
    """A file, and which of its members have the log."""

    path: Path
    members: tuple[str, ...] = ()
    """Regular expressions of base names, each of which must be found; only for .zip and .tar.gz."""
    md5: dict[str, str] = field(default_factory=dict)
    """Base name -> published checksum of the unpacked member."""


def open_members(file: RawFile) -> Iterator[tuple[str, io.BufferedReader]]:
    """Label and unpacked content of each wanted member, in archive order; read one before asking for the next.

    Raises (also while content is read):
        InputError: missing, damaged or truncated; a wanted member that is missing, twice there, a link, outside the
            archive's folder, too large, or not of the published checksum. Names file and member.
    """
    path = file.path
    try:
        if path.name.endswith(".zip"):
            yield from _zip(file)
        elif path.name.endswith((".tar.gz", ".tgz")):
            yield from _tar(file)
        elif path.suffix == ".gz":
            with path.open("rb") as packed, gzip.open(packed) as stream:
                yield str(path), _guarded(stream, str(path), file, path.name.removesuffix(".gz"))
        else:
            with path.open("rb") as stream:
                yield str(path), io.BufferedReader(_Plain(stream, str(path)), 1 << 20)
    except OSError as error:
        raise InputError(_damaged(str(path), error)) from None


def _zip(file: RawFile) -> Iterator[tuple[str, io.BufferedReader]]:
    try:
        with zipfile.ZipFile(file.path) as archive:
            found: list[str] = []
            for member in archive.infolist():
                if member.is_dir() or not _is_wanted(member.filename, file, found):
                    continue
                label = f"{file.path}: {member.filename}"
                if member.external_attr >> 28 == 0o12:
                    raise InputError(f"{label}: is a link; {_fix(file.path)}")
                if member.flag_bits & 1:
                    raise InputError(f"{label}: is encrypted; {_fix(file.path)}")
                with archive.open(member) as stream:
                    yield label, _guarded(stream, label, file, _base(member.filename))
            _check_complete(file, found)
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise InputError(_damaged(str(file.path), error)) from None


def _tar(file: RawFile) -> Iterator[tuple[str, io.BufferedReader]]:
    try:
        # A stream: the archive is unpacked once, whatever is wanted. Python's gzip, since tarfile's ignores checksums.
        with gzip.open(file.path) as packed, tarfile.open(fileobj=packed, mode="r|") as archive:
            found: list[str] = []
            for member in archive:
                if member.isdir() or not _is_wanted(member.name, file, found):
                    continue
                label = f"{file.path}: {member.name}"
                stream = archive.extractfile(member) if member.isreg() else None
                if stream is None:
                    raise InputError(f"{label}: is a link or a device; {_fix(file.path)}")
                yield label, _guarded(stream, label, file, _base(member.name))
            while packed.read(1 << 20):
                pass  # the checksum is at the end
            _check_complete(file, found)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise InputError(_damaged(str(file.path), error)) from None


def _base(name: str) -> str:
    return PurePosixPath(name.replace("\\", "/")).name


def _is_wanted(name: str, file: RawFile, found: list[str]) -> bool:
    base = _base(name)
    if not any(re.fullmatch(pattern, base) for pattern in file.members):
        return False
    inside = PurePosixPath(name.replace("\\", "/"))
    if inside.is_absolute() or ".." in inside.parts:
        raise InputError(f"{file.path}: member {name!r} lies outside the archive's folder; {_fix(file.path)}")
    if base in found:
        raise InputError(f"{file.path}: two members are called {base}; {_fix(file.path)}")
    found.append(base)
    return True


def _check_complete(file: RawFile, found: list[str]) -> None:
    for pattern in file.members:
        if not any(re.fullmatch(pattern, base) for base in found):
            plain = pattern.replace("\\", "").replace(".*", "*")
            raise InputError(f"{file.path}: has no member {plain}; {_fix(file.path)}")


def _fix(path: Path) -> str:
    return f"remove {path.name} and get the official file again"


def _damaged(label: str, error: BaseException) -> str:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"{label}: cannot be read, or is damaged or cut short ({reason}); remove it and get it again"


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Plain(io.RawIOBase):
    """A stream whose errors name its file."""

    def __init__(self, stream: _Readable, label: str) -> None:
        self._stream = stream
        self._label = label

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            block = self._stream.read(len(buffer))
        except (OSError, EOFError, zlib.error, zipfile.BadZipFile, tarfile.TarError) as error:
            raise InputError(_damaged(self._label, error)) from None
        buffer[: len(block)] = block
        return len(block)


class _Guarded(_Plain):
    """Unpacked content, bounded in size and compared with a checksum at its end."""

    def __init__(self, stream: _Readable, label: str, limit: int, md5: str | None) -> None:
        super().__init__(stream, label)
        self._limit = limit
        self._size = 0
        self._md5 = md5
        self._digest = hashlib.md5(usedforsecurity=False)

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        size = super().readinto(buffer)
        self._size += size
        if self._size > self._limit:
            raise InputError(f"{self._label}: unpacks to more than {self._limit:,} bytes, far more than a log would")
        if self._md5 is not None:
            self._digest.update(buffer[:size])
            if not size and self._digest.hexdigest() != self._md5:
                raise InputError(f"{self._label}: md5 {self._digest.hexdigest()} is not the published {self._md5}; "
                                 "get the official file again")  # fmt: skip
        return size


def _guarded(stream: _Readable, label: str, file: RawFile, base: str) -> io.BufferedReader:
    limit = min(MAX_BYTES, max(ALWAYS_ALLOWED, MAX_RATIO * file.path.stat().st_size))
    return io.BufferedReader(_Guarded(stream, label, limit, file.md5.get(base)), 1 << 20)
