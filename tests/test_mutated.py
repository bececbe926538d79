"""Damaged Parquet files: an answer or a refusal, and never a scored file with fewer values than rows."""

from collections import Counter

import pytest
from chaos.inputs import lookup_table
from chaos.mutated_parquet import WRITERS, mutated, trial

from pipeline.errors import InputRejectedError
from pipeline.log.logs import Columns, cut, open_log, read_rows


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
