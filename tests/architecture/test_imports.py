"""Without this, the rooms grow into each other: an executor that imports the other, a simulator that needs TorchRec, a
library that needs its own recipes. Reads the import statements of every module; runs none of them.

Not covered: names imported dynamically, and what third-party packages import.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

ROWS: list[set[str]] = [
    {"repro.errors"},
    {"repro.config", "repro.pipeline.ops", "repro.data.schema"},
    {"repro.timeline.schema"},
    {
        "repro.balance.autotune",
        "repro.balance.tuning",
        "repro.balance.bounds",
        "repro.balance.by_cost",
        "repro.balance.cost",
        "repro.balance.karmarkar_karp",
        "repro.balance.memory",
        "repro.balance.order",
        "repro.balance.partition",
        "repro.balance.segments",
        "repro.balance.swaps",
        "repro.balance.zigzag",
        "repro.data.columns",
        "repro.data.dataset",
        "repro.data.distance",
        "repro.data.prefetch",
        "repro.data.statistics",
        "repro.embedding.collision",
        "repro.model.normalized_entropy",
        "repro.pipeline.step_plan",
        "repro.timeline.ledger",
        "repro.timeline.perfetto",
        "repro.timeline.recorder",
    },
    {"repro.balance", "repro.comm", "repro.data", "repro.device", "repro.embedding", "repro.kernels", "repro.model"},
    {"repro.pipeline"},
    {"repro.execution"},
    {"repro.tracking"},
    {"repro.report"},
    {"repro.launch", "repro.doctor"},
    {"repro.calibration"},
    {"data_prep", "experiments"},
    {"repro.synthesize"},
    {"repro.cli"},
    {"tests"},
]
"""Lower rows know nothing of higher ones. A module belongs to the longest name that fits it."""

FORBIDDEN: list[tuple[str, str, str]] = [
    ("repro.execution.simulated", "torch", "a simulation must run where torch is not installed"),
    ("repro.execution.simulated", "torchrec", "a simulation must run where torchrec is not installed"),
    ("repro.execution.simulated", "repro.execution.measured", "the executors do not know each other"),
    ("repro.execution.measured", "repro.execution.simulated", "the executors do not know each other"),
    ("repro.balance.partition", "torch", "partition functions are pure"),
    ("repro.balance.autotune", "torch", "its state is plain numbers"),
    ("repro.pipeline.step_plan", "torch", "the step plan is pure"),
    ("repro.timeline", "torch", "spans and ledger are pure"),
    ("repro.report", "repro.execution.measured", "reports are functions of run records"),
    ("repro.model", "repro.balance", "the model does not know whether its batch was balanced"),
    ("data_prep", "torch", "preparing data needs no torch"),
]

LIBRARY_OF_DATA_PREP = {"repro.data.schema", "repro.errors"}


def _modules() -> dict[str, Path]:
    modules = {}
    for top in ("repro", "data_prep", "experiments"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


MODULES = _modules()


def _imports(path: Path) -> set[str]:
    """Modules a file imports; `from package import module` counts as the module where it is one."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                found.add(submodule if submodule in MODULES else node.module)
    return found


def _within(module: str, name: str) -> bool:
    return module == name or module.startswith(name + ".")


def _row(module: str) -> int | None:
    best = max(
        ((len(name), row) for row, names in enumerate(ROWS) for name in names if _within(module, name)), default=None
    )
    return best[1] if best else None


@pytest.mark.parametrize("module", [name for name in MODULES if _imports(MODULES[name])])
def test_imports_point_down(module: str) -> None:
    mine = _row(module)
    assert mine is not None, f"{module} belongs to no row; add its room to ROWS"
    for imported in _imports(MODULES[module]):
        theirs = _row(imported)
        assert theirs is None or theirs <= mine, f"{module} (row {mine}) imports {imported} (row {theirs})"


@pytest.mark.parametrize(("importer", "imported", "reason"), FORBIDDEN)
def test_forbidden_imports(importer: str, imported: str, reason: str) -> None:
    importers = [name for name in MODULES if _within(name, importer)]
    assert importers, f"{importer} is gone; so should this rule be"
    for module in importers:
        offending = [name for name in _imports(MODULES[module]) if _within(name, imported)]
        assert not offending, f"{module} imports {offending[0]}: {reason}"


def test_data_prep_uses_only_the_contract() -> None:
    for module in (name for name in MODULES if _within(name, "data_prep")):
        ours = {name for name in _imports(MODULES[module]) if _within(name, "repro")}
        assert ours <= LIBRARY_OF_DATA_PREP, f"{module} imports {ours - LIBRARY_OF_DATA_PREP}"


def test_a_simulation_loads_neither_torch_nor_torchrec() -> None:
    """The whole chain, not only the direct imports."""
    reached, todo = set(), ["repro.execution.simulated.executor"]
    while todo:
        module = todo.pop()
        if module in reached:
            continue
        reached.add(module)
        imported = _imports(MODULES[module])
        assert not [name for name in imported if _within(name, "torch") or _within(name, "torchrec")], module
        todo.extend(name for name in imported if name in MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_no_environment_variable_changes_behaviour(module: str) -> None:
    """Only the launcher's contract with its ranks (torchrun's variables, what a job inherits) goes through the
    environment."""
    allowed = {"repro.comm.groups", "repro.execution.measured", "repro.launch.local", "repro.launch.slurm_queue"}
    source = MODULES[module].read_text(encoding="utf-8")
    reads = "os.environ" in source or "getenv" in source
    assert not reads or module in allowed or module in {"repro.doctor", "repro.tracking.wandb_sink"}


def test_no_drawers() -> None:
    assert not [name for name in MODULES if name.split(".")[-1] in ("utils", "common", "commons", "helpers", "misc")]
