"""Tables of Delta Lake, Iceberg and Hudi: their live rows, or a refusal; never rows that were deleted."""

import shutil
import sys
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from logcal.errors import ConfigError, InputRejectedError
from pipeline.log.logs import Columns, open_log

pytestmark = pytest.mark.system

COLUMNS = Columns("score", "label")


def rows(n, seed=0):
    random = np.random.default_rng(seed)
    score = random.random(n)
    return pa.table(
        {"score": score, "label": (random.random(n) < score).astype(np.int32), "day": ["a b"] * n}
    )


@pytest.fixture
def delta(tmp_path):
    """A Delta table of three versions: 25,000 rows, superseded by 2,000, then 498 more."""
    deltalake = pytest.importorskip("deltalake")
    path = str(tmp_path / "log")
    for n, mode in ((25_000, "overwrite"), (2000, "overwrite"), (498, "append")):
        deltalake.write_deltalake(path, rows(n, n), mode=mode, partition_by=["day"])
    return path


@pytest.fixture
def iceberg(tmp_path):
    """The same as an Iceberg table."""
    pytest.importorskip("pyiceberg")
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog(
        "test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse"
    )
    catalog.create_namespace("ns")
    table = catalog.create_table("ns.log", rows(1).schema, location=f"file://{tmp_path}/log")
    table.append(rows(25_000, 25_000))
    table.overwrite(rows(2000, 2000))
    table.append(rows(498, 498))
    catalog.engine.dispose()
    return str(tmp_path / "log")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("format_", ["delta", "iceberg"])
def test_only_live_rows_are_read(request, format_):
    path = request.getfixturevalue(format_)
    log = open_log(path, COLUMNS)
    assert log.rows == 2498
    expected = np.sort(np.concatenate([rows(n, n)["score"].to_numpy() for n in (2000, 498)]))
    found = np.concatenate([pq.read_table(f.path, columns=["score"])["score"].to_numpy() for f in log.files])
    np.testing.assert_array_equal(np.sort(found), expected)
    [snapshot] = log.snapshots
    assert snapshot["format"].lower() == format_
    if format_ == "delta":
        assert snapshot["version"] == 2


@pytest.mark.parametrize("format_", ["delta", "iceberg"])
@pytest.mark.filterwarnings("ignore")
def test_without_the_extra_the_folder_is_refused(request, monkeypatch, format_):
    path = request.getfixturevalue(format_)
    for name in ("deltalake", "pyiceberg", "pyiceberg.table"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"log is an? {format_.title()} table.*pip install"):
        open_log(path, COLUMNS)


@pytest.mark.parametrize("below", ["day=a b", "*/*.parquet", "*.parquet", ".."])
def test_parts_of_a_table_and_folders_around_it_are_refused(delta, below):
    path = f"{delta}/{below}".replace("day=a b", "day=a%20b") if below != ".." else delta.rpartition("/")[0]
    with pytest.raises(InputRejectedError, match=r"overlaps the Delta table .*log.*give log.path the"):
        open_log(path, COLUMNS)


def test_hudi_is_refused(tmp_path):
    (tmp_path / ".hoodie").mkdir()
    (tmp_path / ".hoodie" / "hoodie.properties").write_text("")
    pq.write_table(rows(10), tmp_path / "a.parquet")
    with pytest.raises(InputRejectedError, match="is a Hudi table"):
        open_log(str(tmp_path), COLUMNS)


def test_a_damaged_table_is_refused(delta):
    for entry in sorted((Path(delta) / "_delta_log").glob("*.json")):
        entry.write_text("{")
    with pytest.raises(InputRejectedError, match="expected a Delta table, found one that cannot be read"):
        open_log(delta, COLUMNS)


def test_an_ordinary_folder_named_metadata(tmp_path):
    (tmp_path / "metadata").mkdir()
    pq.write_table(rows(10), tmp_path / "metadata" / "a.parquet")
    assert open_log(str(tmp_path), COLUMNS).rows == 10


def test_a_fit_and_a_score_of_a_delta_table(place, delta):
    assert delta == str(place.log)
    done = place.job("fit", "--json").expect(0)
    assert done.json["rows_read"] == 2498
    place.job("fit").expect(99)
    place.job("score").expect(0)
    assert sum(pq.read_metadata(p).num_rows for p in place.output.rglob("*.parquet")) == 2498
    plain = place.root / "plain"
    plain.mkdir()
    for i, file in enumerate(open_log(delta, COLUMNS).files):
        shutil.copy(file.path, plain / f"{i}.parquet")
    own = place.lookup()
    place.job("fit", log__path=plain, store__path=place.root / "other").expect(0)
    other = place.root / "other" / "ads"
    current = (other / "CURRENT").read_text().strip()
    assert (other / "versions" / current / "lookup.parquet").read_bytes() == own


# Columns by number.


@pytest.fixture
def catalog(tmp_path):
    pytest.importorskip("pyiceberg")
    from pyiceberg.catalog.sql import SqlCatalog

    made = SqlCatalog(
        "test",
        uri=f"sqlite:///{tmp_path}/catalog.db",
        warehouse=f"file://{tmp_path}/warehouse",
        **{"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"},
    )
    made.create_namespace("ns")
    yield made
    made.engine.dispose()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("change", ["dropped", "renamed"])
def test_rows_of_another_column_of_the_same_name_are_refused(tmp_path, catalog, change):
    table = catalog.create_table("ns.log", rows(1).schema, location=f"file://{tmp_path}/log")
    table.append(rows(50))
    with table.update_schema() as update:
        if change == "dropped":
            update.delete_column("score")
        else:
            update.rename_column("score", "before")
    with table.update_schema() as update:
        from pyiceberg.types import DoubleType

        update.add_column("score", DoubleType())
    table = catalog.load_table("ns.log")
    new = rows(60).append_column("before", pa.array([0.5] * 60)) if change == "renamed" else rows(60)
    table.append(new.select([field.name for field in table.schema().fields]))
    with pytest.raises(InputRejectedError, match=r"column 'score' \(log.score\) is not in 1 of 2 files"):
        open_log(str(tmp_path / "log"), COLUMNS)
    if change == "renamed":
        with pytest.raises(InputRejectedError, match="column 'before'"):
            open_log(str(tmp_path / "log"), Columns("before", "label"))
    assert open_log(str(tmp_path / "log"), Columns("label", "label")).rows == 110


@pytest.mark.filterwarnings("ignore")
def test_two_metadata_files_of_one_number_are_refused(iceberg):
    folder = Path(iceberg) / "metadata"
    newest = max(folder.glob("*.metadata.json"))
    shutil.copy(newest, folder / f"{newest.name.partition('-')[0]}-other.metadata.json")
    with pytest.raises(InputRejectedError, match="expected one metadata file of each number, found"):
        open_log(iceberg, COLUMNS)


# Storage.


@pytest.fixture
def remote(tmp_path, monkeypatch):
    """A file system that only who has the configuration's options can use; requests elsewhere would fail."""

    class Guarded(DirFileSystem):
        protocol = "guarded"
        cachable = False

        def __init__(self, key=None, **options):
            if key != "from the configuration":
                raise PermissionError("no key")
            super().__init__(str(tmp_path / "remote"), LocalFileSystem(auto_mkdir=True), **options)

        @classmethod
        def _strip_protocol(cls, path):
            return path.removeprefix("guarded://").strip("/")

        def unstrip_protocol(self, name):
            return f"guarded://{self._strip_protocol(name)}"

    fsspec.register_implementation("guarded", Guarded, clobber=True)
    monkeypatch.setitem(fsspec.config.conf, "guarded", {"key": "from the configuration"})
    return tmp_path / "remote"


@pytest.mark.filterwarnings("ignore")
def test_delta_tables_are_read_with_the_options_of_storage(delta, remote):
    shutil.copytree(delta, remote / "bucket" / "log")
    log = open_log("guarded://bucket/log", COLUMNS)
    assert log.rows == 2498
    assert all(file.path.startswith("bucket/log/") for file in log.files)


@pytest.mark.filterwarnings("ignore")
def test_iceberg_tables_are_read_with_the_options_of_storage(remote, tmp_path):
    pytest.importorskip("pyiceberg")
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog(
        "test",
        uri=f"sqlite:///{tmp_path}/catalog.db",
        **{"py-io-impl": "pipeline.log.iceberg_files.FilesOfIceberg"},
    )
    catalog.create_namespace("ns")
    table = catalog.create_table("ns.log", rows(1).schema, location="guarded://bucket/log")
    table.append(rows(300))
    catalog.engine.dispose()
    assert open_log("guarded://bucket/log", COLUMNS).rows == 300
