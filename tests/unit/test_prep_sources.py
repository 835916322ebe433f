"""Without these a public data set in a format that changed, or a damaged one, would be trained on in silence.

Every source reads a file of its official format, made here and served by a web server on this machine. Not covered: the
real archives, which nobody may redistribute and this project's tests do not download.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prep_raw import FORMATS, Format, Rows, sha256, source_of
from prep_server import serving

from data_prep import sources, transfer
from data_prep.event_log import EventLog
from data_prep.prepare import prepare_source
from data_prep.published import Figure, Published
from repro.data.dataset import PreparedDataset
from repro.data.schema import read_manifest
from repro.errors import InputError

TEXT = [form for form in FORMATS if form.is_text]
NAMED = [form for form in TEXT if form.name not in ("movielens-1m", "taobao", "amazon-books-full")]


def by_name(form: Format) -> str:
    return form.name


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "FIRST_WAIT", 0.0)
    monkeypatch.setenv("no_proxy", "*")


def _prepare(
    form: Format, root: Path, content: bytes, *, checksum: str | None = None, said: list[str] | None = None
) -> Path:
    source = source_of(form, root / "raw", checksum=checksum)
    with serving({source.remote[0].name: content}) as site:
        return prepare_source(
            source,
            root / "prepared",
            key_path=root / "key",
            mirror=site.url,
            log=(said if said is not None else []).append,
        )


def _events(form: Format, root: Path, content: bytes) -> list[tuple[object, ...]]:
    """What the source reads, in its order."""
    source = source_of(form, root / "raw")
    source.remote[0].folder.mkdir(parents=True, exist_ok=True)
    source.remote[0].path.write_bytes(content)
    return [event for part in source.read() for event in _tuples(part)]


def _tuples(part: EventLog) -> Iterator[tuple[object, ...]]:
    columns = [part.user, part.item, part.time, part.label, part.actions["action"]]
    plain = [column.to_pylist() if isinstance(column, pa.Array) else column.tolist() for column in columns]
    return zip(*plain, strict=True)


def _set(form: Format, row: int, column: str, value: str) -> Rows:
    rows = [list(row) for row in form.rows]
    rows[row][form.header.index(column)] = value
    return rows


def _refused(form: Format, root: Path, content: bytes, *, checksum: str | None = None) -> str:
    """The message of the refusal: one line that names the file; nothing is left half-written."""
    with pytest.raises(InputError) as caught:
        _prepare(form, root, content, checksum=checksum)
    message = str(caught.value)
    assert "\n" not in message
    assert source_of(form, root / "raw").remote[0].name in message
    assert not (root / "prepared").exists() or not list((root / "prepared").iterdir())
    return message


@pytest.mark.parametrize("form", FORMATS, ids=by_name)
def test_official_format(form: Format, tmp_path: Path) -> None:
    content = form.pack(form.header, form.rows)
    events = _events(form, tmp_path / "direct", content)
    assert sorted(events, key=lambda event: str(event)) == sorted(form.events, key=lambda event: str(event))

    said: list[str] = []
    folder = _prepare(form, tmp_path, content, checksum=sha256(content), said=said)
    dataset = PreparedDataset.open(folder)
    manifest = read_manifest(folder)
    assert manifest.events == len(form.events)
    assert manifest.users == len({event[0] for event in form.events})
    assert dataset.event_time.max() == max(event[2] for event in form.events)
    assert manifest.licence == form.source(tmp_path).licence
    assert any(manifest.licence in line for line in said)
    assert manifest.inputs == {source_of(form, tmp_path).remote[0].name: sha256(content).removeprefix("sha256:")}
    assert sorted(path.name for path in (tmp_path / "prepared").iterdir()) == [form.name]


@pytest.mark.parametrize("form", FORMATS, ids=by_name)
def test_a_users_id_is_neither_written_nor_said(form: Format, tmp_path: Path) -> None:
    secret = "918273645" if form.events[0][0] != _REVIEWER else "ZZTOPSECRETZZ"
    rows = [list(row) for row in form.rows]
    place = form.header.index(form.user)
    for row in rows:
        if row[place] == form.rows[0][place]:
            row[place] = secret
    said: list[str] = []
    folder = _prepare(form, tmp_path, form.pack(form.header, rows), said=said)
    assert not [line for line in said if secret in line]
    for path in folder.iterdir():
        content = path.read_bytes()
        assert secret.encode() not in content
        if path.suffix == ".parquet" and secret.isdigit():
            assert int(secret) not in pq.read_table(path)["user"].to_pylist()
            assert int(secret).to_bytes(8, "little") not in content
    if form.is_text:
        bad = [
            *rows[:-1],
            [secret + " x" if name == form.user else value for name, value in zip(form.header, rows[-1], strict=True)],
        ]
        if not secret.isdigit():
            bad[-1][form.header.index(form.time)] = "x"
        assert secret not in _refused(form, tmp_path / "bad", form.pack(form.header, bad))


_REVIEWER = "AFKZENTNBQ7A7V7UXW5JJI6UGRYQ"


@pytest.mark.parametrize("form", [*NAMED, *(form for form in FORMATS if not form.is_text)], ids=by_name)
def test_columns_in_another_order_and_more_of_them(form: Format, tmp_path: Path) -> None:
    header = [*reversed(form.header), "new"]
    rows = [[*reversed(row), "7"] for row in form.rows]
    assert _events(form, tmp_path, form.pack(header, rows)) == _events(
        form, tmp_path / "other", form.pack(form.header, form.rows)
    )


@pytest.mark.parametrize("form", [*NAMED, *(form for form in FORMATS if not form.is_text)], ids=by_name)
def test_a_missing_column(form: Format, tmp_path: Path) -> None:
    place = form.header.index(form.time)
    header = ["other" if name == form.time else name for name in form.header]
    assert f"no column {form.time}" in _refused(form, tmp_path, form.pack(header, form.rows))
    assert place >= 0


@pytest.mark.parametrize("form", TEXT, ids=by_name)
def test_bad_values_name_line_and_field(form: Format, tmp_path: Path) -> None:
    for number, (value, word) in enumerate((("", "got nothing"), ("x", "must be"), (form.future, "must be"))):
        message = _refused(form, tmp_path / str(number), form.pack(form.header, _set(form, 0, form.time, value)))
        if form.name == "amazon-books-full" and value in ("", "x"):
            assert f"line {form.line}: not JSON" in message
        else:
            assert f"line {form.line}: {form.time} must be" in message
            assert word in message
    if form.name != "taobao":
        message = _refused(form, tmp_path / "negative", form.pack(form.header, _set(form, 0, form.time, "-5")))
        assert f"line {form.line}: {form.time} must be" in message


@pytest.mark.parametrize("form", [form for form in TEXT if form.name != "amazon-books-full"], ids=by_name)
def test_too_few_fields(form: Format, tmp_path: Path) -> None:
    rows = [form.rows[0][:-1], *form.rows[1:]]
    message = _refused(form, tmp_path, form.pack(form.header, rows))
    assert f"line {form.line}: {len(form.header) - 1} fields instead of {len(form.header)}" in message


@pytest.mark.parametrize("form", [form for form in TEXT if form.name != "amazon-books-full"], ids=by_name)
def test_bytes_that_are_not_text(form: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _set(form, 0, form.time, "1\udcff")
    with monkeypatch.context() as patch:
        patch.setattr("prep_raw.lines", _raw_lines)
        content = form.pack(form.header, rows)
    message = _refused(form, tmp_path, content)
    assert f"line {form.line}: {form.time} is not UTF-8 text; convert the file" in message


def _raw_lines(rows: Rows, delimiter: str = ",") -> bytes:
    return "".join(f"{delimiter.join(row)}\n" for row in rows).encode(errors="surrogateescape")


@pytest.mark.parametrize("form", FORMATS, ids=by_name)
def test_no_events(form: Format, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no events|is empty"):
        _prepare(form, tmp_path, form.pack(form.header, []))
    assert not list((tmp_path / "prepared").iterdir())


@pytest.mark.parametrize("form", FORMATS, ids=by_name)
def test_an_empty_truncated_or_damaged_file(form: Format, tmp_path: Path) -> None:
    rows = form.rows * 50
    content = form.pack(form.header, rows)
    assert "get it again" in _refused(form, tmp_path / "empty", b"") or form.name.startswith("amazon")
    for size in (20, len(content) // 2, len(content) - 10):
        message = _refused(form, tmp_path / str(size), content[:size])
        assert "get" in message
    damaged = bytearray(content)
    for place in range(len(content) // 3, len(content) // 3 + 20):
        damaged[place] ^= 0xFF
    if form.is_text:  # of Parquet without page checksums, damaged values may be good ones
        _refused(form, tmp_path / "damaged", bytes(damaged))


@pytest.mark.parametrize("form", FORMATS, ids=by_name)
def test_a_wrong_checksum(form: Format, tmp_path: Path) -> None:
    content = form.pack(form.header, form.rows)
    message = _refused(form, tmp_path, content, checksum=sha256(content + b" "))
    assert "is not the one published" in message


@pytest.mark.parametrize("form", FORMATS, ids=by_name)
def test_duplicates_are_kept_and_disorder_is_sorted_both_are_counted(form: Format, tmp_path: Path) -> None:
    said: list[str] = []
    users = [event[0] for event in form.events]
    last = max(event[2] for event in form.events if users.count(event[0]) > 1)
    again = next(row for row in form.rows if int(row[form.header.index(form.time)]) in (last, last // 1000))
    content = form.pack(form.header, [*form.rows, again])
    manifest = read_manifest(_prepare(form, tmp_path, content, said=said))
    assert manifest.quality["duplicate_events"] == 1
    assert manifest.events == len(form.events) + 1
    assert any("duplicate events: 1" in line for line in said)
    if form.name == "taobao":
        assert manifest.quality["events_outside_the_nine_days"] == 2
    times = [event[2] for event in form.events if event[0] == form.events[0][0]]
    if times != sorted(times) and not form.name.startswith("kuairand"):
        assert manifest.quality["out_of_order_events"] >= 1


def test_equal_times_keep_the_files_order(tmp_path: Path) -> None:
    form = next(form for form in FORMATS if form.name == "yambda-50m")
    dataset = PreparedDataset.open(_prepare(form, tmp_path, form.pack(form.header, form.rows)))
    # Users by their first event: 200, then 100, whose first two events are of one time.
    assert dataset.event_time.tolist() == [5_000, 10_000, 39_420_000, 39_420_000, 39_425_000]
    assert dataset.event_feature("item").tolist() == [0, 1, 2, 0, 2]
    assert np.all(dataset.event_time[dataset.uih_end - 1] < dataset.request_time)


def test_the_later_log_first_gives_the_same(tmp_path: Path) -> None:
    form = next(form for form in FORMATS if form.name == "kuairand-1k")
    dataset = PreparedDataset.open(_prepare(form, tmp_path, form.pack(form.header, form.rows)))
    assert dataset.event_time.tolist() == [1_649_379_600_456, 1_650_600_000_123, 1_649_466_000_000]


@pytest.mark.parametrize("form", FORMATS, ids=by_name)
def test_published_figures_decide(form: Format, tmp_path: Path) -> None:
    """The real figures are asserted: a small file is refused, except where they are expected to change."""
    content = form.pack(form.header, form.rows)
    source = dataclasses.replace(source_of(form, tmp_path / "raw"), published=form.source(tmp_path).published)
    source.remote[0].folder.mkdir(parents=True)
    source.remote[0].path.write_bytes(content)
    said: list[str] = []
    if form.name in ("movielens-latest-small", "amazon-books-full"):
        prepare_source(source, tmp_path / "prepared", key_path=tmp_path / "key", log=said.append)
        assert form.name == "amazon-books-full" or any(
            "warning: movielens-latest-small: events is 3" in s for s in said
        )
        return
    with pytest.raises(InputError, match=rf"{form.name}: events is \d, published is [0-9,]+; remove .* get it again"):
        prepare_source(source, tmp_path / "prepared", key_path=tmp_path / "key", log=said.append)
    assert not list((tmp_path / "prepared").iterdir())


def test_figures_are_compared_as_they_are_published(tmp_path: Path) -> None:
    form = FORMATS[0]
    source = source_of(form, tmp_path / "raw")
    source.remote[0].folder.mkdir(parents=True)
    source.remote[0].path.write_bytes(form.pack(form.header, form.rows))
    figures = (
        Figure(name="events", value=3), Figure(name="users", value=2), Figure(name="mean", value=2),
        Figure(name="longest", value=2.1, within=0.1), Figure(name="median", value=90, sure=False),
    )  # fmt: skip
    said: list[str] = []
    source = dataclasses.replace(source, published=Published(figures=figures, fix="sigh"))
    prepare_source(source, tmp_path / "prepared", key_path=tmp_path / "key", log=said.append)
    assert [line for line in said if "warning" in line] == [
        "warning: movielens-1m: median is 1.5, published is 90 (not sure)"
    ]


def test_a_data_set_outlives_its_raw_files(tmp_path: Path) -> None:
    form = FORMATS[0]
    source = source_of(form, tmp_path / "raw")
    folder = _prepare(form, tmp_path, form.pack(form.header, form.rows))
    source.remote[0].path.unlink()
    said: list[str] = []
    prepare_source(source, tmp_path / "prepared", key_path=tmp_path / "key", log=said.append)
    assert said == [f"movielens-1m: already prepared in {folder}"]


def test_every_name_is_a_source(tmp_path: Path) -> None:
    assert {form.name for form in FORMATS} <= set(sources.names())
    for form in FORMATS:
        with pytest.raises(InputError, match="missing") as caught:
            sources.prepare(form.name, tmp_path / "prepared", key_path=tmp_path / "key", mirror=str(tmp_path),
                            log=lambda _: None)  # fmt: skip
        assert f"put it at {tmp_path / 'raw' / form.name}" in str(caught.value)
