"""Columns on disk: rows are appended in parts and read back by range, or by group in the order in which they came.

The files have no name (they are unlinked as soon as they are open), so that nothing is left behind by a process that is
killed, and nobody else can open what has user ids in it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

# N rows of a part, G groups

Columns = dict[str, np.ndarray]


class RowFile:
    """Rows in the order in which they were appended."""

    def __init__(self, folder: Path, columns: dict[str, np.dtype]) -> None:
        """Empty, in temporary files in `folder`."""
        self._types = columns
        self._files = {name: tempfile.TemporaryFile(dir=folder) for name in columns}  # noqa: SIM115
        self.rows = 0
        """Rows appended so far."""

    def append(self, columns: Columns) -> None:
        """Add rows; one array of (N,) a column."""
        for name, dtype in self._types.items():
            column_N = np.ascontiguousarray(columns[name], dtype=dtype)
            self._files[name].seek(self.rows * dtype.itemsize)
            self._files[name].write(column_N.data)
        self.rows += column_N.size

    def read(self, begin: int, size: int) -> Columns:
        """Rows `begin .. begin + size`."""
        return {name: self._read(name, [(begin, size)]) for name in self._types}

    def close(self) -> None:
        """Give the disk space back."""
        for file in self._files.values():
            file.close()

    def _read(self, name: str, parts: list[tuple[int, int]]) -> np.ndarray:
        dtype = self._types[name]
        result = np.empty(sum(size for _, size in parts), dtype)
        view, at = result.view(np.uint8), 0
        for begin, size in parts:
            end = at + size * dtype.itemsize
            self._files[name].seek(begin * dtype.itemsize)
            while at < end:
                got = self._files[name].readinto(view[at:end].data)
                if not got:
                    raise OSError(f"a temporary file of {name} is shorter than what was written to it")
                at += got
        return result


class GroupedRowFile(RowFile):
    """Rows that belong to groups 0..G-1, read back group by group: the two halves of a sort that fits no memory."""

    def __init__(self, folder: Path, columns: dict[str, np.dtype], groups: int) -> None:
        """Empty, in temporary files in `folder`."""
        super().__init__(folder, columns)
        self.groups = groups
        self._parts: list[list[tuple[int, int]]] = [[] for _ in range(groups)]

    def append_grouped(self, group_N: np.ndarray, columns: Columns) -> None:
        """Add rows; `group_N` has the group of each."""
        if (group_N[1:] < group_N[:-1]).any():
            # Stable, so that a group's rows keep their order; 16 bits, since NumPy has a radix sort for those.
            narrow = np.uint16 if self.groups <= np.iinfo(np.uint16).max else np.int64
            order_N = np.argsort(group_N.astype(narrow), kind="stable")
            columns = {name: columns[name][order_N] for name in self._types}
        size_G = np.bincount(group_N, minlength=self.groups)
        begin_G = self.rows + np.cumsum(size_G) - size_G
        for group in np.flatnonzero(size_G).tolist():
            self._parts[group].append((int(begin_G[group]), int(size_G[group])))
        self.append(columns)

    def read_group(self, group: int) -> Columns:
        """Rows of a group in the order in which they were appended."""
        return {name: self._read(name, self._parts[group]) for name in self._types}
