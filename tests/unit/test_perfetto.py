"""Without this the Perfetto export could lose, shift or merge spans unseen. Not covered: what the viewer draws, and
whether HolisticTraceAnalysis reads the file."""

import gzip
import json

import pytest

from repro.errors import InputError
from repro.timeline.perfetto import trace, write_trace
from repro.timeline.schema import Span, Timeline


def span(rank: int, op: str, lane: str, start: int, end: int, *, step: int = 0, **more: object) -> Span:
    category = {"comm": "communication"}.get(lane, lane)
    return Span(
        step=step, rank=rank, lane=lane, op=op, category=category, start_ns=start, duration_ns=end - start, **more
    )


@pytest.fixture
def timeline() -> Timeline:
    spans = [
        span(0, "lookup", "compute", 1, 1_234_567),
        span(1, "lookup", "compute", 3, 987_654_321_987),
        span(0, "id_all_to_all", "comm", 10, 500, bytes=4096, transport="gloo", collective=2),
        span(1, "data_load", "host", 0, 3),
        span(1, "optimizer_step", "compute", 987_654_321_987, 987_654_321_988, step=1),
    ]
    return Timeline(spans, run="r1", mode="simulated")


def slices(raw: dict) -> list[dict]:
    return [event for event in raw["traceEvents"] if event["ph"] == "X"]


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_times_and_counts_survive_the_file(timeline, tmp_path, suffix):
    path = tmp_path / f"trace{suffix}"
    write_trace(timeline, path)
    data = gzip.decompress(path.read_bytes()) if suffix.endswith(".gz") else path.read_bytes()
    read = [
        (e["pid"], e["name"], round(e["ts"] * 1000), round(e["dur"] * 1000), e["args"]["step"])
        for e in slices(json.loads(data))
    ]
    assert read == [(s.rank, s.op, s.start_ns, s.duration_ns, s.step) for s in timeline.spans]


def test_arguments_of_a_collective(timeline):
    (event,) = [e for e in slices(trace(timeline)) if e["name"] == "id_all_to_all"]
    assert event["cat"] == "communication"
    assert event["args"] == {
        "step": 0, "category": "communication", "bytes": 4096, "transport": "gloo", "collective": 2,
    }  # fmt: skip


def test_one_process_a_rank_and_one_thread_a_lane(timeline):
    names = {
        (e["name"], e["pid"], e["tid"]): e["args"]["name"]
        for e in trace(timeline)["traceEvents"]
        if e["ph"] == "M" and e["name"].endswith("_name")
    }
    assert names == {
        ("process_name", 0, 0): "rank 0",
        ("process_name", 1, 0): "rank 1",
        ("thread_name", 0, 0): "compute",
        ("thread_name", 0, 100): "comm",
        ("thread_name", 1, 0): "compute",
        ("thread_name", 1, 300): "host",
    }


def test_selection_by_step_and_rank(timeline):
    assert {e["name"] for e in slices(trace(timeline, steps=range(1, 2)))} == {"optimizer_step"}
    assert {e["pid"] for e in slices(trace(timeline, ranks=[0]))} == {0}
    with pytest.raises(InputError, match="no spans"):
        trace(timeline, steps=range(7, 9))


def test_collectives_in_flight_together_get_rows_of_their_own():
    overlapping = Timeline(
        [
            span(0, "gradient_all_to_all", "comm", 0, 10, collective=0),
            span(0, "dense_all_reduce", "comm", 5, 15, collective=1),
            span(0, "id_all_to_all", "comm", 10, 20, collective=2),
        ],
        run="r",
        mode="measured",
    )
    assert [e["tid"] for e in slices(trace(overlapping))] == [100, 101, 100]


def test_equal_timelines_give_equal_files(timeline, tmp_path):
    write_trace(timeline, tmp_path / "a.gz")
    write_trace(timeline, tmp_path / "b.gz")
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
