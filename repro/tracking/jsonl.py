"""JSONL sink: the per-step rows beside the record. Always on, and the source of truth for every other sink."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repro.errors import RunError
from repro.tracking.record import STEPS, write_atomically


def write_steps(rows: Sequence[dict[str, Any]], folder: Path) -> Path:
    """Write one JSON object a step to `folder/steps.jsonl`, atomically.

    Raises:
        RunError: the rows cannot be stored. Without them the run is not complete, so unlike the other sinks
            this one does not carry on.
    """
    path = folder / STEPS
    try:
        # NaN is not JSON; `allow_nan=False` stops a broken metric here, not in a reader months later.
        text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: per-step rows not written ({error})") from None
    return path
