"""What one sample costs to train on the device at hand, by its length: where attention overtakes linear work.

Command    python -m benchmarks.sample_cost
Output     seconds of dense forward and backward of `presets.TINY` for one sample, by UIH length, the fit
               seconds = per sample + linear x tokens + quadratic x tokens^2,
           and linear / quadratic, which is `arm.balance.attention_length` (below 0: no linear work shows; take 1)

Balancers that go by modelled cost need that length. The default is an H100's with a wide model; a narrow model on a CPU
has next to no linear work, so attention overtakes it far earlier. One thread, since ranks share the cores.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from experiments.presets import TINY
from repro.calibration.fit import relative_fit
from repro.config import ModelConfig
from repro.model.encoder import HstuEncoder

LENGTHS = (64, 128, 256, 512, 768, 1024, 1536, 2048)
CANDIDATES = 1
REPEATS = 9

# N lengths


@dataclass(frozen=True)
class Fit:
    """seconds = per_sample + linear x tokens + quadratic x tokens^2, least squares of relative errors."""

    per_sample: float
    linear: float
    quadratic: float
    residual: float
    """Root mean square of the relative errors."""

    @property
    def attention_length(self) -> float:
        """Tokens at which attention costs as much as linear work."""
        return self.linear / self.quadratic


def fit(lengths_N: np.ndarray, seconds_N: np.ndarray) -> Fit:
    """Fit the three coefficients."""
    unit = float(lengths_N.max())
    found_3, residual = relative_fit((lengths_N / unit)[:, None] ** np.arange(3), seconds_N)
    per_sample, linear, quadratic = (float(value) for value in found_3 / unit ** np.arange(3))
    return Fit(per_sample, linear, quadratic, residual)


def median_seconds(model: ModelConfig, length: int, repeats: int = REPEATS) -> float:
    """Median time of forward and backward of one sample with `length` events and one candidate."""
    encoder = HstuEncoder(model.layers, model.dim, model.heads, max(LENGTHS) + CANDIDATES)
    history_TD = torch.randn(length, model.dim, requires_grad=True)
    candidate_CD = torch.randn(CANDIDATES, model.dim, requires_grad=True)
    taken = []
    for _ in range(repeats + 2):
        began = time.perf_counter()
        encoded = encoder(history_TD, candidate_CD, torch.tensor([length]), torch.tensor([CANDIDATES]))
        encoded.sum().backward()
        taken.append(time.perf_counter() - began)
    return float(np.median(taken[2:]))


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    seconds_N = np.array([median_seconds(TINY, length) for length in LENGTHS])
    found = fit(np.array(LENGTHS, dtype=np.float64), seconds_N)
    for length, seconds in zip(LENGTHS, seconds_N, strict=True):
        print(f"{length:>6} events {1e3 * seconds:9.2f} ms {1e9 * seconds / length**2:9.2f} ns a squared event")
    print(
        f"{1e3 * found.per_sample:.2f} ms a sample + {1e6 * found.linear:.3f} us a token + "
        f"{1e9 * found.quadratic:.3f} ns a squared token, relative residual {found.residual:.1%}"
    )
    print(f"attention_length {found.attention_length:.0f} tokens")


if __name__ == "__main__":
    main()
