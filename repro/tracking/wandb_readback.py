"""Count the history rows of an offline W&B run file.

W&B's client drops rows without an error when the disk is full, so what was logged is read back and counted.
The file is a LevelDB log: a 7-byte header, then 32 KiB blocks of chunks, each with a 7-byte header
(checksum, length, type); the chunks of one record joined are a protobuf `Record`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

_FILE_HEADER = 7
_CHUNK_HEADER = struct.Struct("<IHB")
_BLOCK = 32 * 1024
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def count_history_rows(run_file: Path) -> int:
    """Rows logged into `run-<id>.wandb`. A record torn by a crash ends the count."""
    from wandb.proto import wandb_internal_pb2

    rows = 0
    for payload in _records(run_file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(payload)
        rows += record.WhichOneof("record_type") == "history"
    return rows


def _records(data: bytes) -> Iterator[bytes]:
    position, parts = _FILE_HEADER, b""
    while position + _CHUNK_HEADER.size <= len(data):
        left = _BLOCK - position % _BLOCK
        if left < _CHUNK_HEADER.size:  # too little room for a header: padding up to the next block
            position += left
            continue
        _, length, kind = _CHUNK_HEADER.unpack_from(data, position)
        position += _CHUNK_HEADER.size
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or position + length > len(data):
            return
        chunk = data[position : position + length]
        position += length
        parts = chunk if kind in (_FULL, _FIRST) else parts + chunk
        if kind in (_FULL, _LAST):
            yield parts
