"""Yambda-50M and Yambda-500M: what users of Yandex Music listened to; histories of thousands of events.

    https://huggingface.co/datasets/yandex/yambda, arXiv 2505.22238

The flat file of listens: uid, item_id, timestamp, is_organic, played_ratio_pct, track_length_seconds. Times are seconds
since the log's own zero, in steps of 5 s, so that equal times are common; those keep the file's order.

The label is `played_ratio_pct >= 50` (the publisher's own threshold of a listen that counts); the action is the quarter
of the track up to which it was played (0..4).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_prep.download import RemoteFile
from data_prep.event_log import EventLog
from data_prep.fields import Field, identifier
from data_prep.parquet_log import read_parquet
from data_prep.published import Figure, Published
from data_prep.requests import RequestRule
from data_prep.source import Source

PAGE = "https://huggingface.co/datasets/yandex/yambda"
LICENCE = "Apache-2.0; cite Ploshkin et al., Yambda-5B (arXiv 2505.22238)"
POSITIVE_PERCENT = 50
QUARTERS = 5
MAX_SECONDS = 10 * 366 * 86_400
"""The log covers less than a year; ten are surely another unit."""


@dataclass(frozen=True, kw_only=True)
class Edition:
    """One of the sizes."""

    name: str
    """Data set."""
    size: str
    """As in the path."""
    figures: tuple[Figure, ...]


EDITIONS = (
    Edition(
        name="yambda-50m",
        size="50m",
        figures=(
            Figure(name="events", value=46_467_212),
            Figure(name="users", value=9_238),
            Figure(name="mean", value=5_000, within=0.02),
            Figure(name="median", value=3_024, within=0.01),
            Figure(name="p90", value=13_044, within=0.01),
            Figure(name="p99", value=23_765, within=0.01),
        ),
    ),
    Edition(
        name="yambda-500m",
        size="500m",
        figures=(Figure(name="events", value=466_512_103), Figure(name="mean", value=5_000, within=0.05)),
    ),
)


def source(edition: Edition, raw_root: Path) -> Source:
    """The edition's listens, from `raw_root / edition.name / listens.parquet`."""
    listens = RemoteFile(
        folder=raw_root / edition.name,
        name="listens.parquet",
        url=f"{PAGE}/resolve/main/flat/{edition.size}/listens.parquet",
        page=f"{PAGE}/tree/main/flat/{edition.size}",
        checksum=None,
    )
    fix = f"remove {listens.path} and get it again from {listens.page}"
    return Source(
        name=edition.name,
        description=f"Yambda-{edition.size.upper()} listens (Yandex), {listens.url}",
        licence=LICENCE,
        code=Path(__file__),
        inputs=(),
        remote=(listens,),
        parameters={"positive_percent": POSITIVE_PERCENT},
        rule=RequestRule(),
        published=Published(figures=edition.figures, fix=fix),
        read=lambda: read_listens(listens.path, fix),
    )


def read_listens(path: Path, fix: str) -> Iterator[EventLog]:
    """Listens in parts, in the file's order.

    Raises:
        InputError: not such a Parquet file, or a bad value; names the file, row and field.
    """
    fields = (
        identifier("uid", is_private=True),
        identifier("item_id"),
        Field(
            name="timestamp",
            type=pa.int64(),
            is_good=lambda values: (values >= 0) & (values < MAX_SECONDS),
            wanted="seconds since the log's beginning",
        ),
        Field(
            name="played_ratio_pct",
            type=pa.float64(),
            is_good=lambda values: (values >= 0) & np.isfinite(values),
            wanted="a percentage",
        ),
    )
    for values in read_parquet(path, fields, fix):
        played_N = values["played_ratio_pct"]
        yield EventLog(
            user=values["uid"],
            item=values["item_id"],
            time=values["timestamp"] * 1000,
            label=(played_N >= POSITIVE_PERCENT).astype(np.float32),
            actions={"action": np.minimum(played_N // 25, QUARTERS - 1).astype(np.int32)},
            action_vocabulary={"action": QUARTERS},
        )
