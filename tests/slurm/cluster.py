"""A real Slurm of four virtual nodes on this host, in a folder of its own: munge, controller and nodes, on free ports.

Nothing of it touches a Slurm that this machine may belong to: only commands that get `Cluster.environment` find it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

NODES = 4
PROGRAMS = (
    "munged",
    "slurmctld",
    "slurmd",
    "sbatch",
    "srun",
    "scancel",
    "scontrol",
    "squeue",
    "sinfo",
    "unshare",
    "mount",
)
START_SECONDS = 30
STOP_SECONDS = 20

# KillWait and the scheduler's delays are shorter than Slurm's defaults, so that tests need not wait.
CONF = """\
ClusterName=private
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=5,bf_interval=5
KillWait=5
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
MpiDefault=none
SlurmdParameters=config_overrides
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=4 RealMemory=4000
PartitionName=main Nodes=n[1-{nodes}] Default=YES State=UP
PartitionName=short Nodes=n[1-{nodes}] MaxTime=1 State=UP
"""


def missing() -> str:
    """Why no cluster can be started here; empty when one can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"no {', '.join(absent)} here: apt-get install slurmctld slurmd slurm-client munge"
    return "" if os.geteuid() == 0 else "starting slurmd takes root"


class Cluster:
    """Starts when made; `stop` ends what it started, and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hidden = folder / "hidden"
        """An empty folder of its own on each node: what is written there on this host, nodes do not see. Only if
        `hides`: a container may not be allowed to mount anything."""
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.state = folder / "state"
        self.state.mkdir()
        self.hidden.mkdir()
        mount = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", str(self.hidden)]
        self.hides = subprocess.run(mount, capture_output=True, check=False).returncode == 0
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        port, first = _free_port(), _free_ports(NODES)
        host = socket.gethostname().split(".")[0]
        (self.folder / "slurm.conf").write_text(
            CONF.format(folder=self.folder, host=host, port=port, nodes=NODES, first=first, last=first + NODES - 1)
        )
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(64))
        places = {"socket": "munge.socket", "key-file": "munge.key", "log-file": "munge.log", "pid-file": "munge.pid",
                  "seed-file": "munge.seed"}  # fmt: skip
        options = [f"--{option}={self.folder / name}" for option, name in places.items()]
        self._daemon("munged", "--foreground", *options)
        _wait_for((self.folder / "munge.socket").exists, "munged", self.folder)
        self.start_controller()
        for node in range(1, NODES + 1):
            (self.folder / f"spool-n{node}").mkdir()
            private = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none "{self.hidden}" && exec "$@"', "sh"]
            self._daemon(*(private if self.hides else []), "slurmd", "-D", "-N", f"n{node}")
        _wait_for(self._all_idle, "all nodes to be idle", self.folder)

    def _all_idle(self) -> bool:
        return self.run("sinfo", "--noheader", "--Node", "--partition=main", "--format=%T").split() == ["idle"] * NODES

    def start_controller(self) -> None:
        self._controller = self._daemon("slurmctld", "-D", "-i")

    def stop_controller(self) -> None:
        """Its jobs go on, and are known again to the next one."""
        self._daemons.remove(self._controller)
        _end(self._controller)

    def run(self, *command: str) -> str:
        """What a Slurm command prints."""
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=30, check=False
        ).stdout

    def jobs(self) -> list[str]:
        """Ids in the queue."""
        return self.run("squeue", "--noheader", "--format", "%i").split()

    def cancel_all(self) -> None:
        """Until no job is left."""
        give_up = time.monotonic() + STOP_SECONDS
        while (jobs := self.jobs()) and time.monotonic() < give_up:
            self.run("scancel", *jobs)
            time.sleep(0.2)

    def stop(self) -> None:
        """Cancel all jobs, then end the daemons, those started last first."""
        if self._daemons and all(daemon.poll() is None for daemon in self._daemons):
            self.cancel_all()
        with ExitStack() as stack:
            for daemon in self._daemons:
                stack.callback(_end, daemon)

    def _daemon(self, *command: str) -> subprocess.Popen[bytes]:
        """Start one; it ends with this process, should that be killed before it can clean up."""
        name = f"{Path(command[0]).name}-{len(self._daemons)}.log"
        with (self.folder / name).open("wb") as log:
            self._daemons.append(
                subprocess.Popen(
                    ["setpriv", "--pdeathsig", "TERM", *command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self.environment,
                    start_new_session=True,
                )
            )
        return self._daemons[-1]


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()


def _wait_for(ready: Callable[[], bool], what: str, folder: Path) -> None:
    give_up = time.monotonic() + START_SECONDS
    while not ready():
        if time.monotonic() > give_up:
            logs = "\n".join(f"{log.name}: {log.read_text(errors='replace')[-500:]}" for log in folder.glob("*.log"))
            raise RuntimeError(f"Slurm did not come up in {START_SECONDS} s, waiting for {what}:\n{logs}")
        time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _free_ports(count: int) -> int:
    """The first of `count` neighbouring ports that are free."""
    for first in range(_free_port(), 65_000 - count):
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise RuntimeError("no free ports")
