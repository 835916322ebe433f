"""HSTU encoder over jagged sequences: a user's history, then the candidates.

Each layer (Zhai et al., "Actions Speak Louder than Words", ICML 2024, https://arxiv.org/abs/2402.17152, section 3):
U, V, Q, K = split(silu(linear(norm(x)))); attention weights silu(Q K^T / sqrt(d)) / n, pointwise instead of softmax;
x + linear(norm(attention V) * U). The relative time and position bias is left out.

A history event sees earlier events and itself. A candidate sees the whole history and itself, never another
candidate, so a request's scores do not depend on which candidates it is asked about together.

Sequences are never padded: linear layers run on all tokens of all sequences at once, attention sequence by sequence,
so that compute follows the real lengths. The n x n weights are computed again in backward, as fused attention kernels
do, or the histories of one batch would not fit in memory together.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

# N tokens of all sequences, n tokens of one sequence (history then candidates), D model dim, H heads, E = D / H


class HstuLayer(nn.Module):
    """One layer."""

    def __init__(self, dim: int, heads: int, max_length: int) -> None:
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.scale = 1.0 / max_length
        """Attention is normalised by a constant, so that a token's output does not depend on the batch."""
        self.norm_in = nn.LayerNorm(dim)
        self.uvqk = nn.Linear(dim, 4 * dim)
        self.norm_out = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x_ND: torch.Tensor, histories: list[int], candidates: list[int]) -> torch.Tensor:
        """(N, D) to (N, D); `histories[b] + candidates[b]` tokens belong to sequence b."""
        u_ND, v_ND, q_ND, k_ND = F.silu(self.uvqk(self.norm_in(x_ND))).chunk(4, dim=1)
        sizes = [h + c for h, c in zip(histories, candidates, strict=True)]
        outputs = [
            checkpoint(
                self._attend, q, k, v, history, use_reentrant=False, preserve_rng_state=False, determinism_check="none"
            )
            for q, k, v, history in zip(q_ND.split(sizes), k_ND.split(sizes), v_ND.split(sizes), histories, strict=True)
        ]
        return x_ND + self.out(self.norm_out(torch.cat(outputs)) * u_ND)

    def _attend(self, q_nD: torch.Tensor, k_nD: torch.Tensor, v_nD: torch.Tensor, history: int) -> torch.Tensor:
        q_HnE, k_HnE, v_HnE = (t.view(-1, self.heads, self.head_dim).transpose(0, 1) for t in (q_nD, k_nD, v_nD))
        weights_Hnn = F.silu(q_HnE @ k_HnE.transpose(1, 2) * self.head_dim**-0.5) * self.scale
        mixed_HnE = (weights_Hnn * attention_mask(q_nD.shape[0], history, q_nD.device)) @ v_HnE
        return mixed_HnE.transpose(0, 1).reshape(-1, self.heads * self.head_dim)


def attention_mask(tokens: int, history: int, device: torch.device) -> torch.Tensor:
    """Who sees whom, bool (n, n): causal within the history; a candidate sees the history and itself."""
    position_n = torch.arange(tokens, device=device)
    causal_nn = position_n[:, None] >= position_n[None, :]
    of_history_n = position_n < history
    itself_nn = position_n[:, None] == position_n[None, :]
    return causal_nn & (of_history_n[None, :] | itself_nn)


class HstuEncoder(nn.Module):
    """A stack of HSTU layers over concatenated [history, candidates] sequences."""

    def __init__(self, layers: int, dim: int, heads: int, max_length: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(HstuLayer(dim, heads, max_length) for _ in range(layers))

    def forward(
        self,
        history_TD: torch.Tensor,
        candidate_CD: torch.Tensor,
        uih_lengths: torch.Tensor,
        candidate_counts: torch.Tensor,
    ) -> torch.Tensor:
        """Encode the candidates of every request.

        Args:
            history_TD: token embeddings of all histories, (T, D).
            candidate_CD: token embeddings of all candidates, (C, D).
            uih_lengths, candidate_counts: int64 (B,), on the host.

        Returns:
            Candidate representations, (C, D), in the order given.
        """
        histories: list[int] = uih_lengths.tolist()
        candidates: list[int] = candidate_counts.tolist()
        pairs = zip(history_TD.split(histories), candidate_CD.split(candidates), strict=True)
        x_ND = torch.cat([part for pair in pairs for part in pair])
        for layer in self.layers:
            x_ND = layer(x_ND, histories, candidates)
        sizes = [size for pair in zip(histories, candidates, strict=True) for size in pair]
        return torch.cat(x_ND.split(sizes)[1::2])
