"""Raw files in the official formats of the public data sets, a few events long."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from data_prep import amazon, kuairand, movielens, taobao, yambda
from data_prep.source import Source

Rows = list[list[str]]


def zipped(member: str, content: bytes, *others: str) -> bytes:
    """A zip of `member`, with other members around it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for other in others:
            archive.writestr(other, "not a log\n")
        archive.writestr(member, content)
    return buffer.getvalue()


def tarred(members: dict[str, bytes]) -> bytes:
    """A tar.gz of `members`."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def lines(rows: Rows, delimiter: str = ",") -> bytes:
    """Delimited text."""
    return "".join(f"{delimiter.join(row)}\n" for row in rows).encode()


@dataclass(frozen=True)
class Format:
    """How one data set's raw file is made."""

    name: str
    source: Callable[[Path], Source]
    """From the folder of raw files."""
    header: list[str]
    """Columns; in the file too unless the format has no header."""
    rows: Rows
    """Good events: two users, one with a later event."""
    pack: Callable[[list[str], Rows], bytes]
    """Header and rows -> the raw file."""
    events: list[tuple[object, object, int, int, int]]
    """What `rows` are: user, item, time in ms, label, action."""
    line: int
    """Number of the first event's line."""
    future: str
    """A time that has not come yet."""
    time: str
    """Column of times."""
    user: str
    """Column of users."""
    is_text: bool = True
    """Not Parquet."""


def source_of(form: Format, raw: Path, *, checksum: str | None = None) -> Source:
    """The format's source, expecting a small file of that checksum."""
    source = form.source(raw)
    (remote,) = source.remote
    remote = dataclasses.replace(remote, checksum=checksum, changes=False)
    return dataclasses.replace(source, remote=(remote,), published=None)


def sha256(content: bytes) -> str:
    """As `RemoteFile.checksum`."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _edition(module: object, name: str) -> Callable[[Path], Source]:
    edition = next(edition for edition in module.EDITIONS if edition.name == name)  # type: ignore[attr-defined]
    if getattr(edition, "ratings_md5", None):
        edition = dataclasses.replace(edition, ratings_md5=None)
    return lambda raw: module.source(edition, raw)  # type: ignore[attr-defined]


def _kuairand(header: list[str], rows: Rows) -> bytes:
    """Both logs, the later one first in the archive, beside the log of random videos."""
    earlier, later = lines([header, *rows[1:]]), lines([header, *rows[:1]])
    return tarred({
        "KuaiRand-1K/data/log_random_4_22_to_5_08_1k.csv": lines([header, *rows]),
        "KuaiRand-1K/data/log_standard_4_22_to_5_08_1k.csv": later,
        "KuaiRand-1K/data/log_standard_4_08_to_4_21_1k.csv": earlier,
        "KuaiRand-1K/LICENSE": b"CC BY-SA 4.0",
    })  # fmt: skip


def _parquet(header: list[str], rows: Rows) -> bytes:
    types = {"uid": pa.uint32(), "item_id": pa.uint32(), "timestamp": pa.uint32(), "is_organic": pa.uint8(),
             "played_ratio_pct": pa.uint16(), "track_length_seconds": pa.uint32()}  # fmt: skip
    buffer = io.BytesIO()
    columns = {
        name: pa.array([int(row[place]) for row in rows]).cast(types.get(name, pa.int64()))
        for place, name in enumerate(header)
    }
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def _json_lines(header: list[str], rows: Rows) -> bytes:
    numbers = ("rating", "timestamp")
    made = []
    for row in rows:
        named = dict(zip(header, row, strict=True))
        parts = [f'"{key}": {value if key in numbers else json.dumps(value)}' for key, value in named.items()]
        made.append("{" + ", ".join(['"title": "Five, \\"stars\\""', '"images": []', *parts]) + "}\n")
    return gzip.compress("".join(made).encode())


_RATINGS = ["userId", "movieId", "rating", "timestamp"]
_RATING_ROWS = [["2", "31", "0.5", "1112486027"], ["1", "29", "4.0", "1112484676"], ["2", "29", "3.5", "1112484819"]]
_RATING_EVENTS = [
    (2, 31, 1_112_486_027_000, 0, 0), (1, 29, 1_112_484_676_000, 1, 7), (2, 29, 1_112_484_819_000, 0, 6)
]  # fmt: skip
_CSV_EDITIONS = {
    "movielens-20m": "ml-20m", "movielens-25m": "ml-25m", "movielens-32m": "ml-32m",
    "movielens-latest-small": "ml-latest-small",
}  # fmt: skip
_FUTURE = "99999999999"
_KUAIRAND = [
    "user_id", "video_id", "date", "hourmin", "time_ms", "is_click", "is_like", "is_follow", "is_comment", "is_forward",
    "is_hate", "long_view", "play_time_ms", "duration_ms", "profile_stay_time", "comment_stay_time", "is_profile_enter",
    "is_rand", "tab",
]  # fmt: skip
_REVIEW_ROWS = [
    ["AFKZENTNBQ7A7V7UXW5JJI6UGRYQ", "0143127748", "5.0", "1446304000000"],
    ["BG7QWW", "B00X", "3.0", "1446305000123"],
    ["AFKZENTNBQ7A7V7UXW5JJI6UGRYQ", "B00X", "4.0", "1400000000000"],
]
_REVIEW_EVENTS = [
    ("AFKZENTNBQ7A7V7UXW5JJI6UGRYQ", "0143127748", 1_446_304_000_000, 1, 4),
    ("BG7QWW", "B00X", 1_446_305_000_123, 0, 2),
    ("AFKZENTNBQ7A7V7UXW5JJI6UGRYQ", "B00X", 1_400_000_000_000, 1, 3),
]

FORMATS = (
    Format(
        "movielens-1m", _edition(movielens, "movielens-1m"), _RATINGS,
        [["2", "1193", "5", "978300760"], ["1", "661", "3", "978302109"], ["2", "914", "4", "978301968"]],
        lambda _, rows: zipped("ml-1m/ratings.dat", lines(rows, "::"), "ml-1m/movies.dat", "ml-1m/README"),
        [(2, 1193, 978_300_760_000, 1, 4), (1, 661, 978_302_109_000, 0, 2), (2, 914, 978_301_968_000, 1, 3)],
        1, _FUTURE, "timestamp", "userId",
    ),
    *(
        Format(
            name, _edition(movielens, name), _RATINGS, _RATING_ROWS,
            lambda header, rows, stem=stem: zipped(  # type: ignore[misc]
                f"{stem}/ratings.csv", lines([header, *rows]), f"{stem}/tags.csv"
            ),
            _RATING_EVENTS, 2, _FUTURE, "timestamp", "userId",
        )
        for name, stem in _CSV_EDITIONS.items()
    ),
    *(
        Format(
            name, _edition(kuairand, name), _KUAIRAND,
            [
                ["5", "900", "20220422", "1200", "1650600000123", *"1000000", *"000000", "1"],
                ["5", "901", "20220408", "900", "1649379600456", *"0000001", *"000000", "1"],
                ["7", "901", "20220409", "900", "1649466000000", *"1000010", *"000000", "1"],
            ],
            _kuairand,
            [(5, 900, 1_650_600_000_123, 1, 1), (5, 901, 1_649_379_600_456, 0, 2), (7, 901, 1_649_466_000_000, 1, 4)],
            2, "99999999999999", "time_ms", "user_id",
        )
        for name in ("kuairand-1k", "kuairand-27k")
    ),
    *(
        Format(
            name, _edition(yambda, name),
            ["uid", "timestamp", "item_id", "is_organic", "played_ratio_pct", "track_length_seconds"],
            [["100", "10", "7", "0", "0", "170"], ["100", "39420", "8326270", "0", "49", "170"],
             ["100", "39420", "1", "1", "50", "200"], ["200", "5", "1", "0", "101", "200"],
             ["100", "39425", "8326270", "0", "100", "170"]],
            _parquet,
            [(100, 7, 10_000, 0, 0), (100, 8326270, 39_420_000, 0, 1), (100, 1, 39_420_000, 1, 2),
             (200, 1, 5_000, 1, 4), (100, 8326270, 39_425_000, 1, 4)],
            0, "4000000000", "timestamp", "uid", is_text=False,
        )
        for name in ("yambda-50m", "yambda-500m")
    ),
    Format(
        "taobao", taobao.source, ["user", "item", "category", "behaviour", "seconds"],
        [["1", "2268318", "2520377", "pv", "1511544070"], ["1", "2333346", "2520771", "buy", "1511561733"],
         ["2", "2268318", "2520377", "fav", "1511600000"], ["3", "5", "6", "pv", "-1234567890"],
         ["3", "5", "6", "pv", "1512316800"], ["2", "2333346", "2520771", "cart", "1511700000"]],
        lambda _, rows: zipped("UserBehavior.csv", lines(rows)),
        [(1, 2268318, 1_511_544_070_000, 0, 0), (1, 2333346, 1_511_561_733_000, 1, 3),
         (2, 2268318, 1_511_600_000_000, 1, 1), (2, 2333346, 1_511_700_000_000, 1, 2)],
        1, "9999999999999999", "seconds", "user",
    ),
    Format(
        "amazon-books", lambda raw: amazon.source("amazon-books", raw),
        ["user_id", "parent_asin", "rating", "timestamp"], _REVIEW_ROWS,
        lambda header, rows: gzip.compress(lines([header, *rows])), _REVIEW_EVENTS, 2, "99999999999999", "timestamp",
        "user_id",
    ),
    Format(
        "amazon-books-full", lambda raw: amazon.source("amazon-books-full", raw),
        ["user_id", "parent_asin", "rating", "timestamp"], _REVIEW_ROWS, _json_lines, _REVIEW_EVENTS, 1,
        "99999999999999", "timestamp", "user_id",
    ),
)  # fmt: skip
