"""One run of a job on one rank: its turns, its checkpoints, what it leaves on disk.

At a checkpoint the run's clock stops, this rank's part of what was recorded is written, then the state. The clock goes
on when all ranks are through, also in a later attempt: that one's first step follows the checkpoint at once.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from repro.comm.groups import Groups
from repro.comm.transport import as_transport
from repro.data.batch import collate
from repro.data.dataset import PreparedDataset
from repro.device import Device
from repro.execution.assignment import Assignment
from repro.execution.parts import RankPart, folder_of_part, write_part
from repro.pipeline.checkpoint import position, restore, save
from repro.pipeline.checkpoint_folder import read_meta
from repro.pipeline.pace import Lateness, Pace
from repro.pipeline.rehearsal import rehearse
from repro.pipeline.train_step import START, Training, blocks_of_rank
from repro.timeline.recorder import Recorder


class RunUnderWay:
    """One run of a job on this rank."""

    def __init__(self, training: Training, device: Device, groups: Groups, run: Assignment | None = None) -> None:
        """`run`: where to save it and what it recorded; None: nowhere."""
        self.training = training
        self._device = device
        self._groups = groups
        self._run = run
        self._began_at = training.steps_done
        self._stopped_ns: int | None = None
        self._run_ns = 0
        self._checkpoint_seconds = 0.0

    @classmethod
    def begin(
        cls, run: Assignment, dataset: PreparedDataset, device: Device, groups: Groups, pace: Pace | None
    ) -> RunUnderWay:
        """Build it, to begin at the start or where its checkpoint was made."""
        recorder = Recorder(device, rank=groups.rank, transport=device.backend)
        begin_at = position(read_meta(run.checkpoint)) if run.checkpoint else START
        training = Training(run.config, dataset, device, groups, recorder, pace=pace, position=begin_at)
        if run.checkpoint:
            block, labels = next(blocks_of_rank(run.config, dataset, groups))
            batch = collate(block, labels).to(device.torch_device)
            rehearse(training.built.model, batch, run.config.model.dim)
            if training.paced:
                training.paced.lateness = Lateness()
        return cls(training, device, groups, run)

    def restore(self) -> None:
        """Take the state of its checkpoint, if it goes on from one."""
        if self._run is not None and self._run.checkpoint is not None:
            restore(self.training, self._run.checkpoint, self._on_hosts)
            self._run_ns = read_meta(self._run.checkpoint).run_ns

    def train_until(self, step: int, on_step: Callable[[], None]) -> None:
        """Train until `step` steps are done, saving where that is due; its clock stands still before and after."""
        if self.training.steps_done >= step:
            return
        began_ns = self._agree(dist.ReduceOp.MIN)
        if self._stopped_ns is not None:
            self.training.recorder.pause(self._stopped_ns, began_ns)
        elif self._began_at:
            self.training.recorder.go_on(began_ns, self._run_ns)
        every = self.training.config.checkpoint.every if self._run else 0
        while (done := self.training.steps_done) < step:
            stop = min(step, (done // every + 1) * every) if every else step
            self.training.run(stop - done, on_step)
            if every and stop % every == 0 and stop < self.training.config.steps:
                self._save()
        self._stopped_ns = self._agree(dist.ReduceOp.MAX)

    def finish(self) -> None:
        """Write what is not written yet, and end the run."""
        spans = self.training.recorder.spans()
        steps = self.training.outcome().steps
        if self._run is not None:
            self._write(RankPart(spans=spans, steps=steps, **self._facts()), self._run.out)

    def _save(self) -> None:
        assert self._run is not None
        stopped_ns = self._agree(dist.ReduceOp.MAX)
        training = self.training
        training.built.drain()
        part = RankPart(spans=training.recorder.take(), steps=training.take_steps(), **self._facts())
        self._write(part, folder_of_part(self._run.out, training.steps_done))
        save(
            training,
            self._run.out,
            self._run.belongs_to,
            run_ns=training.recorder.on_run_clock(stopped_ns),
            keep=training.config.checkpoint.keep,
            group=self._on_hosts,
        )
        goes_on_ns = self._agree(dist.ReduceOp.MIN)
        training.recorder.pause(stopped_ns, goes_on_ns)
        self._checkpoint_seconds = (goes_on_ns - stopped_ns) / 1e9

    def _facts(self) -> dict[str, Any]:
        paced = self.training.paced
        facts = {
            "hardware": hardware(self._device),
            "paced": paced.lateness if paced else None,
            "attempt_from": self._began_at,
            "checkpoint_seconds": self._checkpoint_seconds,
        }
        if paced:
            paced.lateness = Lateness()
        return facts

    def _write(self, part: RankPart, folder: Path) -> None:
        assert self._run is not None
        write_part(part, folder, rank=self._groups.rank, run_id=self._run.run_id, mode=self._run.config.mode)

    def _agree(self, pick: dist.ReduceOp.RedOpType) -> int:
        """The earliest or latest of the ranks' clocks when all have finished what they were given."""
        self._device.synchronize()
        dist.barrier(group=self._on_hosts)
        now = torch.tensor([time.perf_counter_ns()])
        dist.all_reduce(now, op=pick, group=self._on_hosts)
        return int(now)

    @property
    def _on_hosts(self) -> dist.ProcessGroup:
        return as_transport(self._groups.balance).group


def hardware(device: Device) -> dict[str, str]:
    """What this rank ran on."""
    return {
        "device": device.name,
        "backend": device.backend,
        "cpu": platform.processor() or platform.machine(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()}",
    }
