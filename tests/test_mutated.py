"""Damaged Parquet files: an answer or a refusal, and never a scored file with fewer values than rows."""

import re
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chaos.inputs import lookup_table
from chaos.mutated_parquet import WRITERS, contradicting, mutated, trial, with_row_groups
from chaos.tracing import forked

import pipeline
from logcal.errors import InputRejectedError
from pipeline.log import thrift
from pipeline.log.chunks import CheckedFooter
from pipeline.log.column_facts import log_facts
from pipeline.log.logs import Columns, cut, open_log, read_rows
from pipeline.log.windows import choose_window

pytestmark = pytest.mark.system

PIPELINE = Path(pipeline.__file__).parent


@pytest.fixture(scope="module")
def lookup(tmp_path_factory):
    return lookup_table(tmp_path_factory.mktemp("lookup") / "lookup.parquet")


@pytest.mark.parametrize("kind", ["read", "window", "score"])
@pytest.mark.parametrize("writer", WRITERS)
def test_mutated_files(tmp_path, lookup, kind, writer):
    found = Counter(trial(kind, writer, seed, tmp_path, lookup) for seed in range(12))
    assert found.keys() <= {"answer", "3"}


@pytest.mark.parametrize(("writer", "seed"), [("arrow page index", 83), ("arrow delta", 102)])
def test_a_footer_whose_chunks_have_other_names(tmp_path, lookup, writer, seed):
    assert trial("score", writer, seed, tmp_path, lookup) == "3"


# Footers that decode and contradict themselves


@pytest.mark.parametrize("kind", ["read", "window", "score", "facts"])
def test_footers_that_contradict_themselves(tmp_path, lookup, kind):
    """In a process of its own, which Arrow would end for some of them."""
    contents = {writer: write() for writer, write in WRITERS.items()}

    def trials():
        found = Counter(
            trial(kind, writer, seed, tmp_path, lookup, content, contradicting)
            for seed in range(10)
            for writer, content in contents.items()
        )
        assert found.keys() <= {"answer", "3"}
        return 7

    ended = forked(trials)
    assert ended.code == 7, ended.said


def levels(facts):
    """More counts of levels than there are levels."""
    sizes, _ = thrift.read_struct(facts[16][1])
    sizes[3] = (thrift.LIST, thrift.list_of(thrift.I64, [thrift.integer(1)] * 3))
    facts[16] = (thrift.STRUCT, thrift.struct(sizes))


def bounds(facts):
    """Bounds of fewer bytes than a value has."""
    own, _ = thrift.read_struct(facts[12][1])
    own.update({number: (thrift.BINARY, thrift.binary(b"abc")) for number in (5, 6)})
    facts[12] = (thrift.STRUCT, thrift.struct(own))


def another_type(facts):
    """Texts."""
    facts[1] = (thrift.I32, thrift.integer(6))


def unknown_codec(facts):
    """None that Parquet has."""
    facts[4] = (thrift.I32, thrift.integer(468))


CHANGES = {
    levels: "found 3 counts of levels instead of 2 in row group 0",
    bounds: "found a max_value of 3 bytes instead of ",
    another_type: "found a chunk of another type than",
    unknown_codec: "found a chunk of an unknown codec, 468 in row group 0",
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("job", "column"), [("fit", "day"), ("score", "score"), ("init", "score")])
def test_what_arrow_would_end_the_process_for_is_refused(place, change, job, column):
    """Its accessors of a chunk's facts do; the message is ours."""
    content = WRITERS["arrow"]()
    if job == "score":
        place.write_log()
        place.job("fit").expect(0)
    log = place.root / "damaged.parquet"
    log.write_bytes(with_chunk(content, column, change))
    if job == "init":
        result = place.run("init", str(log), str(place.root / "made"))
    else:
        result = place.job(job, *(["window.column=day"] if job == "fit" else []), log__path=log)
    result.expect(3, f"{log}: expected a footer that describes column '{column}', {CHANGES[change]}")


def with_chunk(content, name, change):
    """A file of which one chunk's facts are changed."""
    place = pq.read_schema(pa.BufferReader(content)).names.index(name)

    def change_first(groups):
        chunks = thrift.read_structs(groups[0][1][1])
        facts, _ = thrift.read_struct(chunks[place][3][1])
        change(facts)
        chunks[place][3] = (thrift.STRUCT, thrift.struct(facts))
        groups[0][1] = (
            thrift.LIST,
            thrift.list_of(thrift.STRUCT, [thrift.struct(chunk) for chunk in chunks]),
        )

    return with_row_groups(content, change_first)


def test_a_row_group_without_a_chunk_is_not_scored(tmp_path, lookup):
    """Whichever column it is of: nobody could read the scored file."""
    content = WRITERS["arrow"]()
    footer_of = CheckedFooter(pq.read_metadata(pa.BufferReader(content)), "x")
    assert len(footer_of.chunks("score")) == 3
    assert trial("score", "arrow", 0, tmp_path, lookup, content, without_last_chunk) == "3"


def without_last_chunk(content, seed):
    """A file whose first row group says nothing of the last column."""

    def change(groups):
        groups[0][1] = (thrift.LIST, thrift.list_of(thrift.STRUCT, thrift.read_list(groups[0][1][1])[:-1]))

    return with_row_groups(content, change)


def test_dates_that_no_calendar_has_are_refused(tmp_path):
    days = pa.array([20000, 3_716_474], pa.int32()).cast(pa.date32())
    pq.write_table(pa.table({"score": [0.1, 0.2], "label": [0, 1], "day": days}), tmp_path / "log.parquet")
    with pytest.raises(InputRejectedError, match="dates of the years 1 to 9999, found 20,000 to 3,716,474"):
        choose_window(open_log(str(tmp_path), Columns("score", "label")), "day", 2, None)
    assert log_facts(str(tmp_path)).columns[2].low is None


def test_only_checked_footers_are_asked_for_chunks():
    """Of files that others wrote; those of scratch space and of the store are our own."""
    asking = re.compile(r"group(\([^)]*\))?\s*\.column\b")
    own = {"kept_table.py", "parts.py"}
    found = {path.name for path in PIPELINE.rglob("*.py") if asking.search(path.read_text())}
    assert found - own == {"chunks.py"}


# Pages


def test_checksums_of_pages_are_verified(tmp_path):
    content = WRITERS["arrow checksums"]()
    path = tmp_path / "log.parquet"
    refused = 0
    for at in range(60, 260, 20):
        data = bytearray(content)
        data[at] ^= 1
        path.write_bytes(data)
        log = open_log(str(path), Columns("score", "label"))
        try:
            for piece in (piece for task in cut(log, 1 << 20) for piece in task):
                list(read_rows(log.filesystem, piece, log.columns))
        except InputRejectedError:
            refused += 1
    assert refused == 10
    assert mutated(content, 0) != content
