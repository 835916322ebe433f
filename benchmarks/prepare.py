"""Preparing a MovieLens-format log against the same preparation written plainly in pandas, in one run.

Command    python -m benchmarks.prepare [--events 25000000] [--folder FOLDER]
Claims     at least 5 times faster than pandas; peak memory under 2 GB

Both read the same generated `ratings.csv` (as in ML-25M: 162,541 users, 59,047 items, users one after another, each
in no order of time), hash users with a key, sort stably by (user, time), users by their first event, cut the same
requests with the same draws, and write event and request shards in Parquet with zstd. Each runs in a process of its
own, whose peak memory the kernel tells; the two results are compared, row for row, before the numbers are printed.
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from data_prep import movielens
from data_prep.archives import RawFile
from data_prep.prepare import prepare_source
from data_prep.requests import RequestRule
from data_prep.source import Source

NAME = "prepare-benchmark"
USERS, ITEMS = 162_541, 59_047
CHUNK = 1 << 20
COLUMNS = ("user", "time", "uih_begin", "uih_end", "candidate_item", "label")


def generate(path: Path, events: int, users: int = USERS) -> None:
    """Write `ratings.csv`: lognormal counts a user, Zipf items, times over 25 years."""
    rng = np.random.default_rng(0)
    share_U = np.cumsum(rng.lognormal(0, 1.2, users))
    user_N = np.searchsorted(share_U, (np.arange(events) + 0.5) * (share_U[-1] / events)) + 1
    weight_I = np.cumsum(1.0 / np.arange(1, ITEMS + 1))
    names = ["userId", "movieId", "rating", "timestamp"]
    schema = pa.schema(zip(names, (pa.int64(), pa.int64(), pa.float64(), pa.int64()), strict=True))
    options = pyarrow.csv.WriteOptions(include_header=False)  # Arrow would put the header in quotes
    with path.open("wb") as file, pyarrow.csv.CSVWriter(file, schema, write_options=options) as writer:
        file.write(",".join(names).encode() + b"\n")
        for begin in range(0, events, CHUNK):
            user = user_N[begin : begin + CHUNK]
            item = np.searchsorted(weight_I, rng.random(user.size) * weight_I[-1]) * 3 + 1
            rating = rng.integers(1, 11, user.size) / 2
            seconds = rng.integers(789_652_009, 1_574_327_703, user.size)
            writer.write_table(pa.table(dict(zip(names, (user, item, rating, seconds), strict=True)), schema=schema))


def ours(ratings: Path, folder: Path) -> Path:
    """`repro prepare`, from the ratings outside their zip."""
    source = Source(
        name=NAME,
        description="benchmark",
        licence="none",
        code=Path(movielens.__file__),
        inputs=(ratings,),
        parameters={},
        rule=RequestRule(),
        read=lambda: movielens.read_ratings(RawFile(path=ratings)),
    )
    return prepare_source(source, folder, key_path=folder.parent / "key", log=lambda _: None)


def in_pandas(ratings: Path, folder: Path, key: bytes) -> None:
    """What one writes in a notebook."""
    log = pd.read_csv(ratings)
    raw = log["userId"].unique()
    hashes = {
        user: int.from_bytes(
            hashlib.blake2b(str(user).encode(), digest_size=8, key=key).digest(), "little", signed=True
        )
        for user in raw.tolist()
    }
    log["user"] = log["userId"].map(hashes)
    log["time"] = log["timestamp"] * 1000
    log["item"] = (log["movieId"].rank(method="dense") - 1).astype("int32")
    log["action"] = (log["rating"] * 2 - 1).astype("int32")
    log["label"] = (log["rating"] >= movielens.POSITIVE_RATING).astype("float32")
    log["row"] = np.arange(len(log))

    log = log.sort_values(["userId", "time", "row"])
    first = log.groupby("userId")[["time", "row"]].transform("first")
    log = log.assign(first_time=first["time"], first_row=first["row"])
    log = log.sort_values(["first_time", "first_row", "time", "row"]).reset_index(drop=True)
    log[["user", "time", "item", "action"]].to_parquet(folder / "events.parquet", compression="zstd", index=False)

    of_user = log.groupby("userId", sort=False)
    log["place"] = of_user.cumcount()
    log["uih_begin"] = log.index - log["place"]
    log["uih_end"] = log.groupby(["userId", "time"], sort=False)["place"].transform("first") + log["uih_begin"]
    candidates = log[log["place"] >= 1].copy()
    candidates["draw"] = np.random.default_rng(0).integers(1, 16, endpoint=True, size=len(candidates))
    drawn = candidates.groupby("userId", sort=False)["draw"].cumsum() - candidates["draw"]
    starts = candidates.index[drawn < candidates.groupby("userId", sort=False)["draw"].transform("size")]
    begins = candidates["uih_begin"].loc[starts] + 1 + drawn.loc[starts]
    log["request"] = pd.Series(1, index=pd.Index(begins.to_numpy())).reindex(log.index, fill_value=0).cumsum()
    candidates = log[log["place"] >= 1]
    requests = candidates.groupby("request", sort=False).agg(
        user=("user", "first"), time=("time", "first"), uih_begin=("uih_begin", "first"), uih_end=("uih_end", "first"),
        row=("row", "first"), candidate_item=("item", list), label=("label", list),
    )  # fmt: skip
    requests = requests[requests["uih_end"] > requests["uih_begin"]].sort_values(["time", "row"])
    requests[list(COLUMNS)].to_parquet(folder / "requests.parquet", compression="zstd", index=False)


def same_rows(ours_folder: Path, pandas_folder: Path) -> bool:
    """Whether both wrote the same rows."""
    for stem, names in (("events", ("user", "time", "item", "action")), ("requests", COLUMNS)):
        mine = pa.concat_tables(
            pq.read_table(path, columns=list(names)) for path in sorted(ours_folder.glob(f"{stem}-*"))
        )
        theirs = pq.read_table(pandas_folder / f"{stem}.parquet", columns=list(names))
        if not mine.equals(theirs.cast(mine.schema)):
            return False
    return True


def _child(way: str, ratings: Path, folder: Path) -> None:
    began = time.perf_counter()
    if way == "ours":
        ours(ratings, folder / "ours")
    else:
        (folder / "pandas").mkdir()
        in_pandas(ratings, folder / "pandas", bytes.fromhex((folder / "key").read_text()))
    seconds = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e9)


def _measure(way: str, ratings: Path, folder: Path) -> tuple[float, float, float]:
    """Seconds, CPU seconds and GB of a process that does nothing else."""
    command = [sys.executable, "-m", "benchmarks.prepare", "--child", way, str(ratings), str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    seconds, cpu_seconds, gigabytes = (float(word) for word in done.stdout.split())
    return seconds, cpu_seconds, gigabytes


def main() -> None:
    """Generate, prepare twice, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=25_000_000)
    parser.add_argument("--folder", type=Path, help="for 3 GB of files (default: a temporary one)")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        way, ratings, folder = options.child
        _child(way, Path(ratings), Path(folder))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        ratings = Path(folder) / "ratings.csv"
        generate(ratings, options.events)
        our_s, our_cpu_s, our_gb = _measure("ours", ratings, Path(folder))
        pandas_s, pandas_cpu_s, pandas_gb = _measure("pandas", ratings, Path(folder))
        same = same_rows(Path(folder) / "ours" / NAME, Path(folder) / "pandas")
    print(f"{options.events:,} events, same rows: {same}")
    print(f"  pandas {pandas_s:6.1f} s, {pandas_cpu_s:6.1f} s of CPU, {pandas_gb:5.2f} GB")
    print(f"  ours   {our_s:6.1f} s, {our_cpu_s:6.1f} s of CPU, {our_gb:5.2f} GB")
    print(
        f"{pandas_s / our_s:.1f} times as fast (claim: 5), {pandas_cpu_s / our_cpu_s:.1f} times by CPU; "
        f"peak memory {our_gb:.2f} GB (claim: under 2)"
    )
    if not same:
        sys.exit("the two preparations differ")


if __name__ == "__main__":
    main()
