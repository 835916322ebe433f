"""Makes dense compute last as long as it would on another device: the emulated accelerator.

The real (small) model runs, so gradients are real and hooks fire; then the rank sleeps until the time that the other
device would need for this batch is over. Forward and backward have a deadline each:

  dense forward   begins when the hooks before it are through; its output is held back until the deadline
  dense backward  begins when the model's forward hooks are through. Layer by layer, a gradient is held back until the
                  device would have it: those of the k-th of n layers, counted from the head, until k/n of the time
                  is over. So DDP's buckets and the embeddings' gradients set out when they would

A sleep leaves the cores to gloo and to the exchange's threads, as a GPU leaves them to NCCL.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from repro.data.batch import JaggedBatch
from repro.device.paced import sleep_until
from repro.pipeline.instrument import data_parallel

Pace = Callable[[JaggedBatch], tuple[float, float]]
"""Seconds that dense forward and dense backward of a batch last."""


@dataclass
class Lateness:
    """How often the real work took longer than the pace, which then did not hold."""

    deadlines: int = 0
    missed: int = 0
    worst_ns: int = 0

    def note(self, late_ns: int) -> None:
        """One more deadline, met (0) or missed."""
        self.deadlines += 1
        self.missed += late_ns > 0
        self.worst_ns = max(self.worst_ns, late_ns)


class PacedCompute:
    """Holds `model`'s dense part to `pace`. Make it after all other hooks: what they do is not compute."""

    def __init__(self, model: nn.Module, pace: Pace) -> None:
        """
        Args:
            model: a `Ranker` as wrapped for training.
        """
        self.lateness = Lateness()
        self._pace = pace
        self._began_ns = 0
        self._forward_ns = 0
        self._backward_ns = 0
        self._ended = False
        dense = data_parallel(model).module.dense
        dense.register_forward_pre_hook(self._begin_forward)
        dense.register_forward_hook(self._end_forward)
        model.register_forward_hook(self._begin_backward)
        layers = list(reversed(dense.encoder.layers))
        for done, layer in enumerate(layers, start=1):
            share = done / len(layers)
            # The first thing a layer computes, hence the last whose gradient it has.
            for parameter in layer.norm_in.parameters():
                parameter.register_hook(lambda _gradient, share=share: self._reach(share))

    def _begin_forward(self, _dense: nn.Module, inputs: tuple[Any, ...]) -> None:
        history_TD, candidate_CD, batch = inputs
        forward, backward = self._pace(batch)
        self._forward_ns, self._backward_ns = round(1e9 * forward), round(1e9 * backward)
        for tensor in (history_TD, candidate_CD):
            if tensor.requires_grad:
                tensor.register_hook(lambda _gradient: self._reach(1.0))
        self._began_ns = time.perf_counter_ns()

    def _end_forward(self, *_: object) -> None:
        self.lateness.note(sleep_until(self._began_ns + self._forward_ns))

    def _begin_backward(self, *_: object) -> None:
        self._ended = False
        self._began_ns = time.perf_counter_ns()

    def _reach(self, share: float) -> None:
        """No gradient passes here before `share` of backward's time is over."""
        if self._ended:
            return
        late_ns = sleep_until(self._began_ns + round(share * self._backward_ns))
        if share == 1.0:
            self._ended = True
            self.lateness.note(late_ns)
