"""KuaiRand-1K and KuaiRand-27K: short videos shown to users of Kuaishou, with histories of 10k events and more.

    https://kuairand.com, https://zenodo.org/records/10439422

The history is both standard logs, in time order (they cover consecutive fortnights; 27K has each in parts). The log of
randomly shown videos is not read, since nobody chose those. The label is `is_click`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.archives import RawFile
from data_prep.delimited import Layout, read_delimited
from data_prep.download import RemoteFile
from data_prep.event_log import EventLog
from data_prep.fields import Values, epoch, identifier, integer
from data_prep.published import Figure, Published
from data_prep.requests import RequestRule
from data_prep.source import Source

# N events of a part

PAGE = "https://zenodo.org/records/10439422"
LICENCE = "CC BY-SA 4.0; cite Gao et al., KuaiRand (CIKM 2022), doi 10.1145/3511808.3557624"
MEMBERS = (r"log_standard_4_08_to_4_21.*\.csv", r"log_standard_4_22_to_5_08.*\.csv")
FLAGS = ("is_click", "long_view", "is_like", "is_follow", "is_comment", "is_forward", "is_hate")
ACTIONS = ("shown", "clicked", "watched long", "liked, followed, commented or forwarded", "hated")
"""By id; the last one that applies."""


@dataclass(frozen=True, kw_only=True)
class Edition:
    """One of the archives."""

    name: str
    """Data set."""
    archive: str
    checksum: str
    figures: tuple[Figure, ...]


EDITIONS = (
    Edition(
        name="kuairand-1k",
        archive="KuaiRand-1K.tar.gz",
        checksum="md5:6b0b9c8222d67fcd4c676218edca3f1f",
        figures=(
            Figure(name="events", value=11_713_045),
            Figure(name="users", value=1_000),
            Figure(name="mean", value=11_700, within=0.01),
        ),
    ),
    Edition(
        name="kuairand-27k",
        archive="KuaiRand-27K.tar.gz",
        checksum="md5:3e3c799a24e2d23a4d2c757fbf9adf59",
        figures=(
            Figure(name="events", value=322_278_385),
            Figure(name="users", value=27_285),
            # Mean and median are printed by others to the unit, but of no stated part of the log.
            Figure(name="mean", value=11_796, within=0.01),
            Figure(name="median", value=8_591, within=0.01),
            Figure(name="longest", value=228_000, within=0.01),
        ),
    ),
)


def source(edition: Edition, raw_root: Path) -> Source:
    """The edition, from its archive in `raw_root / edition.name`."""
    archive = RemoteFile(
        folder=raw_root / edition.name,
        name=edition.archive,
        url=f"{PAGE}/files/{edition.archive}",
        page=PAGE,
        checksum=edition.checksum,
    )
    fix = f"remove {archive.path} and get it again from {PAGE}"
    return Source(
        name=edition.name,
        description=f"{edition.archive.removesuffix('.tar.gz')} (Kuaishou), {archive.url}",
        licence=LICENCE,
        code=Path(__file__),
        inputs=(),
        remote=(archive,),
        parameters={"label": "is_click"},
        rule=RequestRule(),
        published=Published(figures=edition.figures, fix=fix),
        read=lambda: read_logs(RawFile(path=archive.path, members=MEMBERS), fix),
    )


def read_logs(file: RawFile, fix: str) -> Iterator[EventLog]:
    """The standard logs in parts, in archive order; times are milliseconds since 1970.

    Raises:
        InputError: unreadable, a log or a column missing, or a malformed row; names the file, line and field.
    """
    fields = (
        identifier("user_id", is_private=True),
        identifier("video_id"),
        epoch("time_ms", 1000),
        *(integer(flag, 0, 1) for flag in FLAGS),
    )
    for values in read_delimited(file, fields, Layout(fix=fix)):
        yield EventLog(
            user=values["user_id"],
            item=values["video_id"],
            time=values["time_ms"],
            label=values["is_click"].astype(np.float32),
            actions={"action": _action(values)},
            action_vocabulary={"action": len(ACTIONS)},
        )


def _action(values: Values) -> np.ndarray:
    """Place in `ACTIONS`, int32 (N,)."""
    action_N = values["is_click"].astype(np.int32)
    action_N[values["long_view"] == 1] = 2
    for flag in ("is_like", "is_follow", "is_comment", "is_forward"):
        action_N[values[flag] == 1] = 3
    action_N[values["is_hate"] == 1] = 4
    return action_N
