"""The log that the benchmarks run on."""

import subprocess
import sys
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.system

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "make_log.py"


def make(path, *options):
    command = [sys.executable, str(SCRIPT), str(path), "--rows", "20001", "--files", "3", *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_scores_are_distinct_and_the_layout_is_as_said(tmp_path):
    printed = make(tmp_path / "log")
    assert "20,001 rows in 3 files" in printed
    files = sorted((tmp_path / "log").iterdir())
    assert [file.name for file in files] == [f"part-0000{i}.parquet" for i in range(3)]
    table = pq.read_table(tmp_path / "log")
    assert {f.name: str(f.type) for f in table.schema} == {
        "score": "double",
        "label": "int8",
        "model_id": "dictionary<values=string, indices=int32, ordered=0>",
        "ts": "int64",
    }
    assert table.num_rows == pc.count_distinct(table["score"]).as_py() == 20001
    assert 0.2 < pc.mean(table["label"]).as_py() < 0.27
    for file in files:
        metadata = pq.read_metadata(file)
        columns = [metadata.row_group(0).column(i) for i in range(4)]
        assert metadata.num_row_groups == 2
        assert {column.compression for column in columns} == {"SNAPPY"}
        assert [column.path_in_schema for column in columns if column.has_dictionary_page] == ["model_id"]


def test_the_same_arguments_write_the_same_bytes_with_any_processes(tmp_path):
    make(tmp_path / "one", "--processes", "1", "--weights")
    make(tmp_path / "two", "--weights")
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()
    assert pc.min(pq.read_table(tmp_path / "one")["weight"]).as_py() > 0
    assert "is there already" in make(tmp_path / "one")


def test_a_share_of_the_rows_at_one_score(tmp_path):
    make(tmp_path / "log", "--tie-share", "0.4")
    counts = pq.read_table(tmp_path / "log").group_by("score").aggregate([("label", "count")])["label_count"]
    assert 0.39 < pc.max(counts).as_py() / 20001 < 0.41
    assert sorted(counts.to_pylist())[:-1] == [1] * (len(counts) - 1)
