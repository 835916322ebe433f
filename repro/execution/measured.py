"""The measured executor, rank side: `torchrun -m repro.execution.measured JOB.json`.

The job names config, data set and output folder. Each rank trains, then writes its spans and facts; the launcher
merges them. Rank 0 prints one `step N` line a step, which the launcher turns into progress. A rank that fails leaves
its one-line reason in `error-rank<r>.txt`, since torchrun's own report hides it in a page of text.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import traceback
from dataclasses import asdict
from pathlib import Path

import torch

from repro.comm.groups import process_groups
from repro.config import RunConfig, from_dict
from repro.data.dataset import PreparedDataset
from repro.device import Device, local_device
from repro.errors import InputError, RunError
from repro.execution.base import RunResult, StepFacts
from repro.pipeline.train_step import RankStep, train
from repro.timeline.recorder import Recorder
from repro.timeline.schema import Timeline

SPANS_OF_RANK = "spans-rank{rank}.parquet"
FACTS_OF_RANK = "facts-rank{rank}.json"
ERROR_OF_RANK = "error-rank{rank}.txt"


def run_rank(config: RunConfig, dataset: PreparedDataset, out: Path, run_id: str) -> None:
    """Train as the rank that torchrun's variables describe and write its part of the result into `out`."""
    device = local_device(int(os.environ.get("LOCAL_RANK", "0")))
    with process_groups(device) as groups:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // groups.world))
        recorder = Recorder(device, rank=groups.rank, transport=device.backend)

        def report(step: int) -> None:
            if groups.rank == 0:
                print(f"step {step + 1}", flush=True)

        trained = train(config, dataset, device, groups, recorder, report)
        timeline = Timeline(recorder.spans(), run=run_id, mode=config.mode)
        timeline.write(out / SPANS_OF_RANK.format(rank=groups.rank))
        facts = {"steps": [asdict(step) for step in trained.steps], "hardware": hardware(device)}
        (out / FACTS_OF_RANK.format(rank=groups.rank)).write_text(json.dumps(facts), encoding="utf-8")


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
    spans, steps_of_rank, hosts = [], [], []
    for rank in range(config.gpus):
        spans_path, facts_path = out / SPANS_OF_RANK.format(rank=rank), out / FACTS_OF_RANK.format(rank=rank)
        if not spans_path.exists() or not facts_path.exists():
            raise RunError(f"rank {rank} left no result in {out}; see its log there")
        spans.extend(Timeline.read(spans_path).spans)
        facts = json.loads(facts_path.read_text(encoding="utf-8"))
        steps_of_rank.append([RankStep(**step) for step in facts["steps"]])
        hosts.append(facts["hardware"])
    merged = [_merge(step) for step in zip(*steps_of_rank, strict=True)]
    return RunResult(timeline=Timeline(spans, run=run_id, mode=config.mode), facts=merged, hardware=hosts[0])


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
    )


def main(arguments: list[str]) -> int:
    """Entry point of one rank. `arguments`: the job file."""
    job = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    out = Path(job["out"])
    rank = os.environ["RANK"]
    try:
        run_rank(from_dict(job["config"]), PreparedDataset.open(Path(job["dataset"])), out, job["run_id"])
    except (InputError, RunError, RuntimeError, OSError, ValueError) as error:
        traceback.print_exc()
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        (out / ERROR_OF_RANK.format(rank=rank)).write_text(first_line, encoding="utf-8")
        return 2 if isinstance(error, InputError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
