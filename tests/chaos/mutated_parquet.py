"""Parquet files of several writers with bytes changed, cut out, doubled or cut off: what each job makes of them."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.log import thrift

ROWS = 300


def table(seed: int = 0) -> pa.Table:
    """A log with nulls, texts and ties."""
    random = np.random.default_rng(seed)
    score = np.round(random.random(ROWS), 3)
    text = pa.array(["a", "b", None, "cc"] * (ROWS // 4))
    label = (random.random(ROWS) < score).astype(np.int8)
    days = pa.array((np.arange(ROWS) % 3 + 20000).astype(np.int32)).cast(pa.date32())
    return pa.table({"score": score, "label": label, "w": random.random(ROWS) + 0.5, "s": text, "day": days})


def _arrow(**options: Any) -> Callable[[], bytes]:
    def write() -> bytes:
        buffer = io.BytesIO()
        pq.write_table(table(), buffer, row_group_size=100, **options)
        return buffer.getvalue()

    return write


def _polars() -> bytes:
    import polars as pl

    buffer = io.BytesIO()
    pl.from_arrow(table()).write_parquet(buffer, row_group_size=100)
    return buffer.getvalue()


def _duckdb() -> bytes:
    import tempfile

    import duckdb

    log = table()
    with tempfile.TemporaryDirectory() as folder:
        duckdb.from_arrow(log).write_parquet(f"{folder}/x.parquet")
        return Path(f"{folder}/x.parquet").read_bytes()


WRITERS: dict[str, Callable[[], bytes]] = {
    "arrow": _arrow(),
    "arrow plain": _arrow(use_dictionary=False, compression="none"),
    "arrow pages v2": _arrow(data_page_version="2.0", compression="zstd"),
    "arrow checksums": _arrow(write_page_checksum=True),
    "arrow page index": _arrow(write_page_index=True, compression="gzip"),
    "arrow delta": _arrow(
        use_dictionary=False, column_encoding={"score": "BYTE_STREAM_SPLIT", "label": "DELTA_BINARY_PACKED"}
    ),
    "arrow 1.0": _arrow(version="1.0", use_deprecated_int96_timestamps=True, compression="lz4"),
    "arrow small pages": _arrow(data_page_size=64, write_batch_size=16),
    "polars": _polars,
    "duckdb": _duckdb,
}


def mutated(content: bytes, seed: int) -> bytes:
    """A file with something changed."""
    random = np.random.default_rng(seed)
    data = bytearray(content)
    footer = int.from_bytes(data[-8:-4], "little")
    # Half of them in the footer, where most is at stake.
    start, end = len(data) - 8 - footer, len(data) - 8
    low, high = (start, end) if random.random() < 0.5 else (4, start)
    for _ in range(random.integers(1, 4)):
        at = int(random.integers(low, high))
        kind = random.integers(0, 6)
        if kind <= 1:
            data[at] ^= 1 << random.integers(0, 8)
        elif kind == 2:
            data[at] = random.integers(0, 256)
        elif kind == 3:
            data[at : at + 4] = bytes(random.integers(0, 256, 4).tolist())
        elif kind == 4:
            data[at : at + 8] = b"\xff" * 8
        else:
            data[at : at + 8] = b"\0" * 8
    if random.random() < 0.05:
        del data[int(random.integers(4, len(data))) :]
    return bytes(data)


def contradicting(content: bytes, seed: int) -> bytes:
    """A file whose footer decodes and says something else of a column's chunk: another number, a bound of another size,
    more or fewer counts, or nothing."""
    random = np.random.default_rng(seed)

    def change(groups: list[thrift.Fields]) -> None:
        group = groups[random.integers(len(groups))]
        chunks = thrift.read_list(group[1][1])
        place = int(random.integers(len(chunks)))
        if random.random() < 0.05:
            del chunks[place]
        else:
            chunks[place] = _changed_struct(chunks[place], random)
        group[1] = (thrift.LIST, thrift.list_of(thrift.STRUCT, chunks))

    return with_row_groups(content, change)


def with_row_groups(content: bytes, change: Callable[[list[thrift.Fields]], None]) -> bytes:
    """A file whose footer says something else of its row groups."""
    size = int.from_bytes(content[-8:-4], "little")
    footer, _ = thrift.read_struct(content[-8 - size : -8])
    groups = [thrift.read_struct(group)[0] for group in thrift.read_list(footer[4][1])]
    change(groups)
    footer[4] = (thrift.LIST, thrift.list_of(thrift.STRUCT, [thrift.struct(fields) for fields in groups]))
    new = thrift.struct(footer)
    return content[: -8 - size] + new + len(new).to_bytes(4, "little") + content[-4:]


def _changed_struct(encoded: bytes, random: np.random.Generator) -> bytes:
    """One field of a struct, or of the structs in it, is another one."""
    fields, _ = thrift.read_struct(encoded)
    number = list(fields)[random.integers(len(fields))]
    inner = [n for n, (kind, _) in fields.items() if kind == thrift.STRUCT]
    if inner and random.random() < 0.8:
        number = inner[random.integers(len(inner))]
    kind, value = fields[number]
    if random.random() < 0.1:
        del fields[number]
    elif kind == thrift.STRUCT:
        fields[number] = (kind, _changed_struct(value, random))
    elif kind == thrift.BINARY:
        fields[number] = (kind, thrift.binary(random.bytes(random.integers(0, 20))))
    elif kind == thrift.LIST:
        elements = thrift.read_list(value)
        count = int(random.integers(0, len(elements) + 3))
        fields[number] = (kind, thrift.list_of(value[0] & 0x0F, [*elements, *elements[:1] * 3][:count]))
    elif kind in (thrift.I16, thrift.I32, thrift.I64):
        low, high = [(0, 10), (-(2**31), 2**31)][random.integers(2)]
        fields[number] = (kind, thrift.integer(int(random.integers(low, high))))
    return thrift.struct(fields)


def _reads_whole(path: Path) -> bool:
    try:
        pq.read_table(path)
    except (pa.ArrowException, OSError):
        return False
    return True


def trial(
    kind: str,
    writer: str,
    seed: int,
    folder: Path,
    lookup: str,
    content: bytes | None = None,
    change: Callable[[bytes, int], bytes] = mutated,
) -> str:
    """Look at, read, window or score a file: 'answer', or the refusal's exit code; what is neither is raised.

    content : what the writer writes, if that is known. change : what is done to it
    """
    from logcal.errors import LogcalError
    from pipeline.log.column_facts import log_facts
    from pipeline.log.log_files import GIVE_UP
    from pipeline.log.logs import Columns, cut, open_log, read_rows
    from pipeline.log.windows import choose_window
    from pipeline.score.scored_file import Scoring, score_file

    path = folder / "mutated.parquet"
    path.write_bytes(change(content or WRITERS[writer](), seed))
    # Otherwise a file without a readable footer that is this young may still be being written.
    patience = GIVE_UP.set(0.0)
    try:
        if kind == "read":
            log = open_log(str(path), Columns("score", "label", "w", ("s",)))
            pieces = [piece for task in cut(log, 1 << 20) for piece in task]
            read = (rows for piece in pieces for rows in read_rows(log.filesystem, piece, log.columns))
            found = sum(rows.score.size for rows in read)
            assert found == log.rows
        elif kind == "facts":
            log_facts(str(path))
        elif kind == "window":
            choose_window(open_log(str(path), Columns("score", "label")), "day", 2, None)
        else:
            log = open_log(str(path), Columns("score"))
            target = folder / "scored"
            score_file(log.filesystem, log.files[0], log.filesystem, str(target), Scoring("score", lookup))
            try:
                scored = pq.read_table(target, columns=["probability", "table_version"])
            except (pa.ArrowException, OSError):
                # Arrow 20 reads one column of some damaged files, and no two: then of the input neither.
                if _reads_whole(path):
                    raise
                return "answer"
            assert scored.num_rows == log.rows
            assert all(len(column) == log.rows for column in scored.columns)
    except LogcalError as error:
        return str(error.exit_code)
    finally:
        GIVE_UP.reset(patience)
    return "answer"
