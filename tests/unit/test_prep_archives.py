"""Without these an archive could write outside its folder, fill the disk, or pass a damaged log off as a whole one.

Not covered: archives of other kinds than zip, tar.gz and gz, which no source has.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from prep_raw import tarred, zipped

from data_prep import archives
from data_prep.archives import RawFile, open_members
from repro.errors import InputError

LOG = b"userId,movieId\n1,2\n" * 100
WANTED = (r"ratings\.csv",)


def _read(path: Path, content: bytes, members: tuple[str, ...] = WANTED, **more: dict[str, str]) -> dict[str, bytes]:
    path.write_bytes(content)
    file = RawFile(path=path, members=members, **more)
    return {label: stream.read() for label, stream in open_members(file)}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.zip", zipped("ml/ratings.csv", LOG, "ml/README")),
        ("a.tar.gz", tarred({"ml/README": b"x", "ml/ratings.csv": LOG, "ml/z": b""})),
        ("ratings.csv.gz", gzip.compress(LOG)),
        ("ratings.csv", LOG),
    ],
)
def test_a_member_is_read_in_place(tmp_path: Path, name: str, content: bytes) -> None:
    (read,) = _read(tmp_path / name, content).items()
    assert read[1] == LOG
    assert read[0].startswith(str(tmp_path / name))
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("pack", [lambda name: zipped(name, LOG), lambda name: tarred({name: LOG})])
@pytest.mark.parametrize("name", ["../ratings.csv", "/tmp/ratings.csv", "ml/../../ratings.csv", "..\\ratings.csv"])
def test_a_path_that_leaves_the_folder_is_refused(tmp_path: Path, pack: Callable[[str], bytes], name: str) -> None:
    content = pack(name)
    path = tmp_path / ("a.zip" if content[:2] == b"PK" else "a.tar.gz")
    with pytest.raises(InputError, match="lies outside the archive's folder"):
        _read(path, content)
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_other_members_are_never_written(tmp_path: Path) -> None:
    _read(tmp_path / "a.zip", zipped("ml/ratings.csv", LOG, "../evil", "/evil"))
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]
    assert not (tmp_path.parent / "evil").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_a_tar_are_refused(tmp_path: Path, kind: bytes) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo("ml/ratings.csv")
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(InputError, match=r"ml/ratings\.csv: is a link or a device"):
        _read(tmp_path / "a.tar.gz", buffer.getvalue())


def test_links_in_a_zip_are_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        member = zipfile.ZipInfo("ml/ratings.csv")
        member.external_attr = 0o120777 << 16
        archive.writestr(member, "/etc/passwd")
    with pytest.raises(InputError, match="is a link"):
        _read(tmp_path / "a.zip", buffer.getvalue())


@pytest.mark.parametrize("kind", ["zip", "tar.gz", "csv.gz"])
@pytest.mark.parametrize("limit", ["ratio", "size"])
def test_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, limit: str) -> None:
    monkeypatch.setattr(archives, "ALWAYS_ALLOWED", 1 << 20)
    bomb = bytes(16 << 20)
    if limit == "size":
        monkeypatch.setattr(archives, "MAX_RATIO", 10**6)
        monkeypatch.setattr(archives, "MAX_BYTES", 1 << 20)
    pack = {
        "zip": lambda: zipped("ratings.csv", bomb),
        "tar.gz": lambda: tarred({"ratings.csv": bomb}),
        "csv.gz": lambda: gzip.compress(bomb),
    }[kind]
    with pytest.raises(InputError, match=r"unpacks to more than [0-9,]+ bytes"):
        _read(tmp_path / f"ratings.{kind}", pack())


def test_a_zip_that_lies_about_its_size(tmp_path: Path) -> None:
    content = bytearray(zipped("ratings.csv", LOG))
    at = content.rindex(b"PK\x01\x02")
    content[at + 24 : at + 28] = (7).to_bytes(4, "little")
    with pytest.raises(InputError, match="damaged or cut short"):
        _read(tmp_path / "a.zip", bytes(content))


def test_encrypted(tmp_path: Path) -> None:
    content = bytearray(zipped("ratings.csv", LOG))
    content[content.rindex(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(InputError, match="is encrypted"):
        _read(tmp_path / "a.zip", bytes(content))


def test_missing_and_double_members(tmp_path: Path) -> None:
    for name, content in ("a.zip", zipped("ml/other.csv", LOG)), ("a.tar.gz", tarred({"ml/other.csv": LOG})):
        with pytest.raises(InputError, match=r"has no member ratings\.csv; remove .* and get the official file"):
            _read(tmp_path / name, content)
    for name, content in (
        ("a.zip", zipped("a/ratings.csv", LOG, "b/ratings.csv")),
        ("a.tar.gz", tarred({"a/ratings.csv": LOG, "b/ratings.csv": LOG})),
    ):
        with pytest.raises(InputError, match=r"two members are called ratings\.csv"):
            _read(tmp_path / name, content)


def test_a_members_md5(tmp_path: Path) -> None:
    content = zipped("ml/ratings.csv", LOG)
    _read(tmp_path / "a.zip", content, md5={"ratings.csv": hashlib.md5(LOG).hexdigest()})
    with pytest.raises(InputError, match=r"ml/ratings\.csv: md5 .* is not the published 0+"):
        _read(tmp_path / "a.zip", content, md5={"ratings.csv": "0" * 32})


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "a.csv.gz"])
def test_no_archive_at_all(tmp_path: Path, name: str) -> None:
    for content in (b"<html>log in first</html>", b"\0" * 2000):
        with pytest.raises(InputError, match=rf"{name}.*(damaged|no member)") as caught:
            _read(tmp_path / name, content)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=r"a\.zip: cannot be read"):
        list(open_members(RawFile(path=tmp_path / "gone" / "a.zip")))
