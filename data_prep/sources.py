"""The data sets there are, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from data_prep import movielens, synthetic
from data_prep.prepare import prepare_source
from data_prep.source import Source
from repro.errors import InputError


def names() -> tuple[str, ...]:
    """Every name `prepare` takes."""
    return ("movielens-100k", "synthetic", "synthetic-tiny")


def prepare(
    name: str, data_root: Path, *, key_path: Path, force: bool = False, log: Callable[[str], None] = print
) -> Path:
    """Prepare one data set in `data_root / name`; does nothing when it is there and unchanged.

    Args:
        name: one of `names()`.
        data_root: folder of prepared data sets; made when missing.
        key_path: secret key of the user hash, outside `data_root`; made when missing.
        force: prepare again in any case.
        log: takes one line of progress at a time.

    Returns:
        The data set's folder.

    Raises:
        InputError: unknown name, missing or malformed input, a folder that cannot be written.
    """
    return prepare_source(_source(name), data_root, key_path=key_path, force=force, log=log)


def _source(name: str) -> Source:
    match name:
        case "movielens-100k":
            return movielens.source()
        case "synthetic":
            return synthetic.source(synthetic.SYNTHETIC)
        case "synthetic-tiny":
            return synthetic.source(synthetic.SYNTHETIC_TINY)
        case _:
            raise InputError(f"no data set {name!r}; there are {', '.join(names())}")
