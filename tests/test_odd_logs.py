"""Logs with odd names and odd columns, through the real command."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest


def segmented(place, values, name="log"):
    columns = place.predictions(1000)
    columns["model"] = values
    return place.write_log(columns, name=name)


IDS = np.arange(1000) % 2


@pytest.mark.parametrize(
    ("fitted", "given", "phrase"),
    [
        (
            pa.array(IDS),
            pa.array(IDS.astype(str)),
            "expected whole numbers as the table's segments have (int64), found text",
        ),
        (
            pa.array(IDS.astype(str)),
            pa.array(IDS),
            "expected text as the table's segments have (string), found whole",
        ),
        (pa.array(IDS), pa.array(IDS.astype(bool)), "found booleans (bool)"),
    ],
)
def test_segments_of_another_kind_are_refused(place, call, fitted, given, phrase):
    segmented(place, fitted)
    call("fit", "log.segment=model").expect(0)
    segmented(place, given, "other")
    for job in ("score", "evaluate"):
        call(job, log__path=place.root / "other").expect(3, "column 'model': ", phrase)


def test_segments_of_the_same_kind_in_another_width(place, call):
    segmented(place, pa.array(IDS))
    call("fit", "log.segment=model").expect(0)
    segmented(place, pa.array(IDS.astype(np.int16)), "other")
    done = call("score", "--json", log__path=place.root / "other").expect(0)
    assert done.json["unseen_rows"] == 0


def test_a_segment_column_of_nulls_only(place, call):
    segmented(place, pa.nulls(1000))
    assert pq.read_schema(place.log / "part-0.parquet").field("model").type == pa.null()
    call("fit", "log.segment=model").expect(0)
    done = call("score", "--json").expect(0)
    assert done.json["unseen_rows"] == 0


@pytest.mark.parametrize(
    "name", ["é" * 116 + ".parquet", "x" * 240 + ".parquet", os.fsdecode(b"caf\xe9.parquet")]
)
def test_names_that_are_long_or_no_text(place, call, name):
    columns = place.predictions()
    columns["score"][3] = np.nan
    place.write_log(columns, files=1)
    (place.log / "part-0.parquet").rename(place.log / name)
    bad = ("log.on_bad_rows=quarantine", f"log.quarantine_path={place.root / 'bad'}")
    call("fit", *bad).expect(0)
    [kept] = (place.root / "bad").rglob("part-*.parquet")
    assert pq.read_table(kept).num_rows == 1
    call("score").expect(0)
    assert pq.read_metadata(place.output / name).num_rows == 3000 if name.isascii() else True
    call("evaluate", "--json", *bad[:1], output__path=place.root / "report").expect(0)


@pytest.mark.parametrize("command", ["fit", "score", "evaluate"])
def test_a_column_whose_name_is_no_text_is_the_files_fault(fitted, place, call, command):
    pq.write_table(pa.table({**place.predictions(10), "quaint": np.zeros(10)}), place.log / "part-0.parquet")
    path = place.log / "part-0.parquet"
    path.write_bytes(path.read_bytes().replace(b"quaint", b"qu\xe1int"))
    call(command, "evaluate.allow_in_sample=true" if command == "evaluate" else "cluster.kind=inline").expect(
        3, "part-0.parquet", "write it again"
    )
