"""Makes dense compute last as long as it would on another device: the emulated accelerator.

The real (small) model runs, so gradients are real and hooks fire; how long that takes does not count. Beside it, the
paced device (`repro.device.paced`) is given forward and backward with the durations of the other device:

  dense forward   begins when the embeddings are there. The host goes on at once, as it does before a GPU
  dense backward  begins when forward is over. Layer by layer, a gradient is held back until the device has it: those of
                  the k-th of n layers, counted from the head, until k/n of backward's time is over. So DDP's buckets
                  and the embeddings' gradients set out when they would

What hooks do when dense forward begins (the balancing exchange) does not delay it: a host runs ahead of a GPU, and is
through with that before the embeddings are there, but with gloo it must wait for them itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from repro.data.batch import JaggedBatch
from repro.device import Device
from repro.device.paced import PacedDevice, sleep_until
from repro.errors import RunError
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
    """Holds `model`'s dense part to `pace`. Make it after the hooks that record and before those that do host work."""

    def __init__(self, model: nn.Module, pace: Pace, device: Device) -> None:
        """
        Args:
            model: a `Ranker` as wrapped for training.

        Raises:
            RunError: the device is not one that can be paced.
        """
        if not isinstance(device, PacedDevice):
            raise RunError(f"compute is paced on a device that keeps time, not on {device.name}")
        self.lateness = Lateness()
        self._device = device
        self._pace = pace
        self._backward_ns = 0
        self._forward_ends_ns = 0
        self._backward_span_ns = (0, 0)
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
        self._backward_ns = round(1e9 * backward)
        _, self._forward_ends_ns = self._device.run(round(1e9 * forward))
        for tensor in (history_TD, candidate_CD):
            if tensor.requires_grad:
                tensor.register_hook(lambda _gradient: self._reach(1.0))

    def _end_forward(self, *_: object) -> None:
        self.lateness.note(max(0, time.perf_counter_ns() - self._forward_ends_ns))

    def _begin_backward(self, *_: object) -> None:
        self._ended = False
        self._backward_span_ns = self._device.run(self._backward_ns)

    def _reach(self, share: float) -> None:
        """No gradient passes here before `share` of backward's time is over."""
        if self._ended:
            return
        began_ns, end_ns = self._backward_span_ns
        late_ns = sleep_until(began_ns + round(share * (end_ns - began_ns)))
        if share == 1.0:
            self._ended = True
            self.lateness.note(late_ns)
