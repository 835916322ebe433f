"""Without these a download could be cut short, swapped or repeated for hours without anyone noticing.

A web server on this machine breaks off, answers with errors, resumes at the wrong byte. Not covered: TLS, proxies, and
the publishers' own servers.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from pathlib import Path

import pytest
from prep_server import Site, serving

from data_prep import transfer
from data_prep.download import RemoteFile, fetch, recorded_sha256
from repro.errors import InputError

CONTENT = bytes(range(256)) * 4_000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "FIRST_WAIT", 0.0)
    monkeypatch.setenv("no_proxy", "*")


def _file(root: Path, url: str | None = None, checksum: str | None = f"sha256:{SHA256}", **more: bool) -> RemoteFile:
    return RemoteFile(
        folder=root / "set", name="log.zip", url=url, page="https://example.org", checksum=checksum, **more
    )


def _fetch(root: Path, site: Site, said: list[str] | None = None) -> RemoteFile:
    file = _file(root, f"{site.url}/log.zip")
    assert fetch(file, "free", None, (said if said is not None else []).append) == SHA256
    assert file.path.read_bytes() == CONTENT
    assert sorted(path.name for path in file.folder.iterdir()) == ["log.zip", "log.zip.json"]
    return file


def test_once_is_enough_and_licence_and_origin_are_recorded(tmp_path: Path) -> None:
    with serving({"log.zip": CONTENT}) as site:
        file = _fetch(tmp_path, site)
        record = json.loads(file.record.read_text())
        assert (record["url"], record["sha256"], record["licence"]) == (file.url, SHA256, "free")
        _fetch(tmp_path, site)
        assert len(site.requests) == 1
    assert recorded_sha256(file) == SHA256
    file.path.write_bytes(CONTENT + b"x")
    assert recorded_sha256(file) is None


def test_a_cut_connection_is_resumed(tmp_path: Path) -> None:
    with serving({"log.zip": CONTENT}) as site:
        site.cut_after = [300_000, 0, 200_000]
        said: list[str] = []
        _fetch(tmp_path, site, said)
    assert [wanted for _, wanted in site.requests] == [None, "bytes=300000-", "bytes=300000-", "bytes=500000-"]
    assert any("cut after 300,000 of 1,024,000 bytes; again in" in line for line in said)


def test_an_interrupted_download_goes_on_the_next_time(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "log.zip.part").write_bytes(CONTENT[:1000])
    with serving({"log.zip": CONTENT}) as site:
        _fetch(tmp_path, site)
    assert site.requests == [("/log.zip", "bytes=1000-")]


def test_a_whole_partial_file(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "log.zip.part").write_bytes(CONTENT)
    with serving({"log.zip": CONTENT}) as site:
        _fetch(tmp_path, site)
    assert len(site.requests) == 1


@pytest.mark.parametrize("shift", [0, 7, -7])
def test_a_server_that_cannot_resume_starts_over(tmp_path: Path, shift: int) -> None:
    with serving({"log.zip": CONTENT}) as site:
        site.cut_after = [300_000]
        site.has_ranges = shift != 0
        site.range_shift = shift
        _fetch(tmp_path, site)


def test_a_partial_file_longer_than_the_whole(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "log.zip.part").write_bytes(CONTENT + CONTENT)
    with serving({"log.zip": CONTENT}) as site:
        _fetch(tmp_path, site)


def test_passing_errors_are_waited_out(tmp_path: Path) -> None:
    with serving({"log.zip": CONTENT}) as site:
        site.errors = [503, 429, 500]
        _fetch(tmp_path, site)


@pytest.mark.parametrize(("code", "tries"), [(404, 1), (403, 1), (503, transfer.TRIES)])
def test_lasting_errors_say_what_to_do(tmp_path: Path, code: int, tries: int) -> None:
    with serving({"log.zip": CONTENT}) as site:
        site.errors = [code] * 20
        with pytest.raises(InputError, match=rf"HTTP {code}") as caught:
            _fetch(tmp_path, site)
        assert len(site.requests) == tries
    assert f"put it at {tmp_path / 'set' / 'log.zip'}, or name its folder or URL with --from" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_network_says_what_to_do(tmp_path: Path) -> None:
    with serving({}) as site:
        pass  # nobody listens there any more
    with pytest.raises(InputError, match=r"cannot be downloaded from .*refused.*put it at"):
        _fetch(tmp_path, site)
    assert not list((tmp_path / "set").iterdir())


def test_an_unknown_host_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise transfer.urllib.error.URLError(transfer.socket.gaierror(-2, "Name or service not known"))

    monkeypatch.setattr(transfer._OPENER, "open", unknown)
    monkeypatch.setattr(transfer.time, "sleep", lambda _: pytest.fail("waited"))
    with pytest.raises(InputError, match=r"no network\? .*put it at"):
        fetch(_file(tmp_path, "https://example.invalid/log.zip"), "free", None, lambda _: None)


def test_without_a_url(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be downloaded without an account; get log\.zip from"):
        fetch(_file(tmp_path), "free", None, print)


def test_from_https_to_anything_less_is_refused(tmp_path: Path) -> None:
    request = transfer.urllib.request.Request("https://example.org/log.zip")
    handler = transfer._NoDowngrade()
    with pytest.raises(transfer._Failure, match="redirects from https to http"):
        handler.redirect_request(request, None, 302, "Found", {}, "http://example.org/log.zip")
    assert handler.redirect_request(request, None, 302, "Found", {}, "https://cdn.example.org/log.zip") is not None


def test_redirects_are_followed(tmp_path: Path) -> None:
    with serving({"log.zip": CONTENT}) as target, serving({"log.zip": b""}) as site:
        site.redirect = f"{target.url}/log.zip"
        _fetch(tmp_path, site)


def test_two_processes_do_not_mix(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    with (tmp_path / "set" / "log.zip.part").open("ab") as held, serving({"log.zip": CONTENT}) as site:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another process is downloading it"):
            _fetch(tmp_path, site)


def test_a_disk_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = transfer.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(transfer.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with (
        serving({"log.zip": CONTENT}) as site,
        pytest.raises(InputError, match=r"needs 1,024,000 more bytes, 1,000 are"),
    ):
        _fetch(tmp_path, site)


@pytest.mark.parametrize("checksum", [f"sha256:{'0' * 64}", f"md5:{'0' * 32}"])
def test_another_checksum_is_refused(tmp_path: Path, checksum: str) -> None:
    file = _file(tmp_path, checksum=checksum)
    file.folder.mkdir()
    file.path.write_bytes(CONTENT)
    with pytest.raises(InputError, match=r"is not the one published .*remove it"):
        fetch(file, "free", None, lambda _: None)
    assert not file.record.exists()


def test_a_published_md5(tmp_path: Path) -> None:
    file = _file(tmp_path, checksum=f"md5:{hashlib.md5(CONTENT).hexdigest()}")
    file.folder.mkdir()
    file.path.write_bytes(CONTENT)
    assert fetch(file, "free", None, lambda _: None) == SHA256


def test_a_file_that_its_publisher_replaces(tmp_path: Path) -> None:
    file = _file(tmp_path, checksum=f"sha256:{'0' * 64}", changes=True)
    file.folder.mkdir()
    file.path.write_bytes(CONTENT)
    said: list[str] = []
    assert fetch(file, "free", None, said.append) == SHA256
    assert any(line.startswith("warning: ") for line in said)


def test_without_a_published_checksum_the_first_one_counts(tmp_path: Path) -> None:
    file = _file(tmp_path, checksum=None)
    file.folder.mkdir()
    file.path.write_bytes(CONTENT)
    said: list[str] = []
    fetch(file, "free", None, said.append)
    assert any("no checksum is published" in line and SHA256 in line for line in said)
    file.path.write_bytes(CONTENT[:-1])
    with pytest.raises(InputError, match="is not the one recorded when it was first seen"):
        fetch(file, "free", None, said.append)


@pytest.mark.parametrize("folder", [".", "set"])
def test_from_a_folder(tmp_path: Path, folder: str) -> None:
    theirs = tmp_path / "mirror" / folder / "log.zip"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(CONTENT)
    file = _file(tmp_path)
    assert fetch(file, "free", str(tmp_path / "mirror"), lambda _: None) == SHA256
    assert file.path.is_symlink()
    assert file.path.read_bytes() == CONTENT
    assert fetch(file, "free", None, lambda _: None) == SHA256
    with pytest.raises(InputError, match=r"nothing.*log.zip: missing; get log.zip from"):
        fetch(file, "free", str(tmp_path / "nothing"), lambda _: None)


def test_from_another_url(tmp_path: Path) -> None:
    with serving({"mirror/log.zip": CONTENT}) as site:
        file = _file(tmp_path, "https://example.invalid/log.zip")
        assert fetch(file, "free", f"{site.url}/mirror/", lambda _: None) == SHA256


def test_a_file_put_there_by_hand_is_not_downloaded(tmp_path: Path) -> None:
    file = _file(tmp_path, "https://example.invalid/log.zip")
    file.folder.mkdir()
    file.path.write_bytes(CONTENT)
    assert fetch(file, "free", None, lambda _: None) == SHA256
