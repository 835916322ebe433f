"""Saves a training between two steps, and goes on from there with the numbers of one that was never cut short.

Written with torch.distributed.checkpoint; each rank writes what only it has. Saved are

  dense parameters, and what their optimizer remembers        the same on all ranks, written once
  this rank's rows, and what their fused optimizer remembers  one block a table (TorchRec) or of all (prioritized)
  the state of torch's random generators
  AutoTune's shares and averages (in meta.json)

A step's place in the data and in schedules is its number. What the pipelines hold is not saved but made again: batches,
ids and rows on their way to step k are functions of the data and of the rows after step k-1. For that, gradients still
on their way are applied first (`PrioritizedEmbeddings.drain`), which changes no number. `stale` alone reads rows before
their update, so it saves the rows it has read.

AutoTune forgets up to `LAG` + 2 measurements that were still on their way. It follows the machine's times, so its runs
are never the same twice.

Loading runs no pickled code: tensors are read by `torch.load(weights_only=True)`, and the index that
torch.distributed.checkpoint keeps, a pickle, by an unpickler that knows only the classes of such an index.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from repro.balance.autotune import TuneState
from repro.comm.faults import blame
from repro.errors import InputError, RunError
from repro.pipeline.checkpoint_folder import (
    Belonging,
    CheckpointMeta,
    begin,
    check_contents,
    describe,
    finish,
    read_meta,
)
from repro.pipeline.instrument import data_parallel
from repro.pipeline.train_step import Position, Training

DENSE, OPTIMIZER = "dense", "dense_optimizer"


def state_of(training: Training, rank: int) -> dict[str, torch.Tensor]:
    """All tensors of a training that has been drained, by name, sharing memory with it where it keeps them. Names of
    what only this rank has begin with `rank<r>/`."""
    dense = data_parallel(training.built.model).module.dense.state_dict()
    state = {f"{DENSE}/{name}": value.detach() for name, value in dense.items()}
    for index, of_parameter in training.built.optimizer.state_dict()["state"].items():
        state |= {f"{OPTIMIZER}/{index}/{name}": torch.as_tensor(value) for name, value in of_parameter.items()}
    own = {f"rows/{name}": value for name, value in training.built.row_state().items()}
    own["random/cpu"] = torch.get_rng_state()
    if torch.cuda.is_initialized():
        own["random/cuda"] = torch.cuda.get_rng_state()
    return state | {f"rank{rank}/{name}": value for name, value in own.items()}


def save(
    training: Training, run: Path, belongs_to: Belonging, *, run_ns: int, keep: int, group: dist.ProcessGroup
) -> Path:
    """Write the state after `training.steps_done` steps into the checkpoints of folder `run`. Every rank must call it.

    Args:
        run_ns: the run's clock, the same on all ranks.
        keep: older checkpoints than the newest `keep` are removed.
        group: gloo; no collective of another thread may use it.

    Returns:
        The checkpoint.

    Raises:
        RunError: a rank died, or the files cannot be written. Older checkpoints stay.
    """
    step, rank = training.steps_done, dist.get_rank(group)
    what = f"checkpoint after step {step}"
    training.built.drain()
    with blame(what, group):
        partial = _on_first(lambda: begin(run, step), what, group)
        try:
            writer = dcp.FileSystemWriter(partial)
            dcp.save(state_of(training, rank), storage_writer=writer, process_group=group)
        except CheckpointException as error:
            raise RunError(f"{what}: cannot be written ({_reason(error)}); older ones stay") from None
        meta = CheckpointMeta(
            step=step,
            belongs_to=belongs_to,
            run_ns=run_ns,
            autotune=training.tuned.to_dict() if training.tuned else None,
            files=_described(partial, group),
        )
        return _on_first(lambda: finish(partial, meta, keep), what, group)


def position(meta: CheckpointMeta) -> Position:
    """Where a training that `restore` is meant for must begin."""
    return Position(meta.step, TuneState.from_dict(meta.autotune) if meta.autotune else None)


def restore(training: Training, checkpoint: Path, group: dist.ProcessGroup) -> None:
    """Give a training, built at the checkpoint's `position` and not yet stepped, the checkpoint's state. Every rank
    must call it. Whether the checkpoint belongs to the run is for the caller to see (`checkpoint_folder.check`).

    Raises:
        InputError: a file is damaged, or holds another model.
        RunError: a rank died.
    """
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    with blame(f"loading {checkpoint}", group):
        reader = IndexReader(checkpoint)
        state: dict[str, torch.Tensor] = {}
        with _all_or_none(group):
            check_contents(checkpoint, sorted(read_meta(checkpoint).files)[rank::world])
            state = _to_fill(training, rank, reader, checkpoint)
        try:
            dcp.load(state, storage_reader=reader, process_group=group)
        except CheckpointException as error:
            raise InputError(f"{checkpoint}: cannot be loaded ({_reason(error)})") from None
    optimizer = training.built.optimizer
    of_parameters: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in _within(state, OPTIMIZER).items():
        index, _, key = name.partition("/")
        of_parameters.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({"state": of_parameters, "param_groups": optimizer.state_dict()["param_groups"]})
    training.built.resume_rows(_within(state, f"rank{rank}/rows"))
    torch.set_rng_state(state[f"rank{rank}/random/cpu"])
    if torch.cuda.is_initialized():
        torch.cuda.set_rng_state(state[f"rank{rank}/random/cuda"])


@contextmanager
def _all_or_none(group: dist.ProcessGroup) -> Iterator[None]:
    """What one rank refuses inside, all refuse, with its reason: none is left in a collective.

    Raises:
        InputError: a rank refused.
    """
    refused = None
    try:
        yield
    except InputError as error:
        refused = str(error)
    reasons: list[str | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(reasons, refused, group=group)
    for reason in reasons:
        if reason is not None:
            raise InputError(reason)


def _within(state: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(f"{prefix}/"): value for name, value in state.items() if name.startswith(f"{prefix}/")}


def _to_fill(training: Training, rank: int, reader: IndexReader, checkpoint: Path) -> dict[str, torch.Tensor]:
    """The training's own tensors, to be filled in place, and new ones for what it does not have before its first step.

    Raises:
        InputError: a tensor is missing in the checkpoint, or has another shape or type there.
    """
    saved = reader.read_metadata().state_dict_metadata
    mine = state_of(training, rank)
    state = {}
    for name, kept in saved.items():
        if name.startswith("rank") and not name.startswith(f"rank{rank}/"):
            continue
        if not isinstance(kept, TensorStorageMetadata):
            raise InputError(f"{checkpoint}: {name} is not a tensor")
        found = (tuple(kept.size), kept.properties.dtype)
        tensor = mine.pop(name, None)
        if tensor is None:
            tensor = torch.empty(found[0], dtype=found[1])
        elif (tuple(tensor.shape), tensor.dtype) != found:
            raise InputError(f"{checkpoint}: {name} is {found}, the model has {(tuple(tensor.shape), tensor.dtype)}")
        state[name] = tensor
    if mine:
        raise InputError(f"{checkpoint}: {', '.join(sorted(mine))} missing")
    return state


def _described(partial: Path, group: dist.ProcessGroup) -> dict[str, tuple[int, str]]:
    """Size and SHA-256 of all files that have been written; each rank reads some."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    names = sorted(path.name for path in partial.iterdir())
    parts: list[Any] = [None] * world
    dist.all_gather_object(parts, {name: describe(partial / name) for name in names[rank::world]}, group=group)
    return {name: found for part in parts for name, found in part.items()}


def _on_first(work: Callable[[], Path], what: str, group: dist.ProcessGroup) -> Path:
    """What rank 0 makes of `work`, on all ranks, when it has.

    Raises:
        RunError: it could not.
    """
    made: list[Any] = [None]
    if dist.get_rank(group) == 0:
        try:
            made = [work()]
        except OSError as error:
            made = [f"{error.strerror or error}: {error.filename}"]
    dist.broadcast_object_list(made, src=0, group=group)
    path = made[0]
    if not isinstance(path, Path):
        raise RunError(f"{what}: cannot be written ({path}); older ones stay")
    return path


def _reason(error: CheckpointException) -> str:
    rank, (first, _) = next(iter(error.failures.items()))
    return f"rank {rank}: {str(first).splitlines()[0] if str(first) else type(first).__name__}"


class IndexReader(dcp.FileSystemReader):
    """Reads the index of a checkpoint without running what is pickled in it."""

    def read_metadata(self, *arguments: Any, **named: Any) -> Metadata:
        """See `FileSystemReader`.

        Raises:
            InputError: it is none.
        """
        path = Path(self.path) / ".metadata"
        try:
            with path.open("rb") as file:
                metadata: Metadata = _IndexUnpickler(file).load()
            metadata.storage_meta.load_id = self.load_id  # type: ignore[union-attr]
        except (OSError, pickle.UnpicklingError, EOFError, AttributeError, ValueError) as error:
            raise InputError(f"{path}: not the index of a checkpoint ({error})") from None
        return metadata


_OF_AN_INDEX = {
    "torch": ("Size",),
    "torch.serialization": ("_get_layout",),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.distributed.checkpoint.metadata": (
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    ),
    "pathlib": ("Path", "PosixPath"),
}


class _IndexUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """A class of an index, or a dtype."""
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if name in _OF_AN_INDEX.get(module, ()) or is_dtype:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} does not belong there")
