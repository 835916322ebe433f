"""Without this a change of cost model, engine or step plan could move every simulated number unannounced. Not covered:
whether the numbers are right (the unit tests of each part say that).

After a change that is meant to move them: `python -m tests.golden.test_simulated_timeline`, then read the diff.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from repro.config import Arm, ModelConfig, RunConfig
from repro.execution.simulated.executor import simulate

FOLDER = Path(__file__).parent
CONFIG = RunConfig(
    experiment="golden", figure="", mode="simulated", arm=Arm(name="balance", partition="fbs"), dataset="by hand",
    cluster="h100_paper", gpus=2, batch=2, max_uih=20000, steps=2, warmup_steps=0,
    model=ModelConfig(name="small", layers=2, dim=512, heads=4),
)  # fmt: skip
PRIORITY = Arm(name="balance+priority", partition="fbs", exchange="prioritized")
FREESCALE = replace(PRIORITY, name="freescale", transport="host_ring")
GOLDEN = {
    "simulated_timeline.txt": CONFIG,
    "simulated_timeline_prioritized.txt": replace(CONFIG, arm=PRIORITY, steps=3),
    "simulated_timeline_smfree.txt": replace(CONFIG, arm=FREESCALE, steps=3),
}
LENGTHS = np.array([9000, 1000, 8000, 2000, 30000, 10, 300, 15000, 4000, 12000, 700, 50])
"""UIH lengths of three global batches of four requests; the fifth is capped."""
ITEMS = 100_000


class ByHand:
    """Stands in for a prepared data set with one item and one action feature and two candidates a request. Histories
    overlap: each begins 5,000 items after the one before."""

    manifest = SimpleNamespace(
        fingerprint="by hand",
        features=(
            SimpleNamespace(name="item", vocabulary=ITEMS, of_candidate=True),
            SimpleNamespace(name="action", vocabulary=4, of_candidate=False),
        ),
    )
    uih_end = np.cumsum(LENGTHS)
    candidate_offsets = np.arange(0, 2 * LENGTHS.size + 1, 2)

    def __len__(self) -> int:
        return LENGTHS.size

    def event_feature(self, name: str) -> np.ndarray:
        starts = 5000 * np.arange(LENGTHS.size)
        place = np.concatenate([start + np.arange(length) for start, length in zip(starts, LENGTHS, strict=True)])
        return (place % (ITEMS if name == "item" else 4)).astype(np.int32)

    def candidate_feature(self, name: str) -> np.ndarray:
        return np.arange(2 * LENGTHS.size, dtype=np.int32)

    def global_batches(self, global_batch: int) -> int:
        return LENGTHS.size // global_batch

    def global_rows(self, t: int, global_batch: int) -> np.ndarray:
        return np.arange(t * global_batch, (t + 1) * global_batch)

    def uih_lengths(self, rows: np.ndarray, max_uih: int) -> np.ndarray:
        return np.minimum(LENGTHS[rows], max_uih)

    def candidate_counts(self, rows: np.ndarray) -> np.ndarray:
        return np.full(rows.size, 2)


def render(config: RunConfig) -> str:
    """The timeline as a table, in order of step, then start, then rank."""
    lines = [f"{'step':>4} {'rank':>4} {'lane':<11}{'op':<31}{'start_us':>12}{'duration_us':>13}{'bytes':>12}"]
    spans = simulate(config, ByHand(), run_id="golden").timeline.spans
    for s in sorted(spans, key=lambda s: (s.step, s.start_ns, s.rank, s.duration_ns)):
        times = f"{s.start_ns / 1000:>12.3f}{s.duration_ns / 1000:>13.3f}"
        lines.append(f"{s.step:>4} {s.rank:>4} {s.lane:<11}{s.op:<31}{times}{s.bytes:>12}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", GOLDEN)
def test_simulated_timeline_is_unchanged(name):
    assert render(GOLDEN[name]) == (FOLDER / name).read_text(encoding="utf-8")


if __name__ == "__main__":
    for name, config in GOLDEN.items():
        (FOLDER / name).write_text(render(config), encoding="utf-8")
