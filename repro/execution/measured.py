"""The measured executor, rank side: `torchrun -m repro.execution.measured JOB.json`.

A job is one run, or several that differ only in their arm. Those are trained side by side: a few steps of each in turn,
by the same processes, so that whatever else the machine does meets all arms alike and their ratio means something. A
run's clock stands still while another one trains.

Each rank writes its spans and facts of each run; the launcher merges them. Rank 0 prints one `step` line a step, which
the launcher turns into progress. A rank that fails leaves its one-line reason in `error-rank<r>.txt`, since torchrun's
own report hides it in a page of text.

An emulated run is this executor with paces (`repro.execution.emulated`).
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from repro.comm.groups import Groups, process_groups
from repro.comm.transport import as_transport
from repro.config import RunConfig, from_dict
from repro.data.dataset import PreparedDataset
from repro.device import Device, local_device
from repro.embedding.id_exchange import RowCounts
from repro.errors import InputError, RunError
from repro.execution.base import RunResult, StepFacts
from repro.pipeline.pace import Lateness, Pace
from repro.pipeline.train_step import RankStep, Training
from repro.timeline.recorder import Recorder
from repro.timeline.schema import Timeline

SPANS_OF_RANK = "spans-rank{rank}.parquet"
FACTS_OF_RANK = "facts-rank{rank}.json"
ERROR_OF_RANK = "error-rank{rank}.txt"

BLOCK_STEPS = 10
"""Steps of one arm before the next has its turn."""


PaceOf = Callable[[RunConfig], Pace | None]


def run_rank(
    configs: list[RunConfig],
    dataset: PreparedDataset,
    outs: list[Path],
    run_ids: list[str],
    device: Device,
    pace_of: PaceOf,
) -> None:
    """Train as the rank that torchrun's variables describe and write its part of each result into its `out`.

    Args:
        pace_of: how long a run's dense compute is made to last; None as long as it does.
    """
    with process_groups(device) as groups:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // groups.world))
        trainings = []
        for config in configs:
            recorder = Recorder(device, rank=groups.rank, transport=device.backend)
            trainings.append(Training(config, dataset, device, groups, recorder, pace=pace_of(config)))

        def report() -> None:
            if groups.rank == 0:
                print("step", flush=True)

        train_side_by_side(trainings, configs[0].steps, device, groups, report)
        for config, training, out, run_id in zip(configs, trainings, outs, run_ids, strict=True):
            timeline = Timeline(training.recorder.spans(), run=run_id, mode=config.mode)
            timeline.write(out / SPANS_OF_RANK.format(rank=groups.rank))
            steps = [asdict(step) for step in training.outcome().steps]
            paced = asdict(training.paced.lateness) if training.paced else None
            facts = json.dumps({"steps": steps, "hardware": hardware(device), "paced": paced})
            (out / FACTS_OF_RANK.format(rank=groups.rank)).write_text(facts, encoding="utf-8")


def train_side_by_side(
    trainings: list[Training], steps: int, device: Device, groups: Groups, on_step: Callable[[], None]
) -> None:
    """Train all of them for `steps`, a block of steps of each in turn, in an order that changes from turn to turn."""
    stopped_ns: dict[int, int] = {}
    for turn, first in enumerate(range(0, steps, BLOCK_STEPS)):
        order = list(range(len(trainings)))
        for index in order if turn % 2 == 0 else reversed(order):
            began_ns = _agree(device, groups, dist.ReduceOp.MIN)
            if index in stopped_ns:
                trainings[index].recorder.pause(stopped_ns[index], began_ns)
            trainings[index].run(min(BLOCK_STEPS, steps - first), on_step)
            stopped_ns[index] = _agree(device, groups, dist.ReduceOp.MAX)


def _agree(device: Device, groups: Groups, pick: dist.ReduceOp.RedOpType) -> int:
    """The earliest or latest of the ranks' clocks when all have finished what they were given."""
    device.synchronize()
    on_hosts = as_transport(groups.balance).group
    dist.barrier(group=on_hosts)
    now = torch.tensor([time.perf_counter_ns()])
    dist.all_reduce(now, op=pick, group=on_hosts)
    return int(now)


def hardware(device: Device) -> dict[str, str]:
    """What this rank ran on."""
    return {
        "device": device.name,
        "backend": device.backend,
        "cpu": platform.processor() or platform.machine(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()}",
    }


def gather(config: RunConfig, out: Path, run_id: str) -> RunResult:
    """Merge what all ranks wrote into one result. The ranks share a host, hence a clock: no offsets are applied.

    Raises:
        RunError: a rank's part is missing.
    """
    spans, steps_of_rank, hosts, paced = [], [], [], []
    for rank in range(config.gpus):
        spans_path, facts_path = out / SPANS_OF_RANK.format(rank=rank), out / FACTS_OF_RANK.format(rank=rank)
        if not spans_path.exists() or not facts_path.exists():
            raise RunError(f"rank {rank} left no result in {out}; see its log there")
        spans.extend(Timeline.read(spans_path).spans)
        facts = json.loads(facts_path.read_text(encoding="utf-8"))
        steps_of_rank.append([_rank_step(step) for step in facts["steps"]])
        hosts.append(facts["hardware"])
        if facts["paced"]:
            paced.append(Lateness(**facts["paced"]))
    merged = [_merge(step) for step in zip(*steps_of_rank, strict=True)]
    timeline = Timeline(spans, run=run_id, mode=config.mode)
    notes = (_kept(paced),) if paced else ()
    return RunResult(timeline=timeline, facts=merged, hardware=hosts[0], notes=notes)


def _kept(ranks: list[Lateness]) -> str:
    """Whether the pace held."""
    deadlines, missed = sum(rank.deadlines for rank in ranks), sum(rank.missed for rank in ranks)
    if not missed:
        return f"pace: all {deadlines} deadlines of dense compute were met"
    worst_ms = max(rank.worst_ns for rank in ranks) / 1e6
    return (
        f"pace: the small real model took longer than the emulated device in {missed} of {deadlines} deadlines, by up "
        f"to {worst_ms:.1f} ms; those computed late"
    )


def _merge(ranks: tuple[RankStep, ...]) -> StepFacts:
    """Facts of the global batch from those of the ranks."""
    requests = sum(rank.requests for rank in ranks)
    tokens = sum(rank.uih_tokens for rank in ranks)
    longest = max(rank.longest_uih for rank in ranks)
    return StepFacts(
        step=ranks[0].step,
        requests=requests,
        labels=sum(rank.labels for rank in ranks),
        uih_tokens=tokens,
        sparsity_pct=100.0 * (1.0 - tokens / (requests * longest)) if longest else 0.0,
        loss_sum=sum(rank.loss_sum for rank in ranks),
        positives=sum(rank.positives for rank in ranks),
        **_row_facts(ranks),
    )


def _rank_step(raw: dict[str, Any]) -> RankStep:
    rows = raw["rows"]
    return RankStep(**{**raw, "rows": None if rows is None else RowCounts(**rows)})


def _row_facts(ranks: tuple[RankStep, ...]) -> dict[str, Any]:
    """Rows of all ranks; nothing where they were not counted."""
    rows = [rank.rows for rank in ranks if rank.rows is not None]
    if not rows:
        return {}
    exchanged = sum(count.exchanged for count in rows)
    facts: dict[str, Any] = {"lookups": sum(count.lookups for count in rows), "exchanged_rows": exchanged}
    if ranks[0].step > 0:
        facts["collision_pct"] = 100 * sum(count.colliding for count in rows) / sum(count.distinct for count in rows)
        facts["exchange_collision_pct"] = 100 * sum(count.late for count in rows) / exchanged
    return facts


def unpaced(_config: RunConfig) -> None:
    """Compute lasts as long as it does."""


def main(arguments: list[str], device_of: Callable[[int], Device] = local_device, pace_of: PaceOf = unpaced) -> int:
    """Entry point of one rank.

    Args:
        arguments: the job file.
        device_of: local rank -> what it computes on.
        pace_of: as in `run_rank`.
    """
    job = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    logs = Path(job["logs"])
    rank = os.environ["RANK"]
    try:
        configs = [from_dict(config) for config in job["configs"]]
        outs = [Path(out) for out in job["outs"]]
        device = device_of(int(os.environ.get("LOCAL_RANK", "0")))
        run_rank(configs, PreparedDataset.open(Path(job["dataset"])), outs, job["run_ids"], device, pace_of)
    except (InputError, RunError, RuntimeError, OSError, ValueError) as error:
        traceback.print_exc()
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        (logs / ERROR_OF_RANK.format(rank=rank)).write_text(first_line, encoding="utf-8")
        return 2 if isinstance(error, InputError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
