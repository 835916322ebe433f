"""The sbatch script of a measured run: pure text, from a Slurm user's settings and what the ranks are started with.

One srun task is one rank, so Slurm binds, counts and ends ranks itself. `RANK` and its like come from Slurm's
variables, the rendezvous address from Slurm's own node list, the port from the job's id. Paths and words of the user's
are quoted for the shell; settings are restricted to characters that need no quoting (`repro.launch.slurm_settings`).

A shell waits for each rank and writes down how it ended, so that a rank killed from outside is told from the ranks that
lost it as a peer.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from repro.errors import InputError
from repro.launch.slurm_settings import SlurmSettings, shown

SCRIPT, JOB_LOG, REFUSED, EXIT_CODE = "job.sbatch", "slurm.log", "slurm-refused.txt", "slurm-exit-code.txt"
"""Files in a run's `logs/`: the script, its output, why it would not start the ranks, how it ended."""
RANK_LOG, RANK_EXIT_CODE = "rank-{rank}.log", "exit-rank{rank}.txt"
FIRST_PORT, PORTS = 20_000, 12_000
"""Rendezvous ports by job id, below the range from which Linux gives ports to clients (32768 on)."""


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
            "--kill-on-bad-exit=1 --export=ALL \\",
            "    bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID; "
            f"""code=0; "$@" >"$0/{_RANK_LOG}" 2>&1 || code=$?; echo $code >"$0/{_RANK_EXIT_CODE}"; exit $code' \\""",
            f'    "$logs" {words}',
            "",
        ]
    )


_RANK_LOG, _RANK_EXIT_CODE = (name.format(rank="$RANK") for name in (RANK_LOG, RANK_EXIT_CODE))

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
