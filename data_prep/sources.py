"""The data sets there are, by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from data_prep import amazon, kuairand, movielens, movielens_100k, own_log, synthetic, synthetic_presets, taobao, yambda
from data_prep.own_log import OwnLog
from data_prep.prepare import prepare_source
from data_prep.source import Source
from repro.errors import InputError

OWN = "csv"
SYNTHETIC = "synthetic"
"""The generator; without knobs it makes its industrial preset under this name."""


def names() -> tuple[str, ...]:
    """Every name `prepare` takes."""
    return (
        movielens_100k.NAME,
        *(preset.name for preset in synthetic_presets.PRESETS),
        *(edition.name for edition in (*movielens.EDITIONS, *kuairand.EDITIONS, *yambda.EDITIONS)),
        taobao.NAME,
        amazon.NAME,
        amazon.FULL_NAME,
        SYNTHETIC,
        OWN,
    )


def prepare(
    name: str,
    data_root: Path,
    *,
    key_path: Path,
    force: bool = False,
    log: Callable[[str], None] = print,
    mirror: str | None = None,
    own: OwnLog | None = None,
) -> Path:
    """Prepare one data set in `data_root / name`; does nothing when it is there and unchanged.

    Args:
        name: one of `names()`.
        data_root: folder of prepared data sets; made when missing. Raw files are in the folder `raw` beside it.
        key_path: secret key of the user hash, outside `data_root`; made when missing.
        force: prepare again in any case.
        log: takes one line of progress at a time.
        mirror: folder or URL from which raw files are taken instead of their publisher's.
        own: the user's log, for `csv`; the data set then has its name.

    Returns:
        The data set's folder.

    Raises:
        InputError: unknown name, missing or malformed input, a folder that cannot be written.
    """
    source = _source(name, data_root.parent / "raw", own)
    return prepare_source(source, data_root, key_path=key_path, mirror=mirror, force=force, log=log)


def _source(name: str, raw_root: Path, own: OwnLog | None) -> Source:
    match name:
        case movielens_100k.NAME:
            return movielens_100k.source()
        case taobao.NAME:
            return taobao.source(raw_root)
        case amazon.NAME | amazon.FULL_NAME:
            return amazon.source(name, raw_root)
        case "csv":
            return _own_source(own)
        case "synthetic":
            return synthetic.source(dataclasses.replace(synthetic_presets.INDUSTRIAL_21K, name=SYNTHETIC))
    for preset in synthetic_presets.PRESETS:
        if preset.name == name:
            return synthetic.source(preset)
    for movielens_edition in movielens.EDITIONS:
        if movielens_edition.name == name:
            return movielens.source(movielens_edition, raw_root)
    for kuairand_edition in kuairand.EDITIONS:
        if kuairand_edition.name == name:
            return kuairand.source(kuairand_edition, raw_root)
    for yambda_edition in yambda.EDITIONS:
        if yambda_edition.name == name:
            return yambda.source(yambda_edition, raw_root)
    raise InputError(f"no data set {name!r}; there are {', '.join(names())}")


def _own_source(own: OwnLog | None) -> Source:
    if own is None:
        raise InputError("csv: name your log's files and columns with --events and --columns")
    if own.name != OWN and own.name in names():
        raise InputError(f"--name {own.name}: this is the name of a public data set; choose another")
    return own_log.source(own)
