"""Without these tests a notebook could rot unseen, hide logic in functions, or carry stored outputs that no run made.

Not covered: notebooks in JupyterLab itself, and records larger than the small ones here.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import nbformat
import pytest
from report_records import config, write_run, write_small_results

from repro.errors import InputError, RunError
from repro.report.notebooks import execute_notebooks

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
ALL = sorted(NOTEBOOKS.glob("*.ipynb"))


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_notebook_is_short_cells_without_outputs_or_definitions(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        assert not cell.outputs
        assert cell.execution_count is None
        assert len(cell.source.splitlines()) <= 12
        code = re.sub(r"^%.*$", "", cell.source, flags=re.MULTILINE)
        definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        named = [node for node in ast.walk(ast.parse(code)) if isinstance(node, definitions)]
        assert not named, "logic belongs into repro.report, where it is tested"
    parameters = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    assert [cell.source.splitlines()[-1] for cell in parameters] == ['results = Path("../results")']


def test_notebooks_run_headless_and_are_skipped_when_unchanged(tmp_path: Path) -> None:
    write_small_results(tmp_path)
    lines: list[str] = []
    pages = execute_notebooks(NOTEBOOKS, tmp_path, tmp_path / "notebooks", lines.append)
    assert [page.stem for page in pages] == [path.stem for path in ALL]
    for page in pages:
        html = page.read_text()
        assert html.count("data:image/png;base64") >= 4
        assert not re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=[\"']?https?://", html)
        assert "Traceback" not in html
        assert "No description has been provided" not in html
    execute_notebooks(NOTEBOOKS, tmp_path, tmp_path / "notebooks", lines.append)
    assert lines[-1].endswith("up to date, skipped")
    assert len(lines) == 2 * len(ALL)


def test_a_notebook_whose_runs_are_missing_is_left_out_and_says_what_makes_them(tmp_path: Path) -> None:
    """So that a folder with one experiment in it has its report."""
    write_run(tmp_path, config(experiment="fig08a"))
    lines: list[str] = []
    pages = execute_notebooks(NOTEBOOKS, tmp_path, tmp_path / "notebooks", lines.append)
    assert "01_explore_runs" not in [page.stem for page in pages]
    assert (
        f"{tmp_path}/notebooks/01_explore_runs.html: not made, its runs are missing: `repro run ladder --mode measured`"
        in lines[0]
    )
    assert "fig08a" not in lines[0]


def _notebook(folder: Path, *cells: str, tagged: bool = True) -> Path:
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    if tagged:
        notebook.cells[0].metadata["tags"] = ["parameters"]
    folder.mkdir()
    nbformat.write(notebook, folder / "broken.ipynb")
    return folder


def test_failing_cell_is_named_with_its_error(tmp_path: Path) -> None:
    write_run(tmp_path, config())
    folder = _notebook(
        tmp_path / "in",
        "from pathlib import Path\nresults = Path('nowhere')",
        "assert results.exists()",
        "1 / 0",
        "print()",
    )
    with pytest.raises(RunError, match=r"broken\.ipynb, code cell 3: ZeroDivisionError: division by zero$"):
        execute_notebooks(folder, tmp_path, tmp_path / "out", lambda _: None)
    assert not list((tmp_path / "out").glob("*"))


def test_dead_kernel_is_a_run_error(tmp_path: Path) -> None:
    write_run(tmp_path, config())
    folder = _notebook(tmp_path / "in", "from pathlib import Path", "import os; os._exit(1)")
    with pytest.raises(RunError, match=r"broken\.ipynb, code cell 2: "):
        execute_notebooks(folder, tmp_path, tmp_path / "out", lambda _: None)


def test_unusable_input_is_the_users_error(tmp_path: Path) -> None:
    write_run(tmp_path, config())
    with pytest.raises(InputError, match="no notebooks"):
        execute_notebooks(tmp_path / "absent", tmp_path, tmp_path / "out", lambda _: None)
    folder = _notebook(tmp_path / "in", "1 + 1", tagged=False)
    with pytest.raises(InputError, match="parameters"):
        execute_notebooks(folder, tmp_path, tmp_path / "out", lambda _: None)
    with pytest.raises(InputError, match="no run records"):
        execute_notebooks(folder, tmp_path / "empty", tmp_path / "out", lambda _: None)
