"""Rows counted by the indices of dictionaries: the rows that Arrow reads, or left to Arrow."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logcal.errors import LogcalError
from pipeline.execution import InlineExecutor
from pipeline.log import dictionary_pages
from pipeline.log.dictionary_pages import counted_rows
from pipeline.log.log_files import GIVE_UP
from pipeline.log.logs import Columns, cut, open_log, read_rows
from pipeline.sort import counting
from pipeline.sort.score_table import SortPlan, build_score_table
from tests.sorted_logs import points_of

BOTH = Columns("score", "label")
ROWS = 3000


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(dictionary_pages, "_ROWS_PER_CHUNK", 1)


def write(path, seed=0, values=50, score=np.float64, label=np.int8, nulls="", required=False, **options):
    rng = np.random.default_rng(seed)
    columns = {
        "score": (rng.integers(0, values, ROWS) / values).astype(score),
        "label": (rng.random(ROWS) < 0.2).astype(label),
    }
    fields = [pa.field(name, pa.from_numpy_dtype(c.dtype), not required) for name, c in columns.items()]
    arrays = [pa.array(c, mask=(rng.random(ROWS) < 0.1) & (name == nulls)) for name, c in columns.items()]
    pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), path, **options)
    return str(path)


def pieces(log):
    return [piece for task in cut(log, ROWS) for piece in task]


def counted(log):
    """Rows by score and label; None if a piece is left to Arrow."""
    number = Counter()
    for piece in pieces(log):
        rows = counted_rows(log.filesystem, piece, log.columns)
        if rows is None:
            return None
        assert rows.rows == piece.rows
        for score, label, times in zip(
            *(c.tolist() for c in (rows.score, rows.label, rows.times)), strict=True
        ):
            number[score, label] += times
    return number


def read(log):
    """Rows by score and label, as Arrow reads them."""
    batches = [rows for piece in pieces(log) for rows in read_rows(log.filesystem, piece, log.columns)]
    return sum(
        (Counter(zip(rows.score.tolist(), rows.label.tolist(), strict=True)) for rows in batches), Counter()
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"values": 1},
        {"score": np.float32, "label": np.int64},
        {"label": np.float64, "required": True},
        {"required": True, "compression": "none"},
        {"compression": "gzip", "data_page_size": 100, "write_batch_size": 64},
        {"compression": "zstd", "write_page_checksum": True},
        {"compression": "brotli", "version": "1.0"},
        {"compression": "lz4", "row_group_size": 1100},
        {"compression": "none", "data_page_size": 100, "write_batch_size": 300},
    ],
)
def test_dictionaries_are_counted(tmp_path, options):
    log = open_log(write(tmp_path / "log.parquet", **options), BOTH)
    assert counted(log) == read(log)


@pytest.mark.parametrize(
    "options",
    [
        {"label": np.bool_},
        {"nulls": "score"},
        {"nulls": "label"},
        {"use_dictionary": False},
        {"use_dictionary": ["score"]},
        {"data_page_version": "2.0"},
        {"values": 2900, "dictionary_pagesize_limit": 1000},
    ],
)
def test_other_pages_are_left_to_arrow(tmp_path, options):
    assert counted(open_log(write(tmp_path / "log.parquet", **options), BOTH)) is None


@pytest.mark.parametrize("column", [{"score": [0.5, np.nan]}, {"score": [0.5, np.inf]}, {"label": [1, 2]}])
def test_unusable_rows_are_left_to_arrow(tmp_path, column):
    log = {"score": np.tile([0.25, 0.5], 50), "label": np.tile([0, 1], 50)}
    log |= {name: np.tile(values, 50) for name, values in column.items()}
    pq.write_table(pa.table(log), tmp_path / "log.parquet")
    assert counted(open_log(str(tmp_path), BOTH)) is None


def test_damaged_files_give_the_rows_that_arrow_reads(tmp_path):
    path, outcomes = tmp_path / "log.parquet", Counter()
    kinds = [
        {},
        {"compression": "none"},
        {"write_page_checksum": True},
        {"compression": "gzip", "data_page_size": 500, "write_batch_size": 64},
        {"row_group_size": 700, "compression": "none"},
    ]
    patience = GIVE_UP.set(0.0)
    try:
        for seed in range(500):
            rng = np.random.default_rng(seed)
            content = bytearray((tmp_path / write(path, seed, **kinds[seed % len(kinds)])).read_bytes())
            at = rng.integers(4, len(content) if rng.random() < 0.7 else 400)
            content[at] = rng.integers(0, 256)
            path.write_bytes(content)
            try:
                log = open_log(str(path), BOTH)
                found = counted(log)
                outcomes[found is not None] += 1
                assert found is None or found == read(log), seed
            except LogcalError:
                outcomes["refused"] += 1
    finally:
        GIVE_UP.reset(patience)
    assert outcomes[True] > 50
    assert outcomes[False] > 50


@pytest.mark.parametrize("plan", [{}, {"transform": "sigmoid"}, {"grid": "1e-1"}, {"grid": "float32"}])
@pytest.mark.parametrize("slots", [1 << 17, 16])
def test_score_tables_are_equal(tmp_path, monkeypatch, plan, slots):
    monkeypatch.setattr(counting, "_SLOTS", slots)  # few: rows remain that are not counted
    log = open_log(write(tmp_path / "log.parquet", values=1000), BOTH)
    tables = []
    for i, rows in enumerate((1, ROWS)):  # with the second, files are too small
        monkeypatch.setattr(dictionary_pages, "_ROWS_PER_CHUNK", rows)
        assert (counted(log) is None) == (i == 1)
        folder = tmp_path / str(i)
        folder.mkdir()
        sort = SortPlan(str(folder), write=str(folder / "table"), **plan)
        tables.append(build_score_table(log, sort, InlineExecutor())[0])
    assert tables[0].facts() == tables[1].facts()
    for one, other in zip(*map(points_of, tables), strict=True):
        assert one.tolist() == other.tolist()
