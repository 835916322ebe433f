"""`repro describe`: statistics of a prepared data set as text, figure, JSON and a W&B run. Aggregates only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from repro.data.dataset import PreparedDataset
from repro.data.schema import read_manifest
from repro.data.statistics import DatasetStatistics, from_dict, statistics
from repro.errors import InputError
from repro.report.figures.dataset import dataset_figure
from repro.report.style import save_figure
from repro.tracking.record import write_atomically
from repro.tracking.wandb_sink import WandbMode, wandb_run

FIGURES = "figures"
PREFIX = "describe_"


def describe(
    folder: Path,
    results: Path,
    *,
    ranks: int = 8,
    batch: int = 16,
    max_uih: int = 21_000,
    wandb: WandbMode = "disabled",
    log: Callable[[str], None] = print,
) -> DatasetStatistics:
    """Measure the prepared data set in `folder`; print it, draw it, write `results/figures/describe_<name>.*`.

    Args:
        ranks, batch, max_uih: the global batch in which collisions are counted.

    Raises:
        InputError: no prepared data set, or `results` cannot be written.
    """
    found = statistics(PreparedDataset.open(folder), ranks=ranks, batch=batch, max_uih=max_uih)
    for line in as_text(found):
        log(line)
    try:
        figure = save_figure(dataset_figure(found), results / FIGURES, PREFIX + found.name)
        path = figure.png.with_suffix(".json")
        write_atomically(path, json.dumps(found.to_dict(), indent=1) + "\n")
    except OSError as error:
        raise InputError(f"{results}: cannot write results here ({error.strerror}); use --results") from None
    log(f"  drawn in {figure.png}, numbers in {path}")
    if wandb != "disabled":
        log(f"  W&B {_publish(found, figure.png, wandb, results)}")
    return found


def is_described(folder: Path, results: Path) -> bool:
    """Whether `results` holds a description of the data set in `folder` as it is now, in whatever batches.

    Raises:
        InputError: no prepared data set.
    """
    manifest = read_manifest(folder)
    path = results / FIGURES / f"{PREFIX}{manifest.name}.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    drawn = all(path.with_suffix(kind).exists() for kind in (".png", ".svg"))
    return drawn and isinstance(raw, dict) and raw.get("fingerprint") == manifest.fingerprint


def read_descriptions(results: Path) -> list[DatasetStatistics]:
    """What `describe` has written into `results`, by name; empty when it has not been run.

    Raises:
        InputError: an unreadable file.
    """
    found = []
    for path in sorted((results / FIGURES).glob(f"{PREFIX}*.json")):
        try:
            found.append(from_dict(json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, InputError) as error:
            raise InputError(f"{path}: {error}") from None
    return found


def descriptions_fingerprint(results: Path) -> str:
    """SHA-256 (hex) over what `describe` has written into `results`."""
    digest = hashlib.sha256()
    for path in sorted((results / FIGURES).glob(f"{PREFIX}*.json")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def as_text(found: DatasetStatistics) -> list[str]:
    """The statistics in a few lines."""
    length, item = found.uih_length, found.item
    at = {q: f"{length.at(q):,.0f}" for q in (0.5, 0.9, 0.99, 1.0)}
    lines = [
        f"{found.name}: {found.users:,} users, {found.events:,} events, {found.requests:,} requests",
        f"  UIH length      median {at[0.5]}, mean {length.mean:,.0f}, p90 {at[0.9]}, p99 {at[0.99]}, most {at[1.0]}",
        f"  requests a user mean {found.requests_a_user.mean:.1f}, p99 {found.requests_a_user.at(0.99):.0f}; "
        f"in proportion to length ^ {found.activity:.2f}",
        f"  candidates      mean {found.candidates.mean:.1f}, most {found.candidates.at(1.0):.0f}; "
        f"{found.positive_pct:.1f} % of labels are 1",
        f"  items           {item.distinct:,} of {item.vocabulary:,} occur; Gini {item.gini:.2f}; the top 1 % have "
        f"{100 * item.top_shares['0.01']:.0f} % of events",
    ]
    if found.collision is None:
        return [*lines, "  collision       not measured: fewer than two global batches of the asked size"]
    hit = found.collision
    over_all, by_rank = (sum(values) / len(values) for values in (hit.global_pct, hit.rank_pct))
    return [
        *lines,
        f"  collision       {over_all:.1f} % of {hit.distinct_rows:,.0f} distinct rows over all ranks "
        f"({min(hit.global_pct):.1f}-{max(hit.global_pct):.1f}), {by_rank:.1f} % of a rank's; global batch "
        f"{hit.ranks} x {hit.global_batch // hit.ranks}, UIH up to {hit.max_uih:,}",
    ]


def _publish(found: DatasetStatistics, image: Path, mode: WandbMode, results: Path) -> str:
    """One W&B run of job type `describe`; never fails the command."""
    try:
        with wandb_run(results, mode, name=f"describe-{found.name}", group="datasets", job_type="describe",
                       tags=[found.name], config={"dataset": found.name}) as started:  # fmt: skip
            started.run.summary.update(_flat(found))
            started.run.log({"figures/dataset": started.wandb.Image(str(image))})
        return started.status(expected=1)
    except (Exception, SystemExit) as error:  # the client also leaves by sys.exit
        return f"failed: {' '.join(str(error).split())}"


def _flat(found: DatasetStatistics) -> dict[str, float]:
    values = {
        "users": found.users,
        "events": found.events,
        "requests": found.requests,
        "positive_pct": found.positive_pct,
        "activity": found.activity,
        "candidates_mean": found.candidates.mean,
        "uih_mean": found.uih_length.mean,
        **{f"uih_p{100 * q:g}": found.uih_length.at(q) for q in (0.5, 0.9, 0.99, 1.0)},
        **{f"gini_{popularity.feature}": popularity.gini for popularity in found.popularity},
    }
    if found.collision is not None:
        values["collision_pct"] = sum(found.collision.global_pct) / len(found.collision.global_pct)
    return {f"dataset/{name}": float(value) for name, value in values.items()}
