"""A store and scored logs that version 0.1.0 wrote: they are read for ever, and made again to the last bit."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from common import run_job

import logcal
from pipeline.table.store import TableStore

GOLDEN = Path(__file__).parent / "golden"
TABLES = sorted(path.name for path in (GOLDEN / "store").iterdir())

FORMER = {
    "isotonic": {"ends": 0},
    "dg": {"ends": 0},
    "dgg": {"ends": 0},
    "enir": {"shrink": 0},
    "near_isotonic": {"shrink": 0},
    "bbq": {"cuts": "frequency"},
}
"""Parameters by which a method does what it did, where its defaults have moved since."""

REDRAWN = ("platt",)
"""Methods whose curve is drawn with other knots by now: it is the same curve, within what either table may be off."""

CHANGED = ("isotonic-strict", "isotonic-strict-weighted")
"""Tables of methods that give another map by now; `golden/changed` has that map."""


@pytest.fixture
def golden(tmp_path, monkeypatch):
    """A copy: nothing here may change the original."""
    shutil.copytree(GOLDEN, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def writer(path):
    return pq.ParquetFile(path).metadata.created_by


def assert_same_columns(found, expected, but=()):
    """To the last bit, signs of zeros and NaN included."""
    found, expected = found.drop_columns(list(but)), expected.drop_columns(list(but))
    assert found.schema.equals(expected.schema)
    for name in expected.column_names:
        one, other = (table[name].combine_chunks() for table in (found, expected))
        if pa.types.is_floating(one.type):
            assert one.is_null().equals(other.is_null())
            bits = [np.asarray(column.fill_null(0.0)).view(np.int64) for column in (one, other)]
            np.testing.assert_array_equal(*bits, err_msg=name)
        else:
            assert one.equals(other), name


@pytest.mark.parametrize("table", TABLES)
def test_scoring_with_a_table_gives_what_it_gave(golden, table):
    run_job("score", "log.path=to-score", "store.path=store", f"store.table={table}", "output.path=now")
    now, before = golden / "now" / "part-0.parquet", golden / "scored" / table / "part-0.parquet"
    assert_same_columns(pq.read_table(now), pq.read_table(before))


@pytest.mark.parametrize("table", [table for table in TABLES if table != "history"])
def test_a_fit_gives_the_table_that_it_gave(golden, table):
    version = TableStore("store", table).version()
    config = version.manifest["config"]
    former = FORMER.get(config["calibrator"]["method"], {})
    config["calibrator"]["params"] |= former
    config["store"] = {"path": "now", "table": table}
    config["gate"] = {"min_rows": 1}
    config |= {"cluster": {"kind": "inline"}, "scratch": None}
    Path("config.yaml").write_text(yaml.safe_dump(config))
    done = run_job(
        "fit", *(("segments.shrinkage=none",) if config["log"]["segment"] else ()), files=["config.yaml"]
    )
    now, before = Path(done["lookup_path"]), Path(version.lookup_path)
    if table in CHANGED:
        before = golden / "changed" / f"{table}.parquet"
    redrawn = config["calibrator"]["method"] in REDRAWN
    if not (former or redrawn or config["log"]["segment"]) and writer(now) == writer(before):
        assert now.read_bytes() == before.read_bytes()
    if redrawn:
        scored = ("log.path=to-score", "store.path=now", f"store.table={table}", "output.path=scored-now")
        run_job("score", *scored)
        found, expected = (
            pq.read_table(golden / folder / "part-0.parquet")["probability"].to_numpy()
            for folder in ("scored-now", f"scored/{table}")
        )
        error = config["calibrator"]["params"].get("max_error", 1e-9)
        np.testing.assert_allclose(found, expected, rtol=0, atol=2 * error)
    else:
        assert_same_columns(pq.read_table(now), pq.read_table(before))
    assert done["rows_used"] == version.manifest["data"]["rows_used"] > 0
    before = Path(version.lookup_path)
    for name in (path.name for path in before.parent.glob("s*/*.parquet")):
        parts = [folder.parent / "score_table" / name for folder in (now, before)]
        assert_same_columns(*(pq.read_table(part) for part in parts))


def test_a_table_with_a_history_is_taken_up(golden):
    store = TableStore("store", "history")
    first, second, third = store.names()
    assert store.current().name == second
    assert store.rollback()[1].name == first
    assert store.promote(third)[0] == first
    assert store.rollback()[1].name == first


@pytest.mark.filterwarnings("ignore:the table was fitted to probabilities")
@pytest.mark.parametrize("table", ["isotonic", "platt", "segments", "sigmoid-grid", "history"])
def test_applications_read_a_table_as_they_did(golden, table):
    before = pq.read_table(golden / "scored" / table / "part-0.parquet")
    segments = {"country": before["country"].to_pylist()} if table == "segments" else None
    found = logcal.load("store", table).predict(before["score"].fill_null(np.nan).to_numpy(), segments)
    expected = before["probability"].fill_null(np.nan).to_numpy()
    np.testing.assert_array_equal(found, expected)
