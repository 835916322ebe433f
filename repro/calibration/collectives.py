"""Times of collectives between local ranks, and the line through them."""

from __future__ import annotations

import json
import socket
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from repro.calibration.fit import alpha_beta
from repro.calibration.profile import CollectiveFit, CollectiveTime, Spread
from repro.calibration.setting import Setting
from repro.errors import RunError
from repro.launch.local import Start, run_processes


def collective_times(setting: Setting) -> tuple[CollectiveTime, ...]:
    """Start the ranks, over loopback, with one thread each, and wait for what they measured.

    Raises:
        RunError: a rank failed; says which and its last word.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, job, log = (Path(folder) / name for name in ("rows.json", "job.json", "ranks.log"))
        content = {
            "rendezvous": str(Path(folder) / "rendezvous"),
            "world": setting.world,
            "sizes": setting.collective_bytes,
            "chunks": setting.chunk_bytes,
            "repeats": setting.repeats,
            "out": str(out),
        }
        job.write_text(json.dumps(content), encoding="utf-8")
        loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
        starts = [
            Start(
                [sys.executable, "-m", "repro.calibration.ranks", str(rank), str(job)],
                {"GLOO_SOCKET_IFNAME": loopback},
                rank,
            )
            for rank in range(setting.world)
        ]
        with log.open("w", encoding="utf-8") as sink:
            died = run_processes(starts, sink, lambda: None)
        if died is not None:
            words = [line.strip() for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
            raise RunError(f"calibrate: rank {died.rank} ended with {died.code}: {words[-1] if words else 'no word'}")
        rows = json.loads(out.read_text(encoding="utf-8"))
    return tuple(CollectiveTime(**{**row, "seconds": Spread(**row["seconds"])}) for row in rows)


def fits(times: Iterable[CollectiveTime]) -> tuple[CollectiveFit, ...]:
    """A line through the medians of each transport, chunk size and collective."""
    together: dict[tuple[str, str, int | None, int], list[CollectiveTime]] = {}
    for time in times:
        together.setdefault((time.collective, time.transport, time.chunk_bytes, time.world), []).append(time)
    found = []
    for (collective, transport, chunk_bytes, world), rows in together.items():
        line = alpha_beta([row.bytes for row in rows], [row.seconds.median for row in rows])
        found.append(
            CollectiveFit(
                transport=transport,
                chunk_bytes=chunk_bytes,
                collective=collective,
                world=world,
                alpha_s=line.alpha_s,
                beta_s_per_byte=line.beta_s_per_byte,
                residual=line.residual,
            )
        )
    return tuple(found)
