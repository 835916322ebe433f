"""When a collective fails: which rank is to blame.

gloo says that *some* peer went away or was late, by address. So every rank that notices leaves its name in the store
that the ranks met through, waits a moment, and reads who left none: a rank that died or still hangs somewhere else.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from repro.errors import RunError

PATIENCE_SECONDS = 3.0
"""How long ranks that noticed a failure wait for the others to notice it too."""

POLL_SECONDS = 0.05


@contextmanager
def blame(stage: str, group: dist.ProcessGroup) -> Iterator[None]:
    """Run a collective's wait inside; if it fails, raise one line that names the rank and the stage.

    Raises:
        RunError: the collective failed.
    """
    try:
        yield
    except RuntimeError as error:
        world = dist.get_world_size(group)
        silent = _silent_ranks(dist.get_rank(group), world)
        reason = str(error).splitlines()[0]
        if silent:
            names = ", ".join(str(rank) for rank in silent)
            raise RunError(f"{stage}: rank {names} died or stalled and did not take part") from error
        raise RunError(f"{stage}: failed on every rank at once: {reason}") from error


def notice(rank: int) -> None:
    """Tell the other ranks that this one has noticed a failure, as soon as a thread of it has: the main thread may
    compute for longer than they wait."""
    with suppress(RuntimeError):  # the store went with rank 0
        _notices().set(str(rank), "noticed")


def _notices() -> dist.Store:
    return dist.PrefixStore("fault", _get_default_store())


def _silent_ranks(rank: int, world: int) -> list[int]:
    try:
        store = _notices()
        store.set(str(rank), "noticed")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            silent = [other for other in range(world) if not store.check([str(other)])]
            if not silent or time.monotonic() > deadline:
                return silent
            time.sleep(POLL_SECONDS)
    except RuntimeError:  # the store went with rank 0
        return [0]
