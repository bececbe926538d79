"""Log, store, output, quarantine and windows on an object store, and what its failures come to."""

import contextlib
import json
import shutil
import sys
import threading
from contextlib import suppress
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from s3 import BUCKET, environment, s3_server

from logcal.errors import ConfigError, InputRejectedError
from pipeline.files.requests import TOGETHER, together
from pipeline.log.logs import Columns, open_log
from pipeline.score.scored_file import HELD_BYTES

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("moto")
    with s3_server() as proxy:
        yield proxy


@pytest.fixture
def remote(server, place):
    """A place whose paths are on the server, in a folder of its own."""
    server.fault = lambda method, path: None
    place.environment.update(environment(server.url))
    place.server = server
    place.url = f"s3://{BUCKET}/{place.root.name}"
    place.filesystem = fsspec.filesystem(
        "s3",
        endpoint_url=server.url,
        key="someone",
        secret="very-secret-indeed",
        skip_instance_cache=True,
        use_listings_cache=False,
    )
    return place


def upload(place, name="log"):
    place.filesystem.put(str(place.root / name), f"{place.url}/{name}", recursive=True)


def paths(place, job, **more):
    own = {"log__path": f"{place.url}/log", "store__path": f"{place.url}/store"}
    if job in ("score", "evaluate"):
        own["output__path"] = f"{place.url}/{job}"
    return {**own, **more}


def job(place, name, *settings, **more):
    return place.job(name, *settings, **paths(place, name, **more))


def files(place):
    return {
        p.partition("/")[2].partition("/")[2]: place.filesystem.cat_file(p)
        for p in place.filesystem.find(place.url)
    }


def test_everything_on_the_store(remote):
    columns = remote.predictions()
    columns["score"][3] = np.nan
    remote.write_log(columns)
    upload(remote)
    quarantine = ("log.on_bad_rows=quarantine", f"log.quarantine_path={remote.url}/bad")
    job(remote, "fit", *quarantine).expect(0)
    found = files(remote)
    lookup = next(content for name, content in found.items() if name.endswith("lookup.parquet"))
    remote.job("fit", "log.on_bad_rows=quarantine").expect(0)
    assert lookup == remote.lookup()
    assert any(name.startswith("bad/") and name.endswith(".parquet") for name in found)
    job(remote, "fit", *quarantine).expect(99)
    scored = job(remote, "score").expect(0)
    assert f"{remote.url}/score" in scored.stdout
    assert {n.removeprefix("score/") for n in files(remote) if n.startswith("score/")} >= {"part-0.parquet"}
    remote.job("score").expect(0)
    local = {p.name: p.read_bytes() for p in remote.output.glob("part-*")}
    assert local == {
        n.removeprefix("score/"): c for n, c in files(remote).items() if n.startswith("score/part-")
    }
    job(remote, "evaluate", *quarantine).expect(0)
    assert "evaluate/report.html" in files(remote)
    store = ("--store", f"{remote.url}/store", "--table", "ads")
    assert "000001" in remote.run("tables", "list", *store).expect(0).stdout
    remote.run("tables", "page", *store[:2], "--output", f"{remote.url}/page.html").expect(0)
    assert b"000001" in files(remote)["page.html"]


@pytest.mark.parametrize("segments", [(), ("log.segment=[model]", "segments.min_rows=50")])
def test_a_kept_score_table_on_the_store_is_measured_as_its_log(remote, segments):
    columns = remote.predictions()
    columns["model"] = [f"m{i % 3}" for i in range(len(columns["score"]))]
    remote.write_log(columns)
    upload(remote)
    made = job(remote, "fit", *segments, "score_table.keep=true", "--json").expect(0).json
    kept = f"{made['lookup_path'].rpartition('/')[0]}/score_table"
    assert kept.startswith("s3://")
    measured = []
    for name, path in (("log", f"{remote.url}/log"), ("kept", kept), ("again", f"{kept}/")):
        where = {"log__path": path, "output__path": f"{remote.url}/of-{name}"}
        done = job(remote, "evaluate", "--json", **where).expect(0).json
        measured.append((done["before"], done["after"], done["distinct_scores"], done.get("segments")))
    assert measured[1:] == measured[:1] * 2
    part = next(path for path in remote.filesystem.find(kept))
    remote.filesystem.rm(part)
    failed = job(remote, "evaluate", log__path=kept, output__path=f"{remote.url}/of-damaged")
    failed.expect(3, "expected the parts that manifest.json names", "no file")


TWO_WORKERS = ("cluster.kind=local", "cluster.workers=2", "log.segment=[model]", "segments.min_rows=50")
DAYS = ("window.column=date", "window.last=2d")
WINDOW = (*DAYS, "log.weight=w", "score_table.keep=true", "log.on_bad_rows=quarantine")


def write_day(place, day):
    columns = place.predictions(900, seed=day)
    rng = np.random.default_rng(day)
    columns["w"] = rng.lognormal(0, 2, 900)
    columns["model"] = [f"m{i}" for i in rng.integers(0, 4, 900)]
    columns["score"][:3] = np.nan
    folder = place.write_log(columns, files=2, name=f"log/date=2026-11-{day:02d}")
    place.filesystem.put(str(folder), f"{place.url}/log/{folder.name}", recursive=True)


def published(place, found):
    current = found["store/ads/CURRENT"].decode().strip()
    version = f"store/ads/versions/{current}/"
    return {
        name.removeprefix(version): content
        for name, content in found.items()
        if name.startswith(version) and not name.endswith("manifest.json")
    }


def published_locally(place):
    version = place.store / "ads" / "versions" / place.current
    found = (path for path in version.rglob("*") if path.is_file() and path.name != "manifest.json")
    return {str(path.relative_to(version)): path.read_bytes() for path in found}


def test_scratch_and_day_tables_on_the_store_with_two_workers(remote):
    """As where all workers see nothing but the store."""
    write_day(remote, 1)
    scratch = {"scratch": f"{remote.url}/scratch"}
    bad = f"log.quarantine_path={remote.url}/bad"
    expected = [(2, 0), (1, 1)]
    for day, (days_sorted, days_reused) in zip((2, 3), expected, strict=True):
        write_day(remote, day)
        done = job(remote, "fit", "--json", *TWO_WORKERS, *WINDOW, bad, **scratch).expect(0).json
        assert (done["window"]["days_sorted"], done["window"]["days_reused"]) == (days_sorted, days_reused)
        assert done["quarantined_by_reason"] == {"score_nan": 6}
        found = files(remote)
        assert len({name.split("/")[3] for name in found if name.startswith("store/ads/days/")}) == 2
        assert not [name for name in found if name.startswith("scratch/") or "/lock/" in name]
        remote.job("fit", *TWO_WORKERS[2:], *WINDOW).expect(0)
        assert published(remote, found) == published_locally(remote)
        assert len([name for name in published(remote, found) if name.startswith("score_table/")]) >= 1
    plain = ("log.on_bad_rows=quarantine", "calibrator.method=platt", "store.force=true")
    job(remote, "fit", *TWO_WORKERS[:2], *plain, **scratch).expect(0)
    remote.job("fit", *plain).expect(0)
    assert published(remote, files(remote)) == published_locally(remote)
    assert not [name for name in files(remote) if name.startswith("scratch/")]


@pytest.mark.parametrize(
    ("kind", "code", "phrase"), [("503", 75, "failed or broke off"), ("403", 2, "found no permission")]
)
def test_scratch_on_a_store_that_fails(remote, kind, code, phrase):
    remote.write_log(files=1)
    remote.server.fault = lambda method, path: kind if "/scratch/" in path and method != "DELETE" else None
    remote.job("fit", scratch=f"{remote.url}/scratch").expect(code, "scratch: ", phrase)
    # Once a run is there.
    remote.server.fault = lambda method, path: kind if "/run-" in path and method == "GET" else None
    remote.job("fit", scratch=f"{remote.url}/scratch").expect(code, "/run-", phrase)
    remote.server.fault = lambda method, path: None
    assert not list(remote.store.glob("*/versions/*"))
    assert not [name for name in files(remote) if name.startswith("scratch/")]


@pytest.mark.parametrize("kind", ["500", "503", "reset", "cut"])
def test_a_table_that_the_store_does_not_give_is_not_said_to_be_damaged(remote, kind):
    """Whenever it stops: whoever reads the table says to try again, and a stream refuses no file for it."""
    remote.write_log(files=1)
    store = {"store__path": f"{remote.url}/store"}
    remote.job("fit", **store).expect(0)
    stream = {"output__path": f"{remote.url}/scored"}
    for name, settings, places in (("follow", ("--once",), stream), ("score", (), {})):
        for first in range(3):
            asked = iter(range(1_000_000))

            def fault(method, path, asked=asked, first=first):
                wanted = method == "GET" and path.partition("?")[0].endswith("lookup.parquet")
                return kind if wanted and next(asked) >= first else None

            remote.server.fault = fault
            done = remote.job(name, *settings, **places, **store)
            remote.server.fault = lambda method, path: None
            if next(asked) <= first:  # it asks less often
                break
            done.expect(75, "run again")
            assert "publish it again" not in done.stderr
    done = remote.job("follow", "--status", "--json", **stream, **store)
    assert done.expect(0).json["refused"] == {}


@pytest.mark.parametrize("held", [True, False])
def test_how_often_a_file_is_asked_for_its_size(remote, held):
    """A listing and opening it have told it; the rest looks whether it has changed."""
    rows = 3_000 if held else 600_000
    remote.write_log(remote.predictions(rows), files=1)
    assert (next(remote.log.iterdir()).stat().st_size <= HELD_BYTES) == held
    upload(remote)
    remote.server.requests.clear()
    for name, code in (("fit", 0), ("fit", 99), ("score", 0), ("evaluate", 0)):
        job(remote, name).expect(code)
    asked = [path for method, path, _ in remote.server.requests if method == "HEAD" and "/log/part-" in path]
    assert len(asked) <= 10, len(asked)


def test_requests_wait_together(remote):
    """The client would have ten under way, whatever waits."""
    remote.filesystem.pipe_file(f"{remote.url}/a", b"content")
    all_here = threading.Barrier(TOGETHER)

    def fault(method, path):
        with suppress(threading.BrokenBarrierError):
            all_here.wait(60)

    remote.server.fault = fault
    asked = together(lambda _: remote.filesystem.cat_file(f"{remote.url}/a", start=0, end=8), range(TOGETHER))
    assert set(asked) == {b"content"}
    assert not all_here.broken


FAULTS = ["500", "503", "reset", "cut", "403"]


@pytest.mark.parametrize(("name", "kind"), [*(("fit", kind) for kind in FAULTS), ("score", "cut")])
def test_a_store_that_always_fails(remote, name, kind):
    remote.write_log(files=1)
    upload(remote)
    if name == "score":
        job(remote, "fit").expect(0)
    before = files(remote)
    remote.server.fault = lambda method, path: kind if method in ("GET", "HEAD", "PUT") else None
    result = job(remote, name)
    remote.server.fault = lambda method, path: None
    assert result.code == (2 if kind == "403" else 75), result.stderr
    result.expect(result.code)
    assert "very-secret" not in result.stderr
    # A record of the attempt is all that may be new.
    assert _but_records(files(remote)) == _but_records(before)


def _but_records(found):
    return {name: content for name, content in found.items() if "/runs/" not in name}


@pytest.mark.parametrize(("name", "seed", "share"), [("score", 0, 0.05), ("fit", 1, 0.1), ("fit", 2, 0.9)])
def test_a_store_that_sometimes_fails(remote, name, seed, share):
    """It ends well, or in a refusal after which the same command ends well: with the same bytes."""
    remote.write_log(files=1)
    upload(remote)
    if name == "score":
        job(remote, "fit").expect(0)
    rng = np.random.default_rng(seed)
    kinds = ["500", "503", "reset", "cut"]
    remote.server.fault = lambda method, path: str(rng.choice(kinds)) if rng.random() < share else None
    for _ in range(3):
        result = job(remote, name)
        assert result.code in (0, 75, 99), result.stderr
        result.expect(result.code)
    remote.server.fault = lambda method, path: None
    last = job(remote, name)
    assert last.code in (0, 99), last.stderr
    if name == "score":
        remote.job("fit").expect(0)
        remote.job("score").expect(0)
        assert files(remote)["score/part-0.parquet"] == (remote.output / "part-0.parquet").read_bytes()
    else:
        remote.job("fit").expect(0)
        current = files(remote)["store/ads/CURRENT"].decode().strip()
        assert files(remote)[f"store/ads/versions/{current}/lookup.parquet"] == remote.lookup()


@pytest.mark.parametrize(
    ("settings", "change", "code", "phrase"),
    [
        ({"log__path": "s3://no-such-bucket/log"}, {}, 2, "expected a bucket that exists"),
        ({"log__path": f"s3://{BUCKET}/nothing/here"}, {}, 3, "no such file or directory"),
        ({}, {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}, 2, "credentials"),
        ({}, {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, 75, "was not reached"),
    ],
)
def test_stores_that_are_not_there(remote, settings, change, code, phrase):
    remote.write_log(files=1)
    upload(remote)
    for name, value in change.items():
        remote.environment.pop(name)
        if value is not None:
            remote.environment[name] = value
    job(remote, "fit", **settings).expect(code, phrase)


def test_a_plan_says_where_with_its_scheme(remote):
    remote.write_log(files=1)
    upload(remote)
    plan = job(remote, "fit", "--dry-run", "--json").expect(0)
    assert any(line.startswith(f"{remote.url}/store") for line in plan.json["writes"])
    assert json.loads(plan.stdout)
    assert Path(remote.root).exists()


def test_options_in_the_configuration_and_no_secret_in_anything_written(remote):
    remote.write_log(files=1)
    upload(remote)
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        remote.environment.pop(name)
    remote.environment["MINE"] = "very-secret-indeed"
    (remote.root / "options.yaml").write_text(
        "storage: {options: {s3: {key: someone-known, secret: '${MINE}', "
        f"endpoint_url: '{remote.server.url}'}}}}}}\n"
    )
    for name in ("fit", "score", "evaluate"):
        result = job(remote, name, "--config=options.yaml")
        result.expect(0)
        assert "very-secret" not in result.stderr + result.stdout
        assert "someone-known" not in result.stderr + result.stdout
    for name, content in files(remote).items():
        assert b"very-secret" not in content, name
        assert b"someone-known" not in content, name
    remote.environment.pop("MINE")
    phrase = "storage.options.s3.secret: expected the environment variable MINE to be set"
    job(remote, "fit", "--config=options.yaml").expect(2, phrase)


def test_a_stream_whose_store_loses_a_request_at_every_step(remote):
    """A follower whose n-th write fails ends with 75, and the next one goes on: the bytes are those of `score`."""
    remote.write_log(remote.predictions(600), files=2)
    upload(remote)
    job(remote, "fit").expect(0)
    stream = {"output__path": f"{remote.url}/scored", "log__path": f"{remote.url}/log"}
    writes: list[str] = []
    # The server is that of all tests here.
    remote.server.requests.clear()

    def fails_at(number: int):
        seen = iter(range(1_000_000))

        def fault(method: str, path: str) -> str | None:
            return "403" if method == "PUT" and "scored" in path and next(seen) == number else None

        return fault

    for number in (1, 3, 5):
        remote.server.fault = fails_at(number)
        done = job(remote, "follow", "--once", **stream)
        assert done.code in (2, 75), done.stderr
        assert "Traceback" not in done.stderr
        assert "follows this stream already" not in done.stderr
        writes += [path for method, path, kind in remote.server.requests if kind is not None]
    remote.server.fault = lambda method, path: None
    assert len(set(writes)) == 3
    job(remote, "follow", "--once", **stream).expect(0)
    job(remote, "follow", "--once", **stream).expect(99)
    job(remote, "score").expect(0)
    found = files(remote)
    scored = {n.removeprefix("scored/"): c for n, c in found.items() if n.startswith("scored/")}
    assert len(scored) == 2
    assert scored == {name: found[f"score/{name}"] for name in scored}


@pytest.mark.parametrize(
    ("kind", "code", "phrase"), [("403", 2, "found no permission"), ("503", 75, "run again")]
)
def test_an_output_that_the_store_does_not_take_is_no_fault_of_the_files(remote, kind, code, phrase):
    """A denied PUT made `follow` call the file bad."""
    remote.write_log(remote.predictions(600), files=2)
    remote.job("fit").expect(0)
    output = f"{remote.url}/scored"
    for method in ("PUT", "GET"):  # what is written is read back
        remote.server.fault = lambda asked, path, method=method: (
            kind if asked == method and "scored/" in path and ".parquet" in path.partition("?")[0] else None
        )
        for job, flags in (("score", ()), ("follow", ("--once",))):
            said = remote.job(job, *flags, output__path=output).expect(code, phrase).stderr
            assert "write the file again" not in said
    remote.server.fault = lambda method, path: None
    assert remote.job("follow", "--status", "--json", output__path=output).expect(0).json["refused"] == {}
    done = remote.job("follow", "--once", "--json", output__path=output).expect(0).json
    assert done["files"] == 2


# Tables of Delta Lake, Iceberg and Hudi

COLUMNS = Columns("score", "label")


def rows(n, seed=0):
    random = np.random.default_rng(seed)
    score = random.random(n)
    return pa.table({"score": score, "label": (random.random(n) < score).astype("i4"), "day": ["a b"] * n})


@pytest.fixture
def delta(tmp_path):
    """A Delta table of three versions: 25,000 rows, superseded by 2,000, then 498 more."""
    deltalake = pytest.importorskip("deltalake")
    path = str(tmp_path / "log")
    for n, mode in ((25_000, "overwrite"), (2000, "overwrite"), (498, "append")):
        deltalake.write_deltalake(path, rows(n, n), mode=mode, partition_by=["day"])
    return path


@contextlib.contextmanager
def iceberg_table(folder, io="pyiceberg.io.fsspec.FsspecFileIO", location=None):
    """A new table and what loads it again."""
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    places = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    catalog = sql.SqlCatalog("test", **places, **{"py-io-impl": io})
    catalog.create_namespace("ns")
    location = location or f"file://{folder}/log"
    yield catalog.create_table("ns.log", rows(1).schema, location=location), catalog.load_table
    catalog.engine.dispose()


@pytest.fixture
def iceberg(tmp_path):
    """The same as an Iceberg table."""
    with iceberg_table(tmp_path) as (table, _):
        table.append(rows(25_000, 25_000))
        table.overwrite(rows(2000, 2000))
        table.append(rows(498, 498))
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
    with pytest.raises(ConfigError, match=rf"log is a table of format {format_.title()}, .*pip install"):
        open_log(path, COLUMNS)


@pytest.mark.parametrize("below", ["day=a b", "*/*.parquet", "*.parquet", ".."])
def test_parts_of_a_table_and_folders_around_it_are_refused(delta, below):
    path = f"{delta}/{below}".replace("day=a b", "day=a%20b") if below != ".." else delta.rpartition("/")[0]
    with pytest.raises(InputRejectedError, match=r"overlaps the Delta table .*log.*give \$\[paths\] the"):
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
    with pytest.raises(
        InputRejectedError, match="expected a table of format Delta, found one that cannot be read"
    ):
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
    place.job("fit", log__path=plain, store__path=place.root / "other").expect(0)
    (other,) = (place.root / "other").rglob("lookup.parquet")
    assert other.read_bytes() == place.lookup()


# Columns by number.


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("change", ["dropped", "renamed"])
def test_rows_of_another_column_of_the_same_name_are_refused(tmp_path, change):
    with iceberg_table(tmp_path) as (table, load_table):
        from pyiceberg.types import DoubleType

        table.append(rows(50))
        with table.update_schema() as update:
            if change == "dropped":
                update.delete_column("score")
            else:
                update.rename_column("score", "before")
        with table.update_schema() as update:
            update.add_column("score", DoubleType())
        table = load_table("ns.log")
        new = rows(60).append_column("before", pa.array([0.5] * 60)) if change == "renamed" else rows(60)
        table.append(new.select([field.name for field in table.schema().fields]))
    with pytest.raises(InputRejectedError, match=r"column 'score' \(\$\[score\]\) is not in 1 of 2 files"):
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
    with pytest.raises(InputRejectedError, match="expected one metadata file of each version, found"):
        open_log(iceberg, COLUMNS)


# Storage.


@pytest.fixture
def guarded(tmp_path, monkeypatch):
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
def test_delta_tables_are_read_with_the_options_of_storage(delta, guarded):
    shutil.copytree(delta, guarded / "bucket" / "log")
    log = open_log("guarded://bucket/log", COLUMNS)
    assert log.rows == 2498
    assert all(file.path.startswith("bucket/log/") for file in log.files)


@pytest.mark.filterwarnings("ignore")
def test_iceberg_tables_are_read_with_the_options_of_storage(guarded, tmp_path):
    own = "pipeline.log.iceberg_files.FilesOfIceberg"
    with iceberg_table(tmp_path, own, "guarded://bucket/log") as (table, _):
        table.append(rows(300))
    assert open_log("guarded://bucket/log", COLUMNS).rows == 300
