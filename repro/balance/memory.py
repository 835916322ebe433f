"""The memory guard: no rank receives more tokens than its cap, or the run ends with a clear error instead of out of
memory in the middle of a step."""

from __future__ import annotations

import numpy as np

from repro.balance.swaps import lower_maximum
from repro.errors import InputError

# S samples of a global batch, W ranks


def require_possible(tokens_S: np.ndarray, world: int, cap: int) -> None:
    """Reject a batch that no partition fits under the cap.

    Args:
        tokens_S: tokens (history and candidates) of each sample, integer (S,).
        cap: most tokens a rank may receive.

    Raises:
        InputError: one sample alone passes the cap, or all together pass world x cap.
    """
    if tokens_S.size == 0:
        return
    largest = int(tokens_S.argmax())
    if tokens_S[largest] > cap:
        raise InputError(
            f"token_cap: sample {largest} of the global batch has {tokens_S[largest]} tokens, the cap is {cap} a rank; "
            f"raise token_cap to at least {tokens_S[largest]} or lower max_uih"
        )
    total = int(tokens_S.sum())
    if total > world * cap:
        raise InputError(
            f"token_cap: the global batch has {total} tokens, {world} ranks with a cap of {cap} hold {world * cap}; "
            f"raise token_cap to at least {-(-total // world)}, lower batch or max_uih, or use more GPUs"
        )


def under_cap(
    rank_S: np.ndarray, tokens_S: np.ndarray, world: int, cap: int, *, equal_counts: bool, keep: bool = False
) -> np.ndarray:
    """`rank_S` where it fits, else the same partition after swaps (and, with free counts, moves) that make it fit.

    Args:
        rank_S: rank of each sample, int64 (S,).
        tokens_S: tokens of each sample, integer (S,).
        cap: most tokens a rank may receive.
        keep: only check; the partition must stay as it is.

    Raises:
        InputError: no fit was found; names the rank, its largest sample, the tokens and the fix.
    """
    tokens = tokens_S.astype(np.float64)
    if not keep and np.bincount(rank_S, weights=tokens, minlength=world).max() > cap:
        rank_S = lower_maximum(rank_S, tokens, world, cap, equal_counts=equal_counts)
    held_W = np.bincount(rank_S, weights=tokens, minlength=world)
    fullest = int(held_W.argmax())
    if held_W[fullest] > cap:
        mine = np.flatnonzero(rank_S == fullest)
        largest = int(mine[tokens_S[mine].argmax()])
        remedy = "balance (partition fbs, fbs_cost or vbs_cost)" if keep else "lower batch or max_uih"
        raise InputError(
            f"token_cap: rank {fullest} would receive {int(held_W[fullest])} tokens in {mine.size} samples "
            f"(sample {largest} of the global batch alone {tokens_S[largest]}), the cap is {cap}; "
            f"raise token_cap, {remedy}, or use more GPUs"
        )
    return rank_S
