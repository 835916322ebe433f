"""Which runs may be compared: equal in everything but the arm and the seed.

A number of one arm is only ever set against the baseline of the *same* setting (mode, data set, cluster, world size,
cap, batch, model). Nothing here joins modes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from repro.tracking.record import RunRecord

BASELINE = "torchrec"
ARM_ORDER = ("torchrec", "sdd", "balance", "balance+priority", "freescale", "freescale_hidden", "stale")
MODE_ORDER = ("paper", "simulated", "emulated", "measured")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Everything that decides a run's numbers but the arm and the seed."""

    mode: str
    dataset: str
    cluster: str
    gpus: int
    max_uih: int
    batch: int
    model: str

    @property
    def world(self) -> str:
        """World size in words."""
        return f"{self.gpus} CPU ranks" if self.cluster.endswith("_cpu") else f"{self.gpus} GPUs"

    def text(self) -> str:
        """One line for captions and answers."""
        return f"{self.mode}, {self.world}, {self.dataset}, UIH {events(self.max_uih)}"


def events(count: int) -> str:
    """A number of events as people write it: 512, 21K."""
    return f"{count / 1000:g}K" if count >= 1000 else str(count)


@dataclass(frozen=True)
class Spread:
    """Mean over seeds, and the least and greatest value."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Spread of at least one value."""
        return cls(mean=sum(values) / len(values), low=min(values), high=max(values))


Group = dict[str, list[RunRecord]]
"""Arm -> its runs (one a seed), in ladder order."""


def setting_of(record: RunRecord) -> Setting:
    """The setting of a run."""
    config = record.config
    return Setting(
        mode=config.mode,
        dataset=config.dataset,
        cluster=config.cluster,
        gpus=config.gpus,
        max_uih=config.max_uih,
        batch=config.batch,
        model=config.model.name,
    )


def by_setting(records: Iterable[RunRecord]) -> dict[Setting, Group]:
    """Runs by setting, then by arm; settings in the order figures show them."""
    found: dict[Setting, Group] = {}
    for record in records:
        found.setdefault(setting_of(record), {}).setdefault(record.config.arm.name, []).append(record)
    return {
        setting: {arm: found[setting][arm] for arm in sorted(found[setting], key=arm_key)}
        for setting in sorted(found, key=_setting_key)
    }


def arm_key(arm: str) -> tuple[int, str]:
    """Sorting key: ladder order, peers after it."""
    return (ARM_ORDER.index(arm) if arm in ARM_ORDER else len(ARM_ORDER), arm)


def _setting_key(setting: Setting) -> tuple[object, ...]:
    mode = MODE_ORDER.index(setting.mode)
    return (mode, setting.dataset, setting.gpus, setting.max_uih, setting.batch, setting.cluster, setting.model)


def spread(runs: Sequence[RunRecord], metric: str) -> Spread:
    """A metric over the seeds of one arm.

    Raises:
        InputError: a run lacks the metric.
    """
    return Spread.of([run.metric(metric) for run in runs])


def ratio_to_baseline(group: Group, arm: str, metric: str) -> Spread | None:
    """A metric of `arm` over the baseline's, seed by seed where both ran it, else over the baseline's mean.

    None when the setting has no baseline run, or its metric is 0 (no ratio exists).

    Raises:
        InputError: a run lacks the metric.
    """
    baseline = group.get(BASELINE)
    if not baseline:
        return None
    by_seed = {run.config.seed: run.metric(metric) for run in baseline}
    mean = spread(baseline, metric).mean
    if mean == 0 or 0 in by_seed.values():
        return None
    return Spread.of([run.metric(metric) / by_seed.get(run.config.seed, mean) for run in group[arm]])


def latest_runs(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Of runs of one experiment that differ in nothing a figure shows, keep the last started."""
    kept: dict[object, RunRecord] = {}
    for record in sorted(records, key=lambda r: r.provenance.started):
        config = record.config
        kept[(config.experiment, setting_of(record), config.arm.name, config.seed)] = record
    return sorted(kept.values(), key=lambda r: (r.config.experiment, r.run_id))
