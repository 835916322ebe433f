"""Keyed hashes in place of user ids.

The key lies outside the data folder, so that a data set given away cannot be joined with the log it came from by
hashing guessed ids.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from repro.errors import InputError

KEY_BYTES = 32


def load_key(path: Path, data_root: Path) -> bytes:
    """The secret key in `path`; made (readable by its owner only) when there is none.

    Raises:
        InputError: the path lies in the data folder, cannot be read or written, or holds no key.
    """
    if path.resolve().is_relative_to(data_root.resolve()):
        raise InputError(f"{path}: the user-hash key must not lie with the data ({data_root}); give another path")
    try:
        if not path.exists():
            _create(path)
        mode = path.stat().st_mode
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: the user-hash key cannot be read or made ({error}); mend or remove it") from None
    if mode & 0o077:
        raise InputError(f"{path}: others may read the user-hash key; run `chmod 600 {path}`")
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise InputError(f"{path}: not a user-hash key ({KEY_BYTES} bytes in hex); remove it and a new one is made")
    return key


def hash_users(raw_U: Iterable[int | str], key: bytes) -> np.ndarray:
    """blake2b (8 bytes, keyed) of each id's text, as int64 (U,)."""
    digests = b"".join(hashlib.blake2b(str(raw).encode(), digest_size=8, key=key).digest() for raw in raw_U)
    return np.frombuffer(digests, dtype="<i8").astype(np.int64)


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, partial = tempfile.mkstemp(dir=path.parent)  # mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(KEY_BYTES) + "\n")
        # A link, not a rename: of two processes that start together the second keeps the first one's key.
        Path(path).hardlink_to(partial)
    except FileExistsError:
        pass
    finally:
        Path(partial).unlink()
