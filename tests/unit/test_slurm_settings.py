"""Without these a Slurm setting could run as shell code or add a directive of its own, a misspelt key be ignored, or a
refusal leave the user to guess which setting it means.

Not covered: what other versions of Slurm say; the texts here are those of 22.05.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.errors import InputError
from repro.launch.sbatch import render
from repro.launch.slurm_settings import SlurmSettings, blamed, parse_settings

ROOT = Path(__file__).resolve().parents[2]
KEYS = [field.name for field in fields(SlurmSettings)]


def script(settings: SlurmSettings) -> list[str]:
    return render("x", 16, ["worker"], settings, Path("/logs"), Path("/code"), None).splitlines()


@given(st.sampled_from(KEYS), st.text(max_size=20))
def test_a_setting_adds_its_directives_or_is_refused(key: str, value: str) -> None:
    """Lines that are new in the script are `#SBATCH` lines with the value, one a setting or flag, or say the number."""
    try:
        found = script(parse_settings([f"{key}={value}"]))
    except InputError as error:
        assert "\n" not in str(error)
        return
    new = [line for line in found if line not in script(SlurmSettings())]
    assert len(found) - len(script(SlurmSettings())) <= max(2, len(value.split(" ")))
    for line in new:
        number = key in ("ranks_per_node", "cpus_per_task", "gpus_per_node") and str(int(value)) in line
        named = key == "interface" and line.endswith(f"_SOCKET_IFNAME={value}")
        flag = key == "extra" and line.removeprefix("#SBATCH ") in value.split(" ")
        assert number or named or flag or line == f"#SBATCH --{key}={value}"


@given(st.sampled_from([key for key in KEYS if key not in ("extra",)]), st.text(min_size=1, max_size=12))
def test_a_value_of_more_than_safe_characters_is_refused(key: str, value: str) -> None:
    if not set(value) & set("; \n\t$`'\"\\<>#!{}~"):
        return
    with pytest.raises(InputError):
        parse_settings([f"{key}={value}"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("colour=red", "KEY one of partition, account"),
        ("partition", "must be KEY=VALUE"),
        ("partition=", "or is empty"),
        ("partition=a;b", "cannot carry safely"),
        ("partition=$(id)", "cannot carry safely"),
        ("partition=a\n#SBATCH --wrap=id", "cannot carry safely"),
        ("ranks_per_node=0", "whole number"),
        ("extra=--wrap=id", "set by the launcher"),
        ("extra=--export=ALL", "set by the launcher"),
        ("extra=exclusive", "must be --name"),
    ],
)
def test_bad_settings_are_named(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_settings([text])


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text('partition = "gpu"\ntime = 30\nranks_per_node = 4\nextra = ["--exclusive", "--mem=0"]\n')
    assert parse_settings(["partition=debug", "extra=--comment=x"], file) == SlurmSettings(
        partition="debug", time="30", ranks_per_node=4, extra=("--exclusive", "--mem=0", "--comment=x")
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('colour = "red"', "site.toml: colour = red: unknown key"),
        ("partition = [", "not TOML"),
        ('partition = ["a"]', "must be a text"),
        ("ranks_per_node = true", "must be a text"),
        ("ranks_per_node = -1", "site.toml: ranks_per_node = -1: must be a whole number"),
        ('[partition]\nname = "gpu"', "must be a text"),
        ('account = "a; rm -rf /"', "cannot carry safely"),
        ('extra = ["--exclusive --mem=0; id"]', "must be --name"),
        ("\xff", "not TOML"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "site.toml"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=message):
        parse_settings([], file)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--executor", "slurm", "--slurm-file", "absent.toml"), "absent.toml: cannot be read"),
        (("--slurm-file", "absent.toml"), "are for --executor slurm"),
        (("--slurm", "partition=gpu"), "are for --executor slurm"),
    ],
)
def test_both_commands_end_with_one_line(arguments: tuple[str, ...], says: str) -> None:
    for command in (("run", "ladder"), ("reproduce",)):
        done = subprocess.run(
            [sys.executable, "-m", "repro.cli", *command, *arguments, "--dry-run"],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        assert done.returncode == 2 and done.stdout == ""
        assert len(done.stderr.splitlines()) == 1 and says in done.stderr


@pytest.mark.parametrize(
    ("said", "setting"),
    [
        ("Invalid partition name specified", "--slurm partition=gpu"),
        ("Invalid account or account/partition combination specified", "--slurm account=... (not given)"),
        ("Invalid qos specification", "--slurm qos=... (not given) or account=... (not given)"),
        ("Invalid feature specification", "--slurm constraint=a100"),
        ("Invalid --time specification", "--slurm time=x"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "--slurm time=x"),
        ("Invalid generic resource (gres) specification", "--slurm gpus_per_node=8"),
        ("Requested node configuration is not available", "--slurm ranks_per_node=8 or cpus_per_task=1 or gpus_per"),
        ("CPU count specification invalid", "--slurm cpus_per_task=1"),
        ("unrecognized option '--foo'", "--slurm extra=--foo --bar=1"),
        ("Invalid --begin specification", "--slurm extra=--foo --bar=1"),
        ("Access/permission denied", "--slurm KEY=VALUE"),
    ],
)
def test_the_setting_that_slurm_refused(said: str, setting: str) -> None:
    settings = SlurmSettings(partition="gpu", constraint="a100", time="x", gpus_per_node=8, extra=("--foo", "--bar=1"))
    assert blamed(said, settings).startswith(setting)
