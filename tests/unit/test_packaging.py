"""Without this a fresh clone could install other versions than the tested ones, keep half an installation, ask for
packages at one machine's address, or follow links that lead nowhere.

The Makefile is run for real on a copy, with a small program in Python's place that plays venv and pip. Not covered:
what pip itself does, and whether the sets resolve (`make lock`, `make check-cuda-resolves`).
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from repro.doctor.software import TRAINS

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements"
STUB = "./requirements/fbgemm-gpu-stub"


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]


def direct(train: str) -> dict[str, str]:
    """Name -> specifier of what is asked for by name, includes followed."""
    wanted = {}
    for file in (f"{train}.in", "common.in", "no-deps.in"):
        for line in lines(REQUIREMENTS / file):
            if line in ("-r common.in", STUB):
                continue
            found = re.fullmatch(r"([A-Za-z0-9._-]+)((?:[<>=!~]=?[^#\s]+)?)", line)
            assert found, f"{file}: {line!r} is not a plain requirement"
            wanted[canonical(found[1])] = found[2]
    return wanted


def pins(train: str) -> dict[str, str]:
    return dict(line.split("==") for line in lines(REQUIREMENTS / f"constraints-{train}.txt"))


# Requirements


@pytest.mark.parametrize("train", TRAINS)
def test_constraints_pin_exactly(train: str) -> None:
    written = lines(REQUIREMENTS / f"constraints-{train}.txt")
    for line in written:
        assert re.fullmatch(r"[a-z0-9-]+==[A-Za-z0-9.+!]+", line), line
    names = [line.split("==")[0] for line in written]
    assert names == sorted(set(names))


@pytest.mark.parametrize("train", TRAINS)
def test_every_direct_requirement_is_pinned(train: str) -> None:
    pinned = pins(train)
    for name, specifier in direct(train).items():
        assert name in pinned, f"{name} is not in constraints-{train}.txt; run `make lock`"
        if specifier.startswith("=="):
            assert specifier == f"=={pinned[name]}"


@pytest.mark.parametrize("train", TRAINS)
def test_doctor_knows_the_pinned_train(train: str) -> None:
    assert TRAINS[train] == {name: version for name, version in pins(train).items() if name in TRAINS["cpu"]}


def test_trains_share_what_is_not_about_the_accelerator() -> None:
    cpu, cuda = pins("cpu"), pins("cuda")
    differing = {name for name in cpu.keys() & cuda.keys() if cpu[name] != cuda[name]}
    assert differing == {"torch", "torchrec", "fbgemm-gpu"}
    assert not [name for name in cpu if name.startswith(("nvidia-", "cuda-"))], "locked against torch's CUDA build"


DISTRIBUTIONS = {"fbgemm_gpu": "fbgemm-gpu", "yaml": "pyyaml"}
"""Where a package is not called what its distribution is called."""
BROUGHT_BY_TORCH = {"triton"}


def test_every_imported_package_is_asked_for() -> None:
    """One that comes as somebody else's dependency is gone when they drop it."""
    ours = {path.stem for path in (ROOT / "tests").rglob("*.py")} | {
        path.name for path in ROOT.iterdir() if path.is_dir()
    }
    wanted = {*direct("cuda"), *BROUGHT_BY_TORCH}
    for top in ("repro", "data_prep", "experiments", "tests"):
        for path in (ROOT / top).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    names = [node.module]
                for package in {name.split(".")[0] for name in names} - ours - sys.stdlib_module_names:
                    asked = canonical(DISTRIBUTIONS.get(package, package))
                    assert asked in wanted, (
                        f"{path.relative_to(ROOT)} imports {package}: add it to requirements/common.in"
                    )


def test_stub_stands_in_for_the_pinned_fbgemm() -> None:
    project = tomllib.loads((ROOT / STUB / "pyproject.toml").read_text())["project"]
    assert project["name"] == "fbgemm-gpu"
    assert project["version"] == pins("cpu")["fbgemm-gpu"]
    assert project["dependencies"] == [f"fbgemm-gpu-cpu=={pins('cpu')['fbgemm-gpu-cpu']}"]
    assert STUB in lines(REQUIREMENTS / "cpu.in")


def test_no_address_and_no_machine_in_requirements() -> None:
    files = [path for path in REQUIREMENTS.rglob("*") if path.suffix in (".in", ".txt", ".toml")]
    assert len(files) >= 7
    for path in [*files, ROOT / "Makefile", ROOT / ".ci" / "run"]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            where = f"{path.name}:{number}: {line}"
            assert not re.search(r"://|\bfile:|--(extra-)?index-url|--find-links|--trusted-host", line), where
            assert not re.search(r"\b[a-z0-9-]+\.(org|com|io|net)\b", line), where
            assert not re.search(r"(^|[\s=\"'])/(home|root|tmp|opt|work|mnt|srv)\b", line), where


# Metadata


def test_pyproject_parses_and_names_what_is_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11"
    for file in [project["readme"], *project["license-files"]]:
        assert (ROOT / file).is_file()
    for target in project["scripts"].values():
        module, function = target.split(":")
        assert f"def {function}(" in (ROOT / (module.replace(".", "/") + ".py")).read_text()


def test_citation_names_software_and_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["cff-version"] == "1.2.0"
    assert citation["message"]
    assert citation["authors"]
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    (paper,) = citation["references"]
    assert paper["title"].startswith("FreeScale: Distributed Training for Sequence Recommendation Models")
    assert "2604.24073" in paper["url"]
    assert paper["authors"][0]["family-names"] == "Feng"


def test_workflow_runs_the_ci_script() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert {"run": ".ci/run"} in workflow["jobs"]["check-and-test"]["steps"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")]).returncode == 0


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(name: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / name).read_text(), flags=re.DOTALL)
    for label, target in re.findall(r"\[([^\]]*)\]\(([^)\s]+)\)", text):
        if re.match(r"https://", target):
            continue
        path, _, anchor = target.partition("#")
        place = ROOT / name if not path else ROOT / path
        assert place.exists(), f"{name}: [{label}]({target}) leads nowhere"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", place.read_text(), flags=re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in anchors, f"{name}: {target} names no heading"


# Makefile

PLAYED_PYTHON = """#!/bin/sh
# Plays Python 3.11.7, and makes a .venv whose python writes down what pip is asked for.
case "$1 $2" in
    -c*_base_executable*) echo "$0 3.11.7" ;;
    -c*) exit 0 ;;
    "-m venv") mkdir -p "$3/bin"; cp "$0.pip" "$3/bin/python"; cp "$0.tool" "$3/bin/ruff"; cp "$0.tool" "$3/bin/mypy" ;;
    *) exit 9 ;;
esac
"""
PLAYED_PIP = """#!/bin/sh
echo "$@" >> pip.log
if [ -e broken ] && grep -q -- --no-build-isolation pip.log; then exit 1; fi
"""


class Checkout:
    """A copy of what an installation reads, and a program that plays Python."""

    def __init__(self, root: Path) -> None:
        self.root = root
        shutil.copytree(REQUIREMENTS, root / "requirements", ignore=shutil.ignore_patterns("build", "*.egg-info"))
        for name in ("Makefile", "pyproject.toml"):
            shutil.copy(ROOT / name, root / name)
        for suffix, text in (
            ("", PLAYED_PYTHON),
            (".pip", PLAYED_PIP),
            (".tool", "#!/bin/sh\n"),
        ):
            path = root / f"played{suffix}"
            path.write_text(text)
            path.chmod(0o755)
        (root / "bin").mkdir()
        self.path = f"{root / 'bin'}:/usr/bin:/bin"

    def make(self, *arguments: str, python: str = "./played") -> subprocess.CompletedProcess[str]:
        environment = {"PATH": self.path, "HOME": str(self.root), "LC_ALL": "C"}
        command = ["make", *arguments, f"PYTHON={python}"]
        return subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True, timeout=60)

    def installs(self, *arguments: str) -> list[str]:
        """pip's command lines of one successful `make check`."""
        log = self.root / "pip.log"
        log.unlink(missing_ok=True)
        done = self.make("check", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_help_lists_every_target(checkout: Checkout) -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = {target for line in re.findall(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE) for target in line.split()}
    for arguments in ((), ("help",)):
        done = checkout.make(*arguments)
        assert done.returncode == 0, done.stderr
        listed = re.findall(r"^  make (\S+) +\S", done.stdout, flags=re.MULTILINE)
        assert set(listed) == phony
        assert len(listed) == len(phony)
    assert {"reproduce", "test", "check", "format", "lab", "doctor", "prepare", "report", "lock", "clean"} <= phony
    assert not (checkout.root / ".venv").exists()


def test_installs_once_pinned_and_without_recboles_dependencies(checkout: Checkout) -> None:
    installs = checkout.installs()
    assert all("--constraint requirements/constraints-cpu.txt" in line for line in installs)
    assert [line for line in installs if "-r requirements/cpu.in" in line and "--no-deps" not in line]
    assert [line for line in installs if line.endswith("--no-deps -r requirements/no-deps.in")]
    assert [line for line in installs if line.endswith("--no-deps --no-build-isolation --editable .")]
    assert checkout.installs() == []


def test_content_counts_not_file_times(checkout: Checkout) -> None:
    checkout.installs()
    for path in checkout.root.rglob("*.*"):
        os.utime(path)
    assert checkout.installs() == []
    with (checkout.root / "requirements" / "common.in").open("a") as file:
        file.write("polars\n")
    assert len(checkout.installs()) == 4


def test_a_change_of_the_project_alone_reinstalls_only_the_project(checkout: Checkout) -> None:
    checkout.installs()
    with (checkout.root / "pyproject.toml").open("a") as file:
        file.write("\n")
    (only,) = checkout.installs()
    assert only.endswith("--editable .")


def test_an_interrupted_installation_starts_over(checkout: Checkout) -> None:
    (checkout.root / "broken").touch()
    assert checkout.make("check").returncode != 0
    (checkout.root / ".venv" / "left-over").touch()
    (checkout.root / "broken").unlink()
    assert len(checkout.installs()) == 4
    assert not (checkout.root / ".venv" / "left-over").exists()


def test_accelerator_follows_the_machine_and_can_be_forced(checkout: Checkout) -> None:
    smi = checkout.root / "bin" / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)'\n")
    smi.chmod(0o755)
    assert [line for line in checkout.installs() if "-r requirements/cuda.in" in line]
    assert [line for line in checkout.installs("ACCELERATOR=cpu") if "-r requirements/cpu.in" in line]
    smi.write_text("#!/bin/sh\necho 'No devices found'\n")
    assert checkout.installs("ACCELERATOR=auto") == []
    done = checkout.make("check", "ACCELERATOR=tpu")
    assert done.returncode == 2
    assert "ACCELERATOR=tpu is unknown: use auto, cpu or cuda" in done.stderr


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="these tests do not run in a virtual environment")
def test_an_activated_environment_is_no_other_python(checkout: Checkout) -> None:
    stamps = set()
    for python in (sys.executable, sys._base_executable):
        planned = checkout.make("--dry-run", "check", python=python).stdout
        stamps.update(re.findall(r"touch (\.venv/packages-\S+)", planned))
        assert f"{os.path.realpath(sys._base_executable)} -m venv .venv" in planned
    assert len(stamps) == 1


@pytest.mark.parametrize("version", ["3.10", None])
def test_an_old_or_missing_python_is_one_clear_line(checkout: Checkout, version: str | None) -> None:
    python = checkout.root / "bin" / "old"
    if version:
        python.write_text('#!/bin/sh\ncase "$*" in *3, 11*) exit 1 ;; *) echo /usr/bin/python3 3.10.1 ;; esac\n')
        python.chmod(0o755)
    done = checkout.make("test", python="old")
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if "***" not in line]
    assert said == ["make: PYTHON=old is not Python 3.11 or newer; name one that is, e.g. make test PYTHON=python3.11"]
    assert not (checkout.root / ".venv").exists()


def test_clean_and_distclean_remove_only_what_can_be_made_again(checkout: Checkout) -> None:
    for name in ("results/a", "data/prepared/b", "data/raw/mine", ".venv/c", "repro/__pycache__/d"):
        path = checkout.root / name
        path.parent.mkdir(parents=True)
        path.touch()
    assert checkout.make("clean").returncode == 0
    assert not (checkout.root / "results").exists()
    assert (checkout.root / "data" / "prepared" / "b").exists()
    assert checkout.make("distclean").returncode == 0
    assert not (checkout.root / "data" / "prepared").exists()
    assert not (checkout.root / ".venv").exists()
    assert (checkout.root / "data" / "raw" / "mine").exists()
