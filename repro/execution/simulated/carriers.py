"""What carries each collective of a simulated run.

Collectives that only move bytes go over the arm's transport; what adds (the dense AllReduce) stays on NCCL. Under
`host_ring_hidden` those that a step is blocked on stay there, too, since NCCL is faster by itself.
"""

from __future__ import annotations

from typing import Literal, assert_never

from repro.config import Arm
from repro.pipeline.ops import Op
from repro.timeline.ledger import BESIDE

Carrier = Literal["process_group", "host_ring"]
"""`process_group` is NCCL here."""

NAMES: dict[Carrier, str] = {"process_group": "simulated-nccl", "host_ring": "simulated-host_ring"}
"""As spans name them."""

_IDS = frozenset({Op.ID_SPLITS_ALL_TO_ALL, Op.ID_ALL_TO_ALL})
"""Travel two steps early in prioritized updates."""


def carrier_of(arm: Arm, op: Op) -> Carrier:
    """What carries collective `op` of `arm`."""
    if op is Op.DENSE_ALL_REDUCE:
        return "process_group"
    match arm.transport:
        case "process_group" | "host_ring":
            return arm.transport
        case "host_ring_hidden":
            hidden = op in BESIDE or (op in _IDS and arm.exchange in ("prioritized", "stale"))
            return "host_ring" if hidden else "process_group"
    assert_never(arm.transport)
