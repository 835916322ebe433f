"""The closed list of operations a training step is made of.

Both executors emit spans for these and nothing else. Lane and category are stated here, once, and never
guessed from a kernel's name: a rank that spins inside a collective for a straggler must not look busy, and
host-staged traffic must not look like memory work.

The background lane is the second communication stream of prioritized updates: what runs there hides behind dense work.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

Lane = Literal["compute", "comm", "background", "copy", "host"]
Category = Literal["compute", "communication", "memory", "host", "wait"]


class Op(Enum):
    """One operation of a step: (name, lane, category)."""

    DATA_LOAD = ("data_load", "host", "host")
    LENGTHS_ALL_GATHER = ("lengths_all_gather", "comm", "communication")
    CANDIDATES_ALL_GATHER = ("candidates_all_gather", "comm", "communication")
    PARTITION = ("partition", "host", "host")
    SAMPLES_ALL_TO_ALL = ("samples_all_to_all", "comm", "communication")
    ID_SPLITS_ALL_TO_ALL = ("id_splits_all_to_all", "comm", "communication")
    ID_ALL_TO_ALL = ("id_all_to_all", "comm", "communication")
    LOOKUP = ("lookup", "compute", "compute")
    EMBEDDING_ALL_TO_ALL = ("embedding_all_to_all", "comm", "communication")
    DENSE_FORWARD = ("dense_forward", "compute", "compute")
    DENSE_BACKWARD = ("dense_backward", "compute", "compute")
    GRADIENT_ALL_TO_ALL = ("gradient_all_to_all", "comm", "communication")
    ROW_UPDATE = ("row_update", "compute", "compute")
    DENSE_ALL_REDUCE = ("dense_all_reduce", "comm", "communication")
    COLLISION_MASK_ALL_TO_ALL = ("collision_mask_all_to_all", "comm", "communication")
    EXCLUSIVE_LOOKUP = ("exclusive_lookup", "background", "memory")
    EXCLUSIVE_EMBEDDING_ALL_TO_ALL = ("exclusive_embedding_all_to_all", "background", "communication")
    COLLISION_GRADIENT_ALL_TO_ALL = ("collision_gradient_all_to_all", "comm", "communication")
    COLLISION_UPDATE = ("collision_update", "compute", "compute")
    COLLISION_LOOKUP = ("collision_lookup", "compute", "compute")
    COLLISION_EMBEDDING_ALL_TO_ALL = ("collision_embedding_all_to_all", "comm", "communication")
    EXCLUSIVE_GRADIENT_ALL_TO_ALL = ("exclusive_gradient_all_to_all", "background", "communication")
    EXCLUSIVE_UPDATE = ("exclusive_update", "background", "memory")
    OPTIMIZER_STEP = ("optimizer_step", "compute", "compute")

    def __init__(self, label: str, lane: Lane, category: Category) -> None:
        self.label = label
        self.lane = lane
        self.category = category


OP_BY_LABEL: dict[str, Op] = {op.label: op for op in Op}

BALANCE_COLLECTIVES: frozenset[Op] = frozenset({Op.LENGTHS_ALL_GATHER, Op.CANDIDATES_ALL_GATHER, Op.SAMPLES_ALL_TO_ALL})
"""Collectives of the balancing exchange."""

EMBEDDING_COLLECTIVES: frozenset[Op] = frozenset(
    {
        Op.ID_SPLITS_ALL_TO_ALL,
        Op.ID_ALL_TO_ALL,
        Op.EMBEDDING_ALL_TO_ALL,
        Op.GRADIENT_ALL_TO_ALL,
        Op.COLLISION_MASK_ALL_TO_ALL,
        Op.EXCLUSIVE_EMBEDDING_ALL_TO_ALL,
        Op.COLLISION_GRADIENT_ALL_TO_ALL,
        Op.COLLISION_EMBEDDING_ALL_TO_ALL,
        Op.EXCLUSIVE_GRADIENT_ALL_TO_ALL,
    }
)
"""Collectives of the embedding exchange: what `exposed_embedding_ms` counts (paper, Fig. 9)."""
