"""Exposed communication with and without the SM-free transport.

Source     technique 3; the paper shows it as kernel time under overlap (Fig. 10) and inside the headline
Command    repro run transports
Duration   about a minute on two CPU cores
Expected   on emulated CPU ranks no SMs are contended, so what shows is the transport alone: host_ring uses both ways of
           a link at once, which gloo's own AllToAll between two ranks does not (benchmarks/transports.py)

Emulated: two ranks on a shaped network, dense compute lasting as long as an H100's times `time_scale`. Nothing here
says what SMs given back are worth; that takes a GPU.
"""

from __future__ import annotations

from dataclasses import replace

from experiments.experiment import Experiment
from experiments.ladder import MEASURED
from experiments.presets import BALANCE, BALANCE_PRIORITY, FREESCALE, HSTU_5L_512D
from repro.config import NetworkConfig, PaceConfig

RATE_MBIT = 50.0
"""Slow enough that the embedding rows of a small batch take longer than the barrier between ranks."""
TIME_SCALE = 300.0

EMULATED = replace(
    MEASURED,
    experiment="transports",
    figure="Fig. 10",
    mode="emulated",
    steps=40,
    warmup_steps=5,
    network=NetworkConfig(rate_mbit=RATE_MBIT),
    pace=PaceConfig(model=HSTU_5L_512D, cluster="h100_paper", time_scale=TIME_SCALE),
)

EXPERIMENT = Experiment(
    name="transports",
    figure="Fig. 10",
    question="What does each transport leave exposed, all else equal?",
    expected="kernels about 10 % faster under overlap (B), which needs a GPU; here the exposed time of the exchange",
    duration="1 min",
    default=False,
    runs=tuple(replace(EMULATED, arm=arm) for arm in (BALANCE, BALANCE_PRIORITY, FREESCALE)),
)
