"""One file over HTTP(S): resumed after a cut, retried with growing waits, never from HTTPS to anything less."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import os
import shutil
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from repro.errors import InputError

Say = Callable[[str], None]

TRIES = 5
"""Attempts in a row without a new byte; the waits between them double from FIRST_WAIT."""
FIRST_WAIT = 1.0  # s
TIMEOUT = 30.0  # s without a byte
BLOCK = 1 << 20
SAY_EVERY = 5.0  # s
_LASTING = (400, 401, 403, 404, 410, 451)
"""HTTP answers that another attempt does not change."""


def transfer(url: str, path: Path, say: Say, *, advice: str) -> None:
    """Bring `url` to `path`, going on where an earlier attempt stopped (`path` + `.part`).

    Args:
        url: HTTP(S).
        path: appears when the file is whole.
        say: takes one line of progress at a time.
        advice: ends the message of a failure.

    Raises:
        InputError: it cannot be had, another process is at it, or the disk is too small.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.part")
    with _locked(partial, path.name) as target:
        failures, size = 0, target.seek(0, os.SEEK_END)
        say(f"{path.name}: downloading {url}" + (f", from byte {size:,} on" if size else ""))
        while True:
            try:
                _attempt(url, target, path.name, say)
                break
            except _Failure as failure:
                now = target.seek(0, os.SEEK_END)
                failures, size = (failures + 1 if now <= size else 1), now
                if failure.lasting or failures >= TRIES:
                    if not size:
                        partial.unlink()
                    raise InputError(f"{path}: cannot be downloaded from {url} ({failure}); {advice}") from None
                wait = FIRST_WAIT * 2 ** (failures - 1)
                say(f"{path.name}: {failure}; again in {wait:.0f} s")
                time.sleep(wait)
        target.flush()
        os.fsync(target.fileno())
        partial.rename(path)


class _Failure(Exception):
    """An attempt that failed, in words."""

    def __init__(self, reason: str, *, lasting: bool = False) -> None:
        super().__init__(reason)
        self.lasting = lasting


@contextlib.contextmanager
def _locked(partial: Path, name: str) -> Iterator[IO[bytes]]:
    with partial.open("ab") as target:
        try:
            fcntl.flock(target, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{name}: another process is downloading it; wait for that to end") from None
        except OSError:
            pass  # a file system without locks
        yield target


def _attempt(url: str, target: IO[bytes], name: str, say: Say) -> None:
    begin = target.seek(0, os.SEEK_END)
    request = urllib.request.Request(url, headers={"User-Agent": "freescale-repro", "Accept-Encoding": "identity"})
    if begin:
        request.add_header("Range", f"bytes={begin}-")
    try:
        with _OPENER.open(request, timeout=TIMEOUT) as answer:
            if begin and answer.status != http.HTTPStatus.PARTIAL_CONTENT:
                target.truncate(0)
                begin = 0
            elif begin and not answer.headers.get("Content-Range", "").startswith(f"bytes {begin}-"):
                target.truncate(0)
                raise _Failure("the server resumed at the wrong byte")
            length = answer.headers.get("Content-Length")
            total = begin + int(length) if length else None
            _check_space(target, name, total, begin)
            _copy(answer, target, name, begin, total, say)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            if error.headers.get("Content-Range") == f"bytes */{begin}":
                return  # it was whole
            target.truncate(0)
        raise _Failure(f"HTTP {error.code} {error.reason}", lasting=error.code in _LASTING) from None
    except urllib.error.URLError as error:
        # A name that is unknown from the start is a machine without network, which waiting does not change.
        offline = isinstance(error.reason, socket.gaierror) and not begin
        raise _Failure(f"no network? {error.reason}" if offline else str(error.reason), lasting=offline) from None
    except (http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise _Failure(str(error) or type(error).__name__) from None


def _check_space(target: IO[bytes], name: str, total: int | None, begin: int) -> None:
    free = shutil.disk_usage(Path(target.name).parent).free
    if total is not None and total - begin > free:
        raise InputError(
            f"{target.name}: {name} needs {total - begin:,} more bytes, {free:,} are free; free some space"
        )


def _copy(
    answer: http.client.HTTPResponse, target: IO[bytes], name: str, begin: int, total: int | None, say: Say
) -> None:
    done, said = begin, time.monotonic()
    while block := answer.read1(BLOCK):
        target.write(block)
        done += len(block)
        if time.monotonic() - said > SAY_EVERY:
            said = time.monotonic()
            say(f"{name}: {done / 1e6:,.0f} MB" + (f" of {total / 1e6:,.0f} MB" if total else ""))
    target.flush()
    if total is not None and done != total:
        raise _Failure(f"cut after {done:,} of {total:,} bytes")


class _NoDowngrade(urllib.request.HTTPRedirectHandler):
    """A redirection from HTTPS to anything else is refused."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            scheme = urllib.parse.urlsplit(newurl).scheme
            raise _Failure(f"the server redirects from https to {scheme}", lasting=True)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = urllib.request.build_opener(_NoDowngrade)
