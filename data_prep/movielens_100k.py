"""MovieLens 100K, from the file that the RecBole distribution carries: no download, no account.

    https://grouplens.org/datasets/movielens/100k

The label is `rating >= 4`; the action is `rating - 1`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_prep.archives import RawFile
from data_prep.delimited import Layout, read_delimited
from data_prep.event_log import EventLog
from data_prep.fields import epoch, integer
from data_prep.movielens import MAX_ID, POSITIVE_RATING, ratings_field
from data_prep.published import Figure, Published
from data_prep.requests import RequestRule
from data_prep.source import Source
from repro.errors import InputError

NAME = "movielens-100k"
LICENCE = (
    "GroupLens terms of MovieLens 100K: research use; no redistribution without permission; no commercial use without "
    "permission; cite Harper and Konstan, The MovieLens Datasets (ACM TiiS 5:4, 2015), doi 10.1145/2827872; "
    "https://files.grouplens.org/datasets/movielens/ml-100k-README.txt"
)
REINSTALL = "`pip install --no-deps --force-reinstall recbole==1.2.1`"
COLUMNS = ("user_id:token", "item_id:token", "rating:float", "timestamp:float")
PUBLISHED = Published(
    figures=(
        Figure(name="events", value=100_000),
        Figure(name="users", value=943),
        Figure(name="mean", value=106),
        Figure(name="median", value=65, sure=False),
        Figure(name="longest", value=737, sure=False),
    ),
    fix=f"run {REINSTALL}",
)


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
        published=PUBLISHED,
        read=lambda: read_inter(path),
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


def read_inter(path: Path) -> Iterator[EventLog]:
    """Read a RecBole atomic `.inter` file of ratings 1..5 (tab separated, seconds since the epoch) in parts.

    Raises:
        InputError: unreadable, wrong header, or a malformed row; names the file, line and field.
    """
    user, item, rating, seconds = COLUMNS
    fields = (
        integer(user, 1, MAX_ID, is_private=True),
        integer(item, 1, MAX_ID),
        ratings_field(rating, 5),
        epoch(seconds, kind=pa.float64()),
    )
    layout = Layout(delimiter="\t", fix=f"mend the line, or run {REINSTALL}")
    for values in read_delimited(RawFile(path=path), fields, layout):
        yield EventLog(
            user=values[user],
            item=values[item],
            time=(values[seconds] * 1000).astype(np.int64),
            label=(values[rating] >= POSITIVE_RATING).astype(np.float32),
            actions={"action": (values[rating] - 1).astype(np.int32)},
            action_vocabulary={"action": 5},
        )
