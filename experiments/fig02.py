"""Sparsity and straggler percentage of the baseline against maximum UIH length.

Source     Fig. 2: batch sizes, GPU counts
Command    repro run fig02
Duration   20 s on one core
Expected   sparsity rises and flattens near 16K; straggler share above 20 % once max UIH exceeds 8K, weakly dependent on
           batch size and GPU count (confidence B)

No technique of the paper's takes part: this is what the synthetic workload was fitted to, so it shows how well the fit
holds, at the fitted size (64 x 128) and at others.
"""

from __future__ import annotations

from dataclasses import replace

from experiments.experiment import Experiment
from experiments.ladder import SIMULATED_PAPER
from experiments.presets import TORCHREC

CAPS = (1_000, 2_000, 4_000, 8_000, 12_000, 16_000, 21_000)
SIZES = ((64, 128), (64, 32), (256, 32))
"""(GPUs, batch)."""

EXPERIMENT = Experiment(
    name="fig02",
    figure="Fig. 2",
    question="How uneven is the workload before anything is done about it?",
    expected="sparsity flattens near 16K; stragglers above 20 % past 8K, at all sizes (B)",
    duration="20 s",
    runs=tuple(
        replace(
            SIMULATED_PAPER,
            experiment="fig02",
            figure="Fig. 2",
            gpus=gpus,
            batch=batch,
            max_uih=cap,
            arm=TORCHREC,
        )
        for gpus, batch in SIZES
        for cap in CAPS
    ),
)
