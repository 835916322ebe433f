"""Requests on their way from users, whose they are, to the order of time, in which they are written."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_prep.event_log import ranges
from data_prep.requests import Requests
from data_prep.row_file import Columns, GroupedRowFile
from data_prep.shards import ShardWriter
from repro.data.schema import Feature
from repro.errors import InputError

# N events and U users of a part, R requests, C candidates


@dataclass(kw_only=True)
class Totals:
    """What was written."""

    requests: int = 0
    labels: int = 0
    positives: int = 0
    lengths: np.ndarray = field(default_factory=lambda: np.zeros(64, dtype=np.int64))
    """Requests by the binary exponent of their history's length: 0 -> 0; [2**(e-1), 2**e) -> e."""

    def length_histogram(self) -> dict[str, int]:
        """As in the manifest."""
        counts = np.trim_zeros(self.lengths, "b").tolist()
        return {str(0 if e == 0 else 2 ** (e - 1)): count for e, count in enumerate(counts)}


class RequestFile:
    """Requests with their candidates on disk, grouped by time, so that a group is sorted in memory."""

    def __init__(self, folder: Path, features: tuple[Feature, ...], time_S: np.ndarray, groups: int) -> None:
        """Empty, in temporary files in `folder`.

        Args:
            folder: see above.
            features: of the data set.
            time_S: some of the times at which requests are, int64; they decide nothing but how even the groups are.
            groups: how many.
        """
        steps = np.linspace(0, max(time_S.size - 1, 0), groups + 1)[1:-1].astype(np.int64)
        self._splits = np.sort(time_S)[steps] if time_S.size else np.zeros(0, np.int64)
        self._names = tuple(feature.name for feature in features if feature.of_candidate)
        int32, int64 = np.dtype(np.int32), np.dtype(np.int64)
        columns: dict[str, np.dtype] = {
            "user": int64,
            "time": int64,
            "row": int64,
            "uih_begin": int64,
            "uih_end": int64,
            "count": int32,
        }
        self._requests = GroupedRowFile(folder, columns, groups)
        columns = {"label": np.dtype(np.uint8), **dict.fromkeys(self._names, int32)}
        self._candidates = GroupedRowFile(folder, columns, groups)

    def append(self, cut: Requests, hash_U: np.ndarray, row_N: np.ndarray, events: Columns, first_row: int) -> None:
        """Add the requests of some users.

        Args:
            cut: the requests.
            hash_U: the users' hashes, int64.
            row_N: source row of the users' events; requests of one time go by that of their first candidate.
            events: label and features of the users' events, (N,) each.
            first_row: prepared row of the first of those events.
        """
        group_R = np.searchsorted(self._splits, cut.time, side="right")
        self._requests.append_grouped(
            group_R,
            {
                "user": hash_U[cut.user],
                "time": cut.time,
                "row": row_N[cut.candidate_begin],
                "uih_begin": cut.uih_begin + first_row,
                "uih_end": cut.uih_end + first_row,
                "count": cut.candidate_count,
            },
        )
        candidate_C = ranges(cut.candidate_begin, cut.candidate_count)
        self._candidates.append_grouped(
            np.repeat(group_R, cut.candidate_count),
            {name: events[name][candidate_C] for name in ("label", *self._names)},
        )

    def write(self, shards: ShardWriter) -> Totals:
        """Write all in the order of (time, source row), and give the disk space back.

        Raises:
            InputError: there is none.
        """
        totals = Totals()
        for group in range(self._requests.groups):
            requests, candidates = self._requests.read_group(group), self._candidates.read_group(group)
            order_R = np.lexsort((requests["row"], requests["time"]))
            if not order_R.size:
                continue
            count_R = requests["count"].astype(np.int64)
            candidate_C = ranges((np.cumsum(count_R) - count_R)[order_R], count_R[order_R])
            offsets = pa.array(np.concatenate([[0], np.cumsum(count_R[order_R])]), pa.int32())
            label_C = candidates["label"][candidate_C]
            lists = [*(candidates[name][candidate_C] for name in self._names), label_C.astype(np.float32)]
            shards.append(
                [
                    *(pa.array(requests[name][order_R]) for name in ("user", "time", "uih_begin", "uih_end")),
                    *(pa.ListArray.from_arrays(offsets, pa.array(values_C)) for values_C in lists),
                ]
            )
            totals.requests += order_R.size
            totals.labels += candidate_C.size
            totals.positives += int(np.count_nonzero(label_C))
            exponent_R = np.frexp((requests["uih_end"] - requests["uih_begin"]).astype(np.float64))[1]
            totals.lengths += np.bincount(exponent_R, minlength=totals.lengths.size)
        self._requests.close()
        self._candidates.close()
        if not totals.requests:
            raise InputError("the log gives no request; a user needs an event and then a later one")
        return totals
