"""Without these a user's own log could be read wrongly: other columns, other times, ids that change their spelling.

Not covered: logs on remote file systems.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep import sources
from data_prep.own_log import own_log
from repro.cli import main
from repro.data.dataset import PreparedDataset
from repro.data.schema import read_manifest
from repro.errors import InputError

COLUMNS = "user=member,item=sku,time=ts,label=bought"
CSV = """ts,member,sku,bought,how
1700000300,ann,b-1,1,click
1700000100,bob,b-2,0,view
1700000100,ann,b-2,0,view
1700000200,ann,"b,3",0,cart
"""
TIMES = [1_700_000_100_000, 1_700_000_100_000, 1_700_000_200_000, 1_700_000_300_000]


def _prepare(root: Path, *events: str, columns: str = COLUMNS, unit: str = "s", name: str = "shop") -> PreparedDataset:
    log = own_log(name, list(events), columns, unit)
    folder = sources.prepare("csv", root / "prepared", key_path=root / "key", own=log, log=lambda _: None)
    return PreparedDataset.open(folder)


def _csv(root: Path, text: str, name: str = "log.csv") -> str:
    path = root / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(path)


@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_csv(tmp_path: Path, name: str, delimiter: str) -> None:
    text = CSV.replace('"b,3"', "b3").replace(",", delimiter).replace("b3", '"b,3"')
    dataset = _prepare(tmp_path, _csv(tmp_path, text, name), columns=f"{COLUMNS},action=how")
    assert sorted(dataset.event_time.tolist()) == TIMES
    # ann after bob (the earlier row of the same time); items by their text: b,3 b-1 b-2.
    assert dataset.event_feature("item").tolist() == [2, 2, 0, 1]
    assert dataset.event_feature("action").tolist() == [1, 1, 2, 0]
    assert [feature.vocabulary for feature in dataset.manifest.features] == [3, 3]
    assert dataset.manifest.parameters["columns"]["user"] == "member"


def test_without_an_action_the_action_is_the_label(tmp_path: Path) -> None:
    dataset = _prepare(tmp_path, _csv(tmp_path, CSV))
    assert dataset.event_feature("action").tolist() == [0, 0, 0, 1]


def test_a_label_by_comparison(tmp_path: Path) -> None:
    text = "u,i,r,t\n1,1,3.5,1\n1,2,4,2\n1,3,5,3\n"
    dataset = _prepare(tmp_path, _csv(tmp_path, text), columns="user=u,item=i,time=t,label=r>=4")
    assert dataset.label.tolist() == [1, 1]


@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 1_000), ("us", 10**6), ("ns", 10**9)])
def test_time_units(tmp_path: Path, unit: str, factor: int) -> None:
    text = f"member,sku,ts,bought\n1,1,{1_700_000_100 * factor},0\n1,2,{1_700_000_200 * factor},1\n"
    dataset = _prepare(tmp_path, _csv(tmp_path, text), unit=unit)
    assert dataset.event_time.tolist() == [1_700_000_100_000, 1_700_000_200_000]
    times = np.array([1_700_000_100, 1_700_000_200]) * factor
    table = pa.table({"member": [1, 1], "sku": ["a", "b"], "ts": times, "bought": [0, 1]})
    pq.write_table(table, tmp_path / "log.parquet")
    dataset = _prepare(tmp_path, str(tmp_path / "log.parquet"), unit=unit, name="as-parquet")
    assert dataset.event_time.tolist() == [1_700_000_100_000, 1_700_000_200_000]


@pytest.mark.parametrize(
    "texts",
    [
        ["2024-05-01T12:00:00Z", "2024-05-01T14:00:01+02:00"],
        ["2024-05-01 12:00:00", "2024-05-01 12:00:01.000"],
        ["2024-05-01", "2024-05-01T12:00:01"],
    ],
)
def test_times_in_text(tmp_path: Path, texts: list[str]) -> None:
    text = "member,sku,ts,bought\n" + "".join(f"1,{place},{time},1\n" for place, time in enumerate(texts))
    dataset = _prepare(tmp_path, _csv(tmp_path, text), unit="iso")
    noon = 1_714_564_800_000
    assert dataset.event_time.tolist() == [noon - (43_200_000 if len(texts[0]) == 10 else 0), noon + 1_000]


def test_parquet_timestamps_and_dictionaries(tmp_path: Path) -> None:
    for unit in ("s", "ms", "us", "ns"):
        times = pa.array([1_700_000_100, 1_700_000_200]).cast(pa.timestamp("s")).cast(pa.timestamp(unit))
        table = pa.table({
            "member": pa.array(["a", "a"]).dictionary_encode(), "sku": pa.array(["x", "y"], pa.large_string()),
            "ts": times, "bought": pa.array([False, True]),
        })  # fmt: skip
        pq.write_table(table, tmp_path / "log.parquet")
        dataset = _prepare(tmp_path, str(tmp_path / "log.parquet"), name=f"in-{unit}")
        assert dataset.event_time.tolist() == [1_700_000_100_000, 1_700_000_200_000]
        assert dataset.label.tolist() == [1]


def test_several_files_are_one_log(tmp_path: Path) -> None:
    head, *rows = CSV.splitlines(keepends=True)
    for place, row in enumerate(rows):
        folder = tmp_path / f"day={place}"
        folder.mkdir()
        (folder / "part.csv").write_text(head + row)
    dataset = _prepare(tmp_path, str(tmp_path / "day=*" / "part.csv"))
    whole = _prepare(tmp_path, _csv(tmp_path, CSV), name="whole")
    assert dataset.event_feature("item").tolist() == whole.event_feature("item").tolist()
    assert len(dataset.manifest.inputs) == 4


def test_ids_keep_their_spelling(tmp_path: Path) -> None:
    text = "member,sku,ts,bought\n007,1,1,0\n7,1,2,0\n007,01,3,1\n"
    assert read_manifest(_folder(_prepare(tmp_path, _csv(tmp_path, text)), tmp_path)).users == 2


def _folder(dataset: PreparedDataset, root: Path) -> Path:
    return root / "prepared" / dataset.name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("ann,b-1", ",b-1"), "line 2: member must be an id, got nothing"),
        (("bob,b-2", "bob,"), "line 3: sku must be an id, got nothing"),
        (("1700000200", ""), "line 5: ts must be seconds since 1970, none of them in the future, got nothing"),
        (("1700000200", "-1"), "line 5: ts must be .* got '-1'"),
        (("1700000200", "nan"), "line 5: ts must be .* got 'nan'"),
        (("1700000200", "1700000200000"), "line 5: ts must be seconds since 1970, none of them in the future"),
        (("b-1,1", "b-1,2"), r"line 2: bought must be an integer in 0\.\.1, got '2'"),
        (("b-1,1", "b-1,yes"), "line 2: bought must be .* got 'yes'"),
        ((",cart", ""), "line 5: 4 fields instead of 5"),
        ((",sku,", ",item,"), "line 1: no column sku"),
        ((",how", ",sku"), "line 1: two columns are called sku"),
    ],
)
def test_bad_rows(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    with pytest.raises(InputError, match=rf"log\.csv: {message}.*mend the file, or name other columns") as caught:
        _prepare(tmp_path, _csv(tmp_path, CSV.replace(*change)))
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "prepared").iterdir())


def test_a_bad_time_in_text(tmp_path: Path) -> None:
    text = "member,sku,ts,bought\n1,1,2024-05-01,1\n1,1,yesterday,1\n"
    with pytest.raises(InputError, match=r"line 3: ts must be a time such as .* got 'yesterday'"):
        _prepare(tmp_path, _csv(tmp_path, text), unit="iso")


@pytest.mark.parametrize("content", [b"\xff\xfem\0e\0", CSV.encode().replace(b"bob", b"b\xf6b")])
def test_bytes_that_are_not_text(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "log.csv").write_bytes(content)
    with pytest.raises(InputError, match="is not UTF-8 text; convert the file to UTF-8"):
        _prepare(tmp_path, str(tmp_path / "log.csv"))


def test_bad_parquet(tmp_path: Path) -> None:
    good = {"member": ["a", "a"], "sku": ["x", "y"], "ts": [1, 2], "bought": [0, 1]}
    path = tmp_path / "log.parquet"
    for change, message in (
        ({"member": ["secret-name", None]}, "row 1: member must be an id, got nothing"),
        ({"ts": [1, -2]}, "row 1: ts must be seconds since 1970, none of them in the future, got -2"),
        ({"ts": ["1", "b"]}, "ts must be .* it has string values"),
        ({"member": [0.5, 1.5]}, "member must be an id, it has double values"),
        ({"member": ["a", ""]}, "row 1: member must be an id, got something else"),
        ({"bought": [0, 3]}, r"row 1: bought must be an integer in 0\.\.1, got 3"),
    ):
        pq.write_table(pa.table(good | change), path)
        with pytest.raises(InputError, match=message) as caught:
            _prepare(tmp_path, str(path))
        assert "\n" not in str(caught.value)
        assert "secret-name" not in str(caught.value)
    pq.write_table(pa.table(good).drop_columns("ts"), path)
    with pytest.raises(InputError, match="no column ts"):
        _prepare(tmp_path, str(path))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match="cannot be read as Parquet, or is damaged or cut short"):
        _prepare(tmp_path, str(path))


def test_too_many_actions(tmp_path: Path) -> None:
    text = "member,sku,ts,bought,how\n" + "".join(f"a,1,{place},1,{place}\n" for place in range(1_001))
    with pytest.raises(InputError, match="how has more than 1,000 distinct values"):
        _prepare(tmp_path, _csv(tmp_path, text), columns=f"{COLUMNS},action=how")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": "user=a,item=b,time=c"}, "label=COLUMN is missing"),
        ({"columns": "user=a,user=b"}, "each once"),
        ({"columns": "who=a"}, "each once"),
        ({"columns": "user"}, "each once"),
        ({"columns": COLUMNS.replace("sku", "member")}, "member is named twice"),
        ({"unit": "h"}, "--time-unit h: use s, ms, us, ns or iso"),
        ({"name": "../x"}, r"--name '\.\./x': use small letters"),
        ({"name": "movielens-25m"}, "is the name of a public data set"),
        ({"columns": COLUMNS.replace("bought", "bought>=1.2.3")}, "is not a number"),
    ],
)
def test_wrong_arguments(tmp_path: Path, arguments: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        _prepare(tmp_path, _csv(tmp_path, CSV), **arguments)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no such file"):
        _prepare(tmp_path, str(tmp_path / "nothing*.csv"))


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("repro.cli.USER_HASH_KEY", tmp_path / "key")
    _csv(tmp_path, CSV)
    command = ["prepare", "csv", "--events", str(tmp_path / "*.csv"), "--columns", COLUMNS, "--name", "shop"]
    command += ["--data", str(tmp_path / "prepared")]
    assert main([*command, "--dry-run"]) == 0
    assert not (tmp_path / "prepared").exists()
    assert main(command) == 0
    assert read_manifest(tmp_path / "prepared" / "shop").events == 4
    said = capsys.readouterr().out
    assert "ann" not in said.replace("channel", "")
    assert main(["prepare", "csv", "--data", str(tmp_path / "prepared")]) == 2
    assert "--events" in capsys.readouterr().err
    assert main(["prepare", "movielens-1m", "--events", "x", "--data", str(tmp_path / "prepared")]) == 2
    assert main(["prepare", "taobao", "--data", str(tmp_path / "prepared")]) == 2
    assert f"put it at {tmp_path / 'raw' / 'taobao' / 'UserBehavior.csv.zip'}" in capsys.readouterr().err
