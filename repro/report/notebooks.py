"""Execute notebooks headless and keep them as HTML.

A notebook has one code cell tagged `parameters` that sets `results`; a cell that points it at the caller's folder is
put in after it (the convention of papermill), so that the notebook on disk stays as it is. What runs it reads stands in
its metadata, `"repro": {"needs": [{"experiment": ..., "mode": ...}]}`: where one is missing the notebook is left out.
"""

from __future__ import annotations

import hashlib
import html
import json
import logging
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from repro.config import fingerprint
from repro.errors import InputError, RunError
from repro.report.build import records_fingerprint, source_fingerprint
from repro.report.describe import descriptions_fingerprint
from repro.tracking.record import read_records, write_atomically

_CELL_SECONDS = 300
_TAIL_BYTES = 512
_NO_TEXT = 'alt="No description has been provided for this image"'
_ONLY_ERRORS = logging.Logger("nbconvert", logging.ERROR)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def execute_notebooks(
    notebook_dir: Path, results: Path, out_dir: Path, log: Callable[[str], None] = print
) -> list[Path]:
    """Run every notebook in `notebook_dir` on `results` and write `out_dir/<name>.html`; the pages' paths.

    A page is kept when its notebook, the records and the report's source are what it was made from. A notebook whose
    runs are not there is left out, and what makes them is logged.

    Raises:
        InputError: no notebooks, no runs, or a notebook without a `parameters` cell.
        RunError: a cell failed; names the notebook, the cell and the error's last line.
    """
    notebooks = sorted(notebook_dir.glob("*.ipynb"))
    if not notebooks:
        raise InputError(f"{notebook_dir}: no notebooks")
    records = read_records(results)
    there = {(record.config.experiment, record.config.mode) for record in records}
    made_from = [records_fingerprint(records), descriptions_fingerprint(results), source_fingerprint()]
    pages = []
    for notebook in notebooks:
        page = out_dir / f"{notebook.stem}.html"
        content = notebook.read_bytes()
        needed = json.loads(content)["metadata"].get("repro", {}).get("needs", [])
        missing = [one for one in needed if (one["experiment"], one["mode"]) not in there]
        if missing:
            makers = ", ".join(f"`repro run {one['experiment']} --mode {one['mode']}`" for one in missing)
            log(f"{page}: not made, its runs are missing: {makers}")
            continue
        mark = f"<!-- inputs: {fingerprint([*made_from, hashlib.sha256(content).hexdigest()])} -->\n"
        if _tail(page).endswith(mark):
            log(f"{page}: up to date, skipped")
        else:
            text = _execute(notebook, content.decode(), results.resolve())
            out_dir.mkdir(parents=True, exist_ok=True)
            write_atomically(page, text + mark)
            log(f"{page}: executed")
        pages.append(page)
    return pages


def _tail(page: Path) -> str:
    try:
        return page.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
    except OSError:
        return ""


def _execute(path: Path, content: str, results: Path) -> str:
    # Imported here: together they take longer to import than an up-to-date notebook takes to skip.
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    from nbconvert import HTMLExporter

    notebook = nbformat.reads(content, as_version=4)
    position = _parameters_cell(notebook, path)
    # Relative, so that a page which is shared does not carry the paths of the machine it was made on.
    relative = os.path.relpath(results, path.parent)
    notebook.cells.insert(position + 1, nbformat.v4.new_code_cell(f"results = Path({relative!r})"))
    started: list[int] = []
    client = NotebookClient(
        notebook,
        timeout=_CELL_SECONDS,
        resources={"metadata": {"path": str(path.parent)}},
        on_cell_execute=lambda cell, cell_index: started.append(cell_index),
    )
    client.create_kernel_manager().kernel_spec.argv = _kernel_command()
    try:
        client.execute()
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        raise RunError(f"{path}, {_cell_number(notebook, started, position)}: {_last_line(error)}") from None
    # Empty addresses: the page must not fetch anything when it is opened.
    exporter = HTMLExporter(mathjax_url="", require_js_url="", jquery_url="", embed_images=True, log=_ONLY_ERRORS)
    page, _ = exporter.from_notebook_node(notebook)
    for text in _image_texts(notebook):
        page = page.replace(_NO_TEXT, f'alt="{text}"', 1)
    return str(page)


def _image_texts(notebook: Any) -> list[str]:
    """Alternative text of every image, in order: the heading above it, since nbconvert knows none."""
    heading, texts = "", []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            heading = next((line.lstrip("# ") for line in cell.source.splitlines() if line.startswith("#")), heading)
        texts += [
            html.escape(f"Figure: {heading}")
            for output in cell.get("outputs", [])
            if "image/png" in output.get("data", {})
        ]
    return texts


def _kernel_command() -> list[str]:
    """Starts a kernel in the interpreter that runs now, whatever kernels are installed, importing the same `repro`."""
    root = str(Path(__file__).resolve().parents[2])
    start = (
        f"import sys; sys.path.insert(0, {root!r}); from ipykernel.kernelapp import launch_new_instance as run; run()"
    )
    # No history: it would be written to the user's home.
    quiet = ["--HistoryManager.enabled=False", "--IPKernelApp.log_level=ERROR"]
    return [sys.executable, "-c", start, "-f", "{connection_file}", *quiet]


def _parameters_cell(notebook: Any, path: Path) -> int:
    for index, cell in enumerate(notebook.cells):
        if "parameters" in cell.metadata.get("tags", []):
            return index
    raise InputError(f"{path}: no cell is tagged `parameters`, so its results folder cannot be set")


def _cell_number(notebook: Any, started: list[int], parameters: int) -> str:
    """The last started cell as a reader of the notebook on disk counts code cells, from 1."""
    if not started:
        return "before its first cell"
    code = [index for index, cell in enumerate(notebook.cells) if cell.cell_type == "code" and index != parameters + 1]
    return f"code cell {sum(index <= started[-1] for index in code)}"


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in _ANSI.sub("", str(error)).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
