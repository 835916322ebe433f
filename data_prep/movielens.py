"""MovieLens 100K, from the file that the RecBole distribution carries: no download, no account."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv

from data_prep.event_log import EventLog
from data_prep.requests import RequestRule
from data_prep.source import Source
from repro.errors import InputError

# N events

NAME = "movielens-100k"
LICENCE = (
    "GroupLens terms of MovieLens 100K: research use; no redistribution without permission; no commercial use without "
    "permission; cite Harper and Konstan, The MovieLens Datasets (ACM TiiS 5:4, 2015), doi 10.1145/2827872; "
    "https://files.grouplens.org/datasets/movielens/ml-100k-README.txt"
)
REINSTALL = "`pip install --no-deps --force-reinstall recbole==1.2.1`"
EVENTS, USERS, ITEMS = 100_000, 943, 1_682
POSITIVE_RATING = 4
COLUMNS = ("user_id:token", "item_id:token", "rating:float", "timestamp:float")


def source() -> Source:
    """The data set of the installed RecBole distribution.

    Raises:
        InputError: RecBole or its file is not installed.
    """
    path = installed_file()
    return Source(
        name=NAME,
        description="MovieLens 100K (GroupLens), as in the RecBole 1.2.1 distribution",
        licence=LICENCE,
        code=Path(__file__),
        inputs=(path,),
        parameters={"positive_rating": POSITIVE_RATING},
        rule=RequestRule(),
        read=lambda: read_whole(path),
    )


def installed_file() -> Path:
    """`ml-100k.inter` inside the installed RecBole distribution, found without importing it."""
    spec = importlib.util.find_spec("recbole")
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"{NAME}: its file comes with RecBole, which is not installed; run {REINSTALL}")
    path = Path(spec.submodule_search_locations[0]) / "dataset_example" / "ml-100k" / "ml-100k.inter"
    if not path.is_file():
        raise InputError(f"{path}: missing from the installed RecBole; run {REINSTALL}")
    return path


def read_whole(path: Path) -> EventLog:
    """Read the file and check that it is all of MovieLens 100K.

    Raises:
        InputError: malformed (see `read_inter`), or other counts than the published ones.
    """
    log = read_inter(path)
    found = (log.user.size, np.unique(log.user).size, np.unique(log.item).size)
    if found != (EVENTS, USERS, ITEMS):
        raise InputError(
            f"{path}: {found[0]:,} ratings, {found[1]:,} users, {found[2]:,} items instead of {EVENTS:,}, {USERS:,}, "
            f"{ITEMS:,}; run {REINSTALL}"
        )
    return log


def read_inter(path: Path) -> EventLog:
    """Read a RecBole atomic `.inter` file of ratings 1..5 (tab separated, seconds since the epoch).

    The label is `rating >= 4`; the action feature `action` is `rating - 1`.

    Raises:
        InputError: unreadable, wrong header, or a malformed row; names the file, line and field.
    """
    _check_header(path)
    types = dict(zip(COLUMNS, (pa.int64(), pa.int64(), pa.float64(), pa.float64()), strict=True))
    try:
        table = csv.read_csv(
            path,
            parse_options=csv.ParseOptions(delimiter="\t", quote_char=False),
            convert_options=csv.ConvertOptions(column_types=types, null_values=[]),
        )
        user, item, rating, seconds = (table[name].to_numpy() for name in COLUMNS)
    except pa.ArrowInvalid as error:
        raise _bad_row(path, str(error)) from None
    good = (user >= 1) & (item >= 1) & np.isin(rating, (1, 2, 3, 4, 5)) & (seconds >= 0) & (seconds < _MAX_SECONDS)
    if not good.all():
        raise _bad_row(path, "a value out of range")
    return EventLog(
        user=user,
        item=item,
        time=(seconds * 1000).astype(np.int64),
        label=(rating >= POSITIVE_RATING).astype(np.float32),
        actions={"action": (rating - 1).astype(np.int32)},
        action_vocabulary={"action": 5},
    )


_MAX_SECONDS = 4_102_444_800
"""Year 2100: larger values are milliseconds, or noise."""


def _check_header(path: Path) -> None:
    try:
        with path.open("rb") as file:
            header = file.readline(1000).decode().rstrip("\r\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); run {REINSTALL}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text; run {REINSTALL}") from None
    if tuple(header.split("\t")) != COLUMNS:
        raise InputError(f"{path}: line 1: header must be {', '.join(COLUMNS)} (tabs), got {header!r}; run {REINSTALL}")


def _bad_row(path: Path, reason: str) -> InputError:
    """The first malformed row, in words. Slow: it only runs once reading has failed."""
    with path.open(encoding="utf-8", errors="replace") as file:
        next(file)
        for number, line in enumerate(file, start=2):
            fields = line.rstrip("\r\n").split("\t")
            if len(fields) != len(COLUMNS):
                return InputError(f"{path}: line {number}: {len(fields)} fields instead of {len(COLUMNS)}; {_FIX}")
            for name, text, wanted in zip(COLUMNS, fields, _WANTED, strict=True):
                if not _is_good(name, text):
                    return InputError(f"{path}: line {number}: {name} must be {wanted}, got {text!r}; {_FIX}")
    return InputError(f"{path}: {reason}; {_FIX}")


_FIX = f"mend the line, or run {REINSTALL}"
_WANTED = ("an integer >= 1", "an integer >= 1", "1, 2, 3, 4 or 5", "seconds since 1970")


def _is_good(name: str, text: str) -> bool:
    try:
        if name in COLUMNS[:2]:
            return int(text) >= 1
        value = float(text)
    except ValueError:
        return False
    if name == COLUMNS[2]:
        return value in (1, 2, 3, 4, 5)
    return math.isfinite(value) and 0 <= value < _MAX_SECONDS
