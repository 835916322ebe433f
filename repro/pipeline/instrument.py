"""Binds the step plan's ops to the moments when torch and TorchRec run them.

Hooks only: the model and the pipeline run the same code with and without them.

  embeddings module called        -> lookup         (TorchRec buckets the ids, exchanges them, looks rows up)
  dense module called             -> dense_forward
  model's forward returns         -> dense_backward
  gradient AllToAll ends          -> row_update     (see `repro.comm.traced`)
  last gradient bucket is issued  -> when backward has nothing left to compute, the rank waits for the AllReduce
  optimizer.step begins, ends     -> optimizer_step
"""

# No postponed annotations here: DDP checks the communication hook's annotations as objects.

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed.model_parallel import DistributedModelParallel

from repro.balance.exchange import Exchange
from repro.comm.traced import stamp_completion
from repro.errors import RunError
from repro.pipeline.ops import Op
from repro.timeline.recorder import OpenCollective, Recorder


def instrument(model: nn.Module, optimizer: torch.optim.Optimizer, recorder: Recorder) -> None:
    """Make `model`'s steps leave spans in `recorder`.

    Args:
        model: a `Ranker` as wrapped for training; its parts `embeddings` and `dense` are observed.

    Raises:
        RunError: the dense part is not wrapped in DDP.
    """
    wrapped = data_parallel(model)
    wrapped.module.embeddings.register_forward_pre_hook(lambda *_: recorder.switch(Op.LOOKUP))
    wrapped.module.dense.register_forward_pre_hook(lambda *_: recorder.switch(Op.DENSE_FORWARD))
    model.register_forward_hook(lambda *_: recorder.switch(Op.DENSE_BACKWARD))
    reducer = _DenseAllReduce(recorder, wrapped.process_group)
    wrapped.register_comm_hook(None, reducer.hook)

    def begin_optimizer(*_: object) -> None:
        reducer.complete()
        recorder.switch(Op.OPTIMIZER_STEP)

    def end_optimizer(*_: object) -> None:
        recorder.switch(None)

    optimizer.register_step_pre_hook(begin_optimizer)
    optimizer.register_step_post_hook(end_optimizer)


def advance_behind_compute(model: nn.Module, exchange: Exchange) -> None:
    """Let the next batch's exchange go on where the paper hooks it in: when dense forward and when backward begin.

    The fetch at the head of the step is its third hook; see `repro.pipeline.train_step`.
    """
    data_parallel(model).module.dense.register_forward_pre_hook(lambda *_: exchange.advance())
    model.register_forward_hook(lambda *_: exchange.advance())


def data_parallel(model: nn.Module) -> DistributedDataParallel:
    """The DDP wrapper around the model, put there by us or by TorchRec.

    Raises:
        RunError: there is none.
    """
    wrapped = model._dmp_wrapped_module if isinstance(model, DistributedModelParallel) else model
    if not isinstance(wrapped, DistributedDataParallel):
        raise RunError(f"the dense part is not data parallel: it is wrapped in {type(wrapped).__name__}")
    return wrapped


class _DenseAllReduce:
    """DDP communication hook: averages a gradient bucket, and records it."""

    def __init__(self, recorder: Recorder, group: dist.ProcessGroup) -> None:
        self._recorder = recorder
        self._group = group
        self._in_flight: list[OpenCollective] = []

    def hook(self, _state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        gradients = bucket.buffer().div_(dist.get_world_size(self._group))
        world = dist.get_world_size(self._group)
        collective = self._recorder.arrive(
            Op.DENSE_ALL_REDUCE,
            sent_bytes=2 * gradients.nbytes * (world - 1) // world,
            on_device=gradients.device.type != "cpu",
            overlap_allowed=True,
        )
        self._in_flight.append(collective)
        work = dist.all_reduce(gradients, group=self._group, async_op=True)
        stamp_completion(work, collective, gradients)
        if bucket.is_last():
            # Runs when autograd has no node left, just before DDP blocks on the buckets.
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._recorder.switch(None))

        def first(future: Any) -> torch.Tensor:
            reduced: torch.Tensor = future.value()[0]
            return reduced

        return work.get_future().then(first)

    def complete(self) -> None:
        """DDP has waited for all buckets."""
        for collective in self._in_flight:
            self._recorder.complete(collective)
        self._in_flight.clear()
