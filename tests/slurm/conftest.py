"""A private Slurm for the session; skipped with the reason where none can be started."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, missing


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    reason = missing()
    if reason:
        pytest.skip(f"no private Slurm: {reason}")
    # Not pytest's own folder: munge's socket must lie where everyone may go, under a path of at most 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    folder.chmod(0o755)
    started = Cluster(folder)
    yield started
    started.stop()
    shutil.rmtree(folder)
