"""MovieLens 1M, 20M, 25M, 32M and latest-small: the zips of GroupLens, read in place.

    https://grouplens.org/datasets/movielens/

`ratings.dat` (1M) has no header and `::` between its fields; `ratings.csv` (the others) has the header
userId,movieId,rating,timestamp. Ratings are 1..5, or 0.5..5 in halves; times are seconds since 1970.

The label is `rating >= 4`; the action is the rating (5 or 10 steps).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_prep.archives import RawFile
from data_prep.delimited import Layout, read_delimited
from data_prep.download import RemoteFile
from data_prep.event_log import EventLog
from data_prep.fields import Field, epoch, integer
from data_prep.published import Figure, Published
from data_prep.requests import RequestRule
from data_prep.source import Source

# N events of a part

POSITIVE_RATING = 4
SITE = "https://files.grouplens.org/datasets/movielens"
PAGE = "https://grouplens.org/datasets/movielens"
LICENCE = (
    "GroupLens terms: research use; no redistribution and no commercial use without permission; cite Harper and "
    "Konstan, The MovieLens Datasets (ACM TiiS 5:4, 2015), doi 10.1145/2827872; see the README in the zip"
)
MAX_ID = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Edition:
    """One of the zips."""

    name: str
    """Data set."""
    stem: str
    """Name of the zip, without .zip."""
    checksum: str | None
    figures: tuple[Figure, ...]
    is_dat: bool = False
    """`ratings.dat` of whole ratings."""
    ratings_md5: str | None = None
    """Of the unpacked ratings, where it is published and the zip's is not."""
    changes: bool = False
    """GroupLens replaces it now and then."""


EDITIONS = (
    Edition(
        name="movielens-1m",
        stem="ml-1m",
        checksum="sha256:a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
        is_dat=True,
        figures=(
            Figure(name="events", value=1_000_209),
            Figure(name="users", value=6_040),
            Figure(name="mean", value=165.6),
            Figure(name="median", value=96, sure=False),
            Figure(name="longest", value=2_314, sure=False),
        ),
    ),
    Edition(
        name="movielens-20m",
        stem="ml-20m",
        checksum="sha256:96f243c338a8665f6bcc89c53edf6ee39162a846940de6b7c8c48aeada765ff3",
        figures=(
            Figure(name="events", value=20_000_263),
            Figure(name="users", value=138_493),
            Figure(name="mean", value=144),
            Figure(name="median", value=68),
            Figure(name="longest", value=9_254, sure=False),
        ),
    ),
    Edition(
        name="movielens-25m",
        stem="ml-25m",
        checksum="sha256:8b21cfb7eb1706b4ec0aac894368d90acf26ebdfb6aced3ebd4ad5bd1eb9c6aa",
        figures=(
            Figure(name="events", value=25_000_095),
            Figure(name="users", value=162_541),
            Figure(name="mean", value=154),
            Figure(name="median", value=71),
            Figure(name="longest", value=32_202, sure=False),
        ),
    ),
    Edition(
        name="movielens-32m",
        stem="ml-32m",
        checksum=None,
        ratings_md5="cf12b74f9ad4b94a011f079e26d4270a",
        figures=(
            Figure(name="events", value=32_000_204),
            Figure(name="users", value=200_948),
            Figure(name="mean", value=159),
            Figure(name="median", value=73),
            Figure(name="p90", value=364),
            Figure(name="longest", value=33_332),
        ),
    ),
    Edition(
        name="movielens-latest-small",
        stem="ml-latest-small",
        checksum="sha256:696d65a3dfceac7c45750ad32df2c259311949efec81f0f144fdfb91ebc9e436",
        changes=True,
        figures=(
            Figure(name="events", value=100_836, sure=False),
            Figure(name="users", value=610, sure=False),
            Figure(name="mean", value=165, sure=False),
            Figure(name="median", value=70, sure=False),
            Figure(name="longest", value=2_698, sure=False),
        ),
    ),
)


def source(edition: Edition, raw_root: Path) -> Source:
    """The edition, from its zip in `raw_root / edition.name`."""
    zip_file = RemoteFile(
        folder=raw_root / edition.name,
        name=f"{edition.stem}.zip",
        url=f"{SITE}/{edition.stem}.zip",
        page=PAGE,
        checksum=edition.checksum,
        changes=edition.changes,
    )
    ratings = "ratings.dat" if edition.is_dat else "ratings.csv"
    file = RawFile(
        path=zip_file.path,
        members=(ratings.replace(".", r"\."),),
        md5={ratings: edition.ratings_md5} if edition.ratings_md5 else {},
    )
    fix = f"remove {zip_file.path} and get it again from {PAGE}"
    return Source(
        name=edition.name,
        description=f"{edition.stem} (GroupLens), {zip_file.url}",
        licence=LICENCE,
        code=Path(__file__),
        inputs=(),
        remote=(zip_file,),
        parameters={"positive_rating": POSITIVE_RATING},
        rule=RequestRule(),
        published=Published(figures=edition.figures, fix=fix),
        read=lambda: read_ratings(file, is_dat=edition.is_dat, fix=fix),
    )


def read_ratings(file: RawFile, *, is_dat: bool = False, fix: str = "mend the line") -> Iterator[EventLog]:
    """Ratings in parts, in the file's order.

    Raises:
        InputError: unreadable, another header, or a malformed row; names the file, line and field.
    """
    user, item, rating, seconds = ("userId", "movieId", "rating", "timestamp")
    layout = (
        Layout(delimiter="::", columns=(user, item, rating, seconds), fix=fix)
        if is_dat
        else Layout(delimiter=",", fix=fix)
    )
    steps = 5 if is_dat else 10
    fields = (
        integer(user, 1, MAX_ID, is_private=True),
        integer(item, 1, MAX_ID),
        ratings_field(rating, steps),
        epoch(seconds),
    )
    for values in read_delimited(file, fields, layout):
        step_N = np.rint(values[rating] * (steps // 5)).astype(np.int32) - 1
        yield EventLog(
            user=values[user],
            item=values[item],
            time=values[seconds] * 1000,
            label=(values[rating] >= POSITIVE_RATING).astype(np.float32),
            actions={"action": step_N},
            action_vocabulary={"action": steps},
        )


def ratings_field(name: str, steps: int) -> Field:
    """Stars up to 5 in `steps` equal steps (5 or 10), the first of which is not 0."""
    a_star = steps // 5
    return Field(
        name=name,
        type=pa.float64(),
        is_good=lambda stars: (stars >= 1 / a_star) & (stars <= 5) & (stars * a_star == np.rint(stars * a_star)),
        wanted="1, 2, 3, 4 or 5" if a_star == 1 else "0.5, 1, ... or 5",
    )
