"""What a site asks of a Slurm job: from a TOML file, from `--slurm KEY=VALUE`, and which of it sbatch refused.

Settings stand in `#SBATCH` lines, which no shell reads but which end at a line break, so they are restricted to
characters that need no quoting. A file has the same keys:

    partition = "gpu"
    time = "2:00:00"
    ranks_per_node = 8
    extra = ["--exclusive", "--gres=gpu:8"]
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from repro.errors import InputError

_WORD = re.compile(r"[A-Za-z0-9_.,:@%+/=&|*()\[\]-]+")
_FLAG = re.compile(r"--[a-z][a-z-]*(=.+)?")
_OURS = {
    *("nodes", "ntasks", "ntasks-per-node", "job-name", "output", "error", "wrap", "array", "requeue", "no-requeue"),
    *("parsable", "chdir", "export", "export-file", "get-user-env", "wait"),
}

# What sbatch and its controller (Slurm 22.05) say of what they do not take, and the settings it can come from.
_BLAMED: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"invalid partition|this partition", ("partition",)),
    (r"invalid account", ("account",)),
    (r"invalid qos|QOS policy", ("qos", "account")),
    (r"feature", ("constraint",)),
    (r"time limit|--time ", ("time",)),
    (r"generic resource|\bgres\b|gpus-per-node", ("gpus_per_node",)),
    (r"node configuration|node count|processors requested", ("ranks_per_node", "cpus_per_task", "gpus_per_node")),
    (r"cpu count|cpus per task", ("cpus_per_task",)),
    (r"invalid --|unrecognized option|invalid option|memory", ("extra",)),
)


@dataclass(frozen=True, kw_only=True)
class SlurmSettings:
    """What a site asks of a job. Empty: not said, the cluster's default holds."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    time: str = ""
    """As sbatch takes it, e.g. `30` (minutes) or `2:00:00`."""
    constraint: str = ""
    ranks_per_node: int = 8
    """At most; a run with fewer ranks takes one node."""
    cpus_per_task: int = 1
    gpus_per_node: int = 0
    interface: str = ""
    """Network interface of gloo and NCCL, e.g. `ib0`; empty: they choose."""
    extra: tuple[str, ...] = ()
    """More sbatch flags, each `--name` or `--name=value`."""


def parse_settings(assignments: Sequence[str], file: Path | None = None) -> SlurmSettings:
    """Settings from `file`, then from `key=value` texts, which win; `extra` of both adds up, in this order.

    Args:
        assignments: e.g. `["partition=gpu", "extra=--exclusive --gres=gpu:8"]`.
        file: TOML with the same keys; `extra` may be a list there.

    Raises:
        InputError: a file that cannot be read, an unknown key, or a value that sbatch could not be given as it is.
    """
    known = {field.name: field.default for field in fields(SlurmSettings)}
    keys = f"KEY one of {', '.join(known)}"
    given = [] if file is None else _read(file)
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or key not in known:
            raise InputError(f"--slurm {shown(text)}: must be KEY=VALUE with {keys}")
        given.append((f"--slurm {key}={shown(value)}", key, value))
    values: dict[str, object] = {}
    extra: list[str] = []
    for where, key, value in given:
        if key not in known:
            raise InputError(f"{where}: unknown key; must be KEY = VALUE with {keys}")
        if key == "extra":
            extra += _flags(where, value)
        elif isinstance(known[key], int):
            values[key] = _count(where, key, value)
        else:
            values[key] = _word(where, value)
    return SlurmSettings(**values, extra=tuple(extra))  # type: ignore[arg-type]


def blamed(said: str, settings: SlurmSettings) -> str:
    """The settings that Slurm's refusal `said` can come from, as one would type them."""
    keys = next((keys for pattern, keys in _BLAMED if re.search(pattern, said, re.IGNORECASE)), ())
    typed = []
    for key in keys:
        value = getattr(settings, key)
        text = " ".join(value) if isinstance(value, tuple) else str(value)
        typed.append(f"{key}={text}" if text else f"{key}=... (not given)")
    return f"--slurm {' or '.join(typed)}" if typed else "--slurm KEY=VALUE"


def shown(text: str) -> str:
    """`text` on one line, for a message."""
    return text if text.isprintable() else repr(text)


def _read(file: Path) -> list[tuple[str, str, str]]:
    """(where it stands, key, value) of each entry; a list counts as its items, apart by one space."""
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--slurm-file {file}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise InputError(f"--slurm-file {file}: not TOML ({error})") from None
    entries = []
    for key, value in raw.items():
        where = f"{file}: {shown(key)} = {shown(str(value))}"
        items = value if isinstance(value, list) and key == "extra" else [value]
        if not all(isinstance(item, str | int) and not isinstance(item, bool) for item in items):
            raise InputError(f"{where}: must be a text or a whole number, and extra a list of texts")
        if items:
            entries.append((where, key, " ".join(str(item) for item in items)))
    return entries


def _word(where: str, value: str) -> str:
    if not _WORD.fullmatch(value):
        raise InputError(f"{where}: has a character that a job script cannot carry safely, or is empty")
    return value


def _count(where: str, key: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", value) or (int(value) == 0 and key != "gpus_per_node"):
        raise InputError(f"{where}: must be a whole number")
    return int(value)


def _flags(where: str, value: str) -> list[str]:
    flags = value.split(" ")
    for flag in flags:
        name = flag.removeprefix("--").split("=")[0]
        if not _FLAG.fullmatch(flag) or not _WORD.fullmatch(flag):
            raise InputError(f"{where}: must be --name or --name=value, apart by one space")
        if name in _OURS:
            raise InputError(f"{where}: --{name} is set by the launcher")
    return flags
