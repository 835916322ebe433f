"""Without this, a profile could hold wrong latencies and bandwidths, lose something on its way through the file, or be
written nowhere after a minute's work.

The real run is tiny: its numbers mean nothing, that they are there does. Not covered: a GPU.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from repro.calibration import Profile, calibrate, read_profile, table
from repro.calibration.collectives import fits
from repro.calibration.fit import alpha_beta
from repro.calibration.missing import missing
from repro.calibration.profile import CollectiveTime, spread
from repro.calibration.setting import Setting
from repro.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
SIZES = (4096, 65_536, 1 << 20, 16 << 20)
TINY = Setting(
    repeats=3,
    copy_bytes=4096,
    launches=5,
    gemm=16,
    attention_tokens=(8,),
    attention_dim=8,
    table_rows=32,
    table_dim=8,
    lookups=16,
    world=2,
    collective_bytes=(1024, 65_536),
    chunk_bytes=(4096, 65_536),
)


# The fit


@pytest.mark.parametrize(("alpha_s", "beta_s_per_byte"), [(50e-6, 1e-9), (2e-3, 4e-8), (0.0, 1e-10)])
def test_a_line_is_recovered(alpha_s: float, beta_s_per_byte: float) -> None:
    line = alpha_beta(SIZES, [alpha_s + beta_s_per_byte * size for size in SIZES])
    assert line.alpha_s == pytest.approx(alpha_s, rel=1e-9, abs=1e-12)
    assert line.beta_s_per_byte == pytest.approx(beta_s_per_byte, rel=1e-9)
    assert line.residual < 1e-9
    assert line.seconds(SIZES[1]) == pytest.approx(alpha_s + beta_s_per_byte * SIZES[1])


def test_a_slow_large_message_does_not_hide_the_latency() -> None:
    """Plain least squares makes alpha -23 us of these."""
    seconds = [50e-6 + 1e-9 * size for size in SIZES]
    seconds[-1] *= 1.2
    line = alpha_beta(SIZES, seconds)
    assert line.alpha_s == pytest.approx(50e-6, rel=0.1)
    assert 0.01 < line.residual < 0.2


def test_what_is_no_line_says_so() -> None:
    assert alpha_beta(SIZES, [1e-3, 1e-5, 1e-3, 1e-5]).residual > 0.3


@pytest.mark.parametrize(("sizes", "seconds"), [((1024, 1024), (1.0, 2.0)), ((1024, 2048), (1.0, 0.0))])
def test_what_cannot_be_fitted_is_refused(sizes: tuple[int, ...], seconds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="alpha and beta need"):
        alpha_beta(sizes, seconds)


def test_transports_and_chunk_sizes_are_fitted_apart() -> None:
    betas = {("process_group", None): 1e-9, ("host_ring", 4096): 2e-9, ("host_ring", 65_536): 3e-9}
    times = [
        CollectiveTime(
            transport=transport,
            chunk_bytes=chunk,
            collective="all_to_all",
            world=2,
            bytes=size,
            seconds=spread([1e-4 + beta * size] * 3),
        )
        for size in SIZES
        for (transport, chunk), beta in betas.items()
    ]
    found = {(fit.transport, fit.chunk_bytes): fit.beta_s_per_byte for fit in fits(times)}
    assert found == pytest.approx(betas)


def test_spread_is_median_and_quartiles() -> None:
    assert dataclasses.astuple(spread([5.0, 1.0, 2.0, 3.0, 4.0])) == (3.0, 2.0, 4.0, 5)


# A real run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Profile]:
    path = tmp_path_factory.mktemp("calibration") / "new" / "profile.json"
    return path, calibrate(path, cpu=TINY, cuda=TINY)


def test_a_profile_survives_its_file(made: tuple[Path, Profile]) -> None:
    path, profile = made
    assert read_profile(path) == profile
    assert [file.name for file in path.parent.iterdir()] == ["profile.json"]


def test_a_profile_has_what_it_promises(made: tuple[Path, Profile]) -> None:
    _, profile = made
    assert profile.mode == "measured"
    assert profile.commit and profile.versions["torch"] and profile.hardware["cpu"]
    operations = {rate.operation for rate in profile.rates if rate.device == "cpu"}
    assert operations == {"copy", "launch", "gemm", "attention", "elementwise", "embedding lookup"}
    ways = {("process_group", None), ("host_ring", 4096), ("host_ring", 65_536)}
    expected = {(*way, collective) for way in ways for collective in ("all_to_all", "all_gather")}
    expected.add(("process_group", None, "all_reduce"))
    assert {(fit.transport, fit.chunk_bytes, fit.collective) for fit in profile.fits} == expected
    assert len(profile.collectives) == len(expected) * len(TINY.collective_bytes)
    for measured in [*(rate.value for rate in profile.rates), *(row.seconds for row in profile.collectives)]:
        assert 0 < measured.lower <= measured.median <= measured.upper
        assert measured.repeats == TINY.repeats


def test_the_table_shows_every_number_and_every_gap(made: tuple[Path, Profile]) -> None:
    _, profile = made
    lines = table(profile).splitlines()
    assert len(lines) == 3 + sum(map(len, (profile.rates, profile.collectives, profile.fits, profile.missing)))


def test_without_a_gpu_its_numbers_are_missing_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    reasons = {gap.what: gap.reason for gap in missing()}
    for what in ("rates of a GPU, copies between host and device", "contention factor: SMs held"):
        assert reasons[what].startswith("no CUDA GPU")
    assert all(reasons.values())


# Bad files


def test_an_output_that_cannot_be_written_is_said_first_and_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for output in (tmp_path, tmp_path / "file" / "profile.json"):
        done = subprocess.run(
            [sys.executable, "-m", "repro.cli", "calibrate", "--output", str(output)],
            capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert str(output) in done.stderr and "--output" in done.stderr


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": 99}, "schema 99"),
        ({"mode": "simulated"}, "mode 'simulated'"),
        ({"rates": [{}]}, "not a profile"),
        ({"surplus": 1}, "not a profile"),
    ],
)
def test_what_is_no_profile_is_refused(
    made: tuple[Path, Profile], tmp_path: Path, change: dict[str, object], says: str
) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({**json.loads(made[0].read_text()), **change}))
    with pytest.raises(InputError, match=says) as error:
        read_profile(path)
    assert str(path) in str(error.value)


def test_a_profile_that_is_not_there_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_profile(tmp_path / "none.json")
