"""Amazon Reviews 2023, Books: short histories, many items.

    https://amazon-reviews-2023.github.io

`amazon-books` is the 5-core of ratings only (`Books.csv.gz`: user_id,parent_asin,rating,timestamp);
`amazon-books-full` has every review (`Books.jsonl.gz`, of which the same four keys are read). Ids are text, times
milliseconds since 1970. The label is `rating >= 4`; the action is `rating - 1`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data_prep.archives import RawFile
from data_prep.delimited import Layout, read_delimited
from data_prep.download import RemoteFile
from data_prep.event_log import EventLog
from data_prep.fields import epoch, text_identifier
from data_prep.json_lines import read_json_lines
from data_prep.movielens import POSITIVE_RATING, ratings_field
from data_prep.published import Figure, Published
from data_prep.requests import RequestRule
from data_prep.source import Source

NAME, FULL_NAME = "amazon-books", "amazon-books-full"
PAGE = "https://amazon-reviews-2023.github.io"
SITE = "https://mcauleylab.ucsd.edu/public_datasets/data/amazon_2023"
LICENCE = "none stated by the publisher; research use; cite Hou et al., arXiv 2403.03952"


def source(name: str, raw_root: Path) -> Source:
    """`amazon-books` or `amazon-books-full`, from its file in `raw_root / name`."""
    is_full = name == FULL_NAME
    path = "raw/review_categories/Books.jsonl.gz" if is_full else "benchmark/5core/rating_only/Books.csv.gz"
    file = RemoteFile(folder=raw_root / name, name=Path(path).name, url=f"{SITE}/{path}", page=PAGE, checksum=None)
    fix = f"remove {file.path} and get it again from {PAGE}"
    figures = (
        Figure(name="events", value=9_500_000, within=0.02),
        Figure(name="users", value=776_000, within=0.02),
        Figure(name="mean", value=12, within=0.05),
    )
    return Source(
        name=name,
        description=f"Amazon Reviews 2023, Books, {'all reviews' if is_full else '5-core'}, {file.url}",
        licence=LICENCE,
        code=Path(__file__),
        inputs=(),
        remote=(file,),
        parameters={"positive_rating": POSITIVE_RATING},
        rule=RequestRule(),
        published=None if is_full else Published(figures=figures, fix=fix),
        read=lambda: read_reviews(RawFile(path=file.path), fix),
    )


def read_reviews(file: RawFile, fix: str) -> Iterator[EventLog]:
    """Reviews in parts, in the file's order; JSON lines or CSV, by the file's name.

    Raises:
        InputError: unreadable or a malformed row; names the file, line and field.
    """
    fields = (
        text_identifier("user_id", is_private=True),
        text_identifier("parent_asin"),
        ratings_field("rating", 5),
        epoch("timestamp", 1000),
    )
    is_json = file.path.name.endswith(".jsonl.gz")
    for values in read_json_lines(file, fields, fix) if is_json else read_delimited(file, fields, Layout(fix=fix)):
        yield EventLog(
            user=values["user_id"],
            item=values["parent_asin"],
            time=values["timestamp"],
            label=(values["rating"] >= POSITIVE_RATING).astype(np.float32),
            actions={"action": (values["rating"] - 1).astype(np.int32)},
            action_vocabulary={"action": 5},
        )
