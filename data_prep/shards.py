"""Parquet shards of a fixed number of rows, whatever the parts are in which the rows come."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUP = 1 << 20

_ASCENDING = ("time", "uih_begin", "uih_end")
"""Columns that rise row by row for long stretches: their differences are small, their values are all different."""


class ShardWriter:
    """Writes `<stem>-00000.parquet`, `<stem>-00001.parquet`, ... in a thread of its own, one part behind."""

    def __init__(self, folder: Path, stem: str, schema: pa.Schema, shard_rows: int) -> None:
        """`shard_rows` rows a file, the last one fewer."""
        self._path: Callable[[int], Path] = lambda number: folder / f"{stem}-{number:05d}.parquet"
        self._schema = schema
        self._shard_rows = shard_rows
        self._room = 0
        self._shard: pq.ParquetWriter | None = None
        self._thread = ThreadPoolExecutor(1)
        self._pending: Future[None] | None = None
        self.paths: list[Path] = []

    def append(self, columns: list[pa.Array]) -> None:
        """Add rows; one array a field of the schema."""
        self._wait()  # at most one part waits in memory
        self._pending = self._thread.submit(self._write, pa.Table.from_arrays(columns, schema=self._schema))

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._wait()
        finally:
            self._thread.shutdown()
            if self._shard is not None:
                self._shard.close()

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.result()

    def _write(self, table: pa.Table) -> None:
        while table.num_rows:
            if not self._room:
                self._next_shard()
            assert self._shard is not None
            part = table.slice(0, self._room)
            self._shard.write_table(part, row_group_size=ROW_GROUP)
            self._room -= part.num_rows
            table = table.slice(part.num_rows)

    def _next_shard(self) -> None:
        if self._shard is not None:
            self._shard.close()
        names = self._schema.names
        self.paths.append(self._path(len(self.paths)))
        self._shard = pq.ParquetWriter(
            self.paths[-1],
            self._schema,
            compression="zstd",
            use_dictionary=[name for name in names if name not in _ASCENDING],
            column_encoding={name: "DELTA_BINARY_PACKED" for name in names if name in _ASCENDING},
        )
        self._room = self._shard_rows
