"""Where a row lives: all tables' rows in one numbering, dealt to ranks as TorchRec's row-wise sharding deals them.

Rank r owns rows r x B .. (r+1) x B - 1 of a table, B = ceil(rows / world); the last ranks may own fewer, or none. On
its owner, a row has a *local row*: its place in the owner's storage, where the tables' blocks stand one after another.

Example: tables of 5 and 4 rows on 2 ranks have blocks of 3 and 2. Row 4 of the first is local row 1 of rank 1; row 2 of
the second is local row 3 (after the first table's block) of rank 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch

# N lookups


@dataclass(frozen=True)
class RowSpace:
    """The rows of several tables of one width over `world` ranks."""

    rows: tuple[int, ...]
    """Rows of each table."""
    world: int

    @property
    def blocks(self) -> tuple[int, ...]:
        """Rows of each table a rank owns, at most."""
        return tuple(-(-rows // self.world) for rows in self.rows)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Local row at which each table's block begins."""
        return (0, *accumulate(self.blocks[:-1]))

    @property
    def local_rows(self) -> int:
        """Local rows of a rank, the same on all."""
        return sum(self.blocks)

    def keys(self, table: int, id_N: torch.Tensor) -> torch.Tensor:
        """Sort key of ids of a table, int64 (N,): owner x local_rows + local row, so that sorting is shard-major."""
        block = self.blocks[table]
        owner_N = torch.div(id_N, block, rounding_mode="floor")
        return owner_N * self.local_rows + self.offsets[table] + (id_N - owner_N * block)

    def owned(self, table: int, rank: int) -> tuple[int, int]:
        """First row of a table that `rank` owns, and how many."""
        first = min(rank * self.blocks[table], self.rows[table])
        return first, min(self.blocks[table], self.rows[table] - first)
