"""The sbatch script of a measured run: pure text, from a Slurm user's settings and what the ranks are started with.

One srun task is one rank, so Slurm binds, counts and ends ranks itself. `RANK` and its like come from Slurm's
variables, the rendezvous address from Slurm's own node list, the port from the job's id. Paths and words of the user's
are quoted for the shell; settings, which stand in `#SBATCH` lines, are restricted to characters that need no quoting.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from repro.errors import InputError

SCRIPT, JOB_LOG, REFUSED, EXIT_CODE = "job.sbatch", "slurm.log", "slurm-refused.txt", "slurm-exit-code.txt"
"""Files in a run's `logs/`: the script, its output, why it would not start the ranks, how it ended."""
RANK_LOG = "rank-{rank}.log"
FIRST_PORT, PORTS = 20_000, 12_000
"""Rendezvous ports by job id, below the range from which Linux gives ports to clients (32768 on)."""

_WORD = re.compile(r"[A-Za-z0-9_.,:@%+/=&|*()\[\]-]+")
_FLAG = re.compile(r"--[a-z][a-z-]*(=.+)?")
_OURS = ("nodes", "ntasks", "ntasks-per-node", "output", "error", "wrap", "array", "requeue", "parsable", "chdir")


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


def parse_settings(assignments: Sequence[str]) -> SlurmSettings:
    """Settings from `key=value` texts, e.g. `["partition=gpu", "extra=--exclusive --gres=gpu:8"]`.

    Raises:
        InputError: an unknown key, or a value that sbatch could not be given as it is.
    """
    known = {field.name: field.default for field in fields(SlurmSettings)}
    values: dict[str, object] = {}
    extra: list[str] = []
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or key not in known:
            raise InputError(f"--slurm {shown(text)}: must be KEY=VALUE with KEY one of {', '.join(known)}")
        if key == "extra":
            extra += _flags(value)
        elif isinstance(known[key], int):
            values[key] = _count(key, value)
        else:
            values[key] = _word(key, value)
    return SlurmSettings(**values, extra=tuple(extra))  # type: ignore[arg-type]


def nodes_of(ranks: int, settings: SlurmSettings) -> tuple[int, int]:
    """(nodes, ranks on each).

    Raises:
        InputError: the ranks do not fill whole nodes.
    """
    each = min(ranks, settings.ranks_per_node)
    if ranks % each:
        raise InputError(f"--slurm ranks_per_node={each}: does not divide the {ranks} ranks of the run (gpus)")
    return ranks // each, each


def render(
    name: str,
    ranks: int,
    command: Sequence[str],
    settings: SlurmSettings,
    logs: Path,
    python_path: Path,
    port: int | None,
) -> str:
    """The script's text.

    Args:
        name: of the job, in Slurm's queue.
        command: what each rank runs, word by word.
        logs: absolute folder, on a file system that all nodes share.
        python_path: where ranks find this package.
        port: rendezvous port; None takes one from the job's id.

    Raises:
        InputError: the ranks do not fill whole nodes, or a path has a line break or control character in it.
    """
    nodes, each = nodes_of(ranks, settings)
    for text in (*command, str(logs), str(python_path)):
        if not text.isprintable():
            raise InputError(f"{shown(text)}: a job script cannot carry line breaks or control characters in a path")
    flags = {
        "job-name": re.sub(r"[^A-Za-z0-9_.+-]", "_", name),
        "nodes": nodes,
        "ntasks": ranks,
        "ntasks-per-node": each,
        "cpus-per-task": settings.cpus_per_task,
        "gpus-per-node": settings.gpus_per_node or "",
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "time": settings.time,
        "constraint": settings.constraint,
        "output": "/dev/null",
    }
    directives = [f"--{flag}={value}" for flag, value in flags.items() if value != ""]
    words = " ".join(shlex.quote(word) for word in command)
    chosen = [f"export {library}_SOCKET_IFNAME={shlex.quote(settings.interface)}" for library in ("GLOO", "NCCL")]
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {line}" for line in (*directives, "--no-requeue", *settings.extra)),
            "set -euo pipefail",
            f"logs={shlex.quote(str(logs))}",
            f'exec >"$logs/{JOB_LOG}" 2>&1',
            f"""trap 'echo "$?" >"$logs/.{EXIT_CODE}" && mv "$logs/.{EXIT_CODE}" "$logs/{EXIT_CODE}"' EXIT""",
            f"""refuse() {{ echo "$1" | tee "$logs/{REFUSED}"; exit 1; }}""",
            "",
            *_RENDEZVOUS,
            f"export MASTER_PORT={port if port is not None else f'$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))'}",
            f"export WORLD_SIZE={ranks} LOCAL_WORLD_SIZE={each} OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1",
            f'export PYTHONPATH={shlex.quote(str(python_path))}"${{PYTHONPATH:+:$PYTHONPATH}}"',
            *(chosen if settings.interface else []),
            "",
            f"srun --nodes={nodes} --ntasks={ranks} --ntasks-per-node={each} --cpus-per-task={settings.cpus_per_task} "
            "--kill-on-bad-exit=1 \\",
            "    bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID; "
            f"""exec "$@" >"$0/{_RANK_LOG}" 2>&1' \\""",
            f'    "$logs" {words}',
            "",
        ]
    )


_RANK_LOG = RANK_LOG.format(rank="$RANK")

# Slurm's address of a node counts, not its name: names of nodes need not resolve. A loopback address is right only
# where all nodes are one host; elsewhere (`127.0.1.1 myhost` in /etc/hosts) each rank would wait for its own rank 0.
_RENDEZVOUS = """\
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
[ "${#nodes[@]}" -gt 0 ] || refuse "scontrol does not list the nodes of $SLURM_JOB_NODELIST"
name=$(scontrol show node --oneliner "${nodes[0]}" | sed -nE 's/.* NodeAddr=([^ ]+).*/\\1/p')
[ -n "$name" ] || refuse "scontrol knows no address of node ${nodes[0]}"
read -r MASTER_ADDR _ < <(getent ahosts "$name") || refuse "the address of node ${nodes[0]}, $name, does not resolve"
hosts=$(scontrol show node --oneliner "$SLURM_JOB_NODELIST" |
    sed -nE 's/.* NodeHostName=([^ ]+).*/\\1/p' | sort -u | wc -l)
case $MASTER_ADDR in
    127.*|::1) [ "$hosts" -le 1 ] || refuse "${nodes[0]} resolves to $MASTER_ADDR, which other nodes cannot reach" ;;
esac
[ "$hosts" -le 1 ] || refuse "the nodes are $hosts hosts, each with a clock of its own; timelines need one: ask for one"
export MASTER_ADDR""".splitlines()


def shown(text: str) -> str:
    """`text` on one line, for a message."""
    return text if text.isprintable() else repr(text)


def _word(key: str, value: str) -> str:
    if not _WORD.fullmatch(value):
        raise InputError(f"--slurm {key}={shown(value)}: has a character that a job script cannot carry safely")
    return value


def _count(key: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", value) or (int(value) == 0 and key != "gpus_per_node"):
        raise InputError(f"--slurm {key}={shown(value)}: must be a whole number")
    return int(value)


def _flags(value: str) -> list[str]:
    flags = value.split(" ")
    for flag in flags:
        name = flag.removeprefix("--").split("=")[0]
        if not _FLAG.fullmatch(flag) or not _WORD.fullmatch(flag):
            raise InputError(f"--slurm extra={shown(value)}: must be --name or --name=value, apart by one space")
        if name in _OURS:
            raise InputError(f"--slurm extra={shown(value)}: --{name} is set from the recipe")
    return flags
