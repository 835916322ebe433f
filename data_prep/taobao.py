"""Taobao UserBehavior: views, carts, favourites and purchases of nine days; short histories, many items.

    https://tianchi.aliyun.com/dataset/649 (an account is needed, so the zip has to be put in its place by hand)

`UserBehavior.csv` has no header: user, item, category, behaviour (pv, buy, cart, fav), seconds since 1970. Some rows
lie outside the nine days that the publisher documents (25 November to 3 December 2017, China Standard Time), a few of
them before 1970 or in the future: they are left out and counted.

The label is 0 for a view (`pv`) and 1 for the rest; the action is the behaviour.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.archives import RawFile
from data_prep.delimited import Layout, read_delimited
from data_prep.download import RemoteFile
from data_prep.event_log import EventLog
from data_prep.fields import Field, identifier, one_of
from data_prep.published import Figure, Published
from data_prep.requests import RequestRule
from data_prep.source import Source

# N rows of a part

NAME = "taobao"
PAGE = "https://tianchi.aliyun.com/dataset/649"
LICENCE = "Alibaba Tianchi terms: research, non-commercial; read them on the page of the data set"
COLUMNS = ("user", "item", "category", "behaviour", "seconds")
BEHAVIOURS = ("pv", "fav", "cart", "buy")
BEGIN_S, END_S = 1_511_539_200, 1_512_316_800
"""25 November 2017 and 4 December 2017, midnight, UTC+8."""


def source(raw_root: Path) -> Source:
    """The log, from `raw_root / "taobao" / "UserBehavior.csv.zip"`."""
    archive = RemoteFile(folder=raw_root / NAME, name="UserBehavior.csv.zip", url=None, page=PAGE, checksum=None)
    fix = f"remove {archive.path} and get it again from {PAGE}"
    return Source(
        name=NAME,
        description=f"Taobao UserBehavior (Alibaba), {PAGE}",
        licence=LICENCE,
        code=Path(__file__),
        inputs=(),
        remote=(archive,),
        parameters={"begin_s": BEGIN_S, "end_s": END_S, "label": "not pv"},
        rule=RequestRule(),
        published=Published(
            figures=(Figure(name="events", value=100_150_807), Figure(name="users", value=987_994)), fix=fix
        ),
        read=lambda: read_behaviour(RawFile(path=archive.path, members=(r"UserBehavior\.csv",)), fix),
    )


def read_behaviour(file: RawFile, fix: str) -> Iterator[EventLog]:
    """Rows in parts, in the file's order, without those outside the nine days.

    Raises:
        InputError: unreadable or a malformed row; names the file, line and field.
    """
    user, item, _, behaviour, seconds = COLUMNS
    fields = (
        identifier(user, is_private=True),
        identifier(item),
        one_of(behaviour, BEHAVIOURS),
        Field(
            name=seconds,
            type=pa.int64(),
            is_good=lambda values: np.abs(values) < 2**40,
            wanted="seconds since 1970",
        ),
    )
    for values in read_delimited(file, fields, Layout(columns=COLUMNS, fix=fix)):
        inside_N = (values[seconds] >= BEGIN_S) & (values[seconds] < END_S)
        action_N = pc.index_in(values[behaviour], pa.array(BEHAVIOURS)).to_numpy()[inside_N]
        yield EventLog(
            user=values[user][inside_N],
            item=values[item][inside_N],
            time=values[seconds][inside_N] * 1000,
            label=(action_N > 0).astype(np.float32),
            actions={"action": action_N.astype(np.int32)},
            action_vocabulary={"action": len(BEHAVIOURS)},
            left_out={"events_outside_the_nine_days": int(np.count_nonzero(~inside_N))},
        )
