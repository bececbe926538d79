"""Following a stream: each file once, the same bytes as score, whatever dies when."""

import contextlib
import datetime as dt
import errno
import fcntl
import inspect
import io
import json
import math
import os
import re
import shutil
import signal
import socket
import sys
import time
from functools import partial
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chaos.mutated_parquet import with_row_groups
from common import write_lookup
from conftest import Running
from s3 import BUCKET, environment, s3_server

from calibrators import Isotonic
from logcal.errors import CheckFailedError, InputRejectedError, TemporaryError
from pipeline.execution import InlineExecutor
from pipeline.files import clock, locks
from pipeline.files.folders import Folder, LocalFolder, StoreFolder
from pipeline.files.storage import records_beside
from pipeline.follow import batch as batches
from pipeline.follow import follower as following
from pipeline.follow import ledger as ledgers
from pipeline.follow.batch import Limits, Places, cut, list_sources
from pipeline.follow.follower import Follower, Rules, rebuilt
from pipeline.follow.ledger import Known, LeaseOwner, Ledger, SourceFile
from pipeline.log import thrift
from pipeline.log.log_files import LogFile
from pipeline.monitor.history import History, WatchedDay, read_history, watched_days
from pipeline.pages.stream_page import render_stream
from pipeline.score.scored_file import Scoring, score_file

LOCAL = fsspec.filesystem("file")
STREAM = {"log": "log", "table": "ads"}


class Died(BaseException):
    """Stands for SIGKILL: nothing is cleaned up after it."""


class World:
    """A log, an output, and tables, on a file system."""

    def __init__(self, folder: Path, protocol: str = "file") -> None:
        self.folder = folder
        self.log = folder / "log"
        self.log.mkdir()
        self.filesystem = fsspec.filesystem(protocol)
        self.output = str(folder / "scored") if protocol == "file" else f"/{folder.name}/scored"
        self.tables = {name: self._table(name, seed) for seed, name in enumerate(["000001-a", "000002-b"])}
        self.current = "000001-a"
        self.rules = Rules()

    def _table(self, name: str, seed: int) -> str:
        rng = np.random.default_rng(seed)
        score = rng.random(200)
        fitted = Isotonic().fit(score, rng.random(200) < score)
        return write_lookup(self.folder / f"{name}.parquet", fitted.calibration_map_, name)

    def arrive(self, name: str, rows: int = 20, seed: int = 0, at: float | None = None) -> Path:
        """A file lands by a rename, as writers should have it."""
        path = self.log / name
        path.parent.mkdir(parents=True, exist_ok=True)
        score = np.random.default_rng([seed, rows, *name.encode()]).random(rows)
        temporary = path.with_name(f"_{path.name}")
        pq.write_table(pa.table({"score": score, "id": np.arange(rows)}), temporary)
        if at is not None:
            os.utime(temporary, (at, at))
        temporary.rename(path)
        return path

    def scoring(self, version: str) -> Scoring:
        return Scoring("score", self.tables[version])

    @property
    def places(self) -> Places:
        return Places(Folder.at(self.log), Folder.of(self.filesystem, self.output))

    def ledger(self) -> Ledger:
        return Ledger(Folder.of(self.filesystem, self.output))

    def follower(self) -> Follower:
        ledger = self.ledger()
        ledger.begin(STREAM)
        lease_owner = LeaseOwner(ledger.folder)
        own = (self.places, ledger, self.rules, self.scoring, lambda: self.current)
        return Follower(*own, InlineExecutor(), lease_owner)

    def started(self) -> Follower:
        follower = self.follower()
        follower.start()
        return follower

    def take_all(self, follower: Follower | None = None) -> Follower:
        """What --once does."""
        follower = follower or self.follower()
        follower.start()
        while follower.run(follower.listing(complete=True)) is not None:
            pass
        follower.lease_owner.release()
        return follower

    def written(self) -> dict[str, bytes]:
        """The output's files."""
        found = self.filesystem.find(self.output) if self.filesystem.exists(self.output) else []
        shown = [p for p in found if not p.rpartition("/")[2].startswith(".")]
        return {p[len(self.output) + 1 :]: self.filesystem.cat_file(p) for p in shown}

    def expected(self, versions: dict[str, str] | None = None) -> dict[str, bytes]:
        """The bytes that the score job writes."""
        found = {}
        for source in list_sources(Folder.at(self.log)):
            rows = batches.rows_of(Folder.at(self.log), source.name)
            if rows is None:
                continue
            target = self.folder / "expected.parquet"
            scoring = self.scoring((versions or {}).get(source.name, self.current))
            file = LogFile(str(self.log / source.name), source.name, source.size, source.stamp)
            score_file(LOCAL, file, LOCAL, str(target), scoring)
            found[source.name] = target.read_bytes()
        return found


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.fixture(params=["file", "memory"])
def any_world(tmp_path, request):
    """On a mounted folder, and on a store that has conditional PUTs and no rename."""
    yield World(tmp_path, request.param)
    fsspec.filesystem("memory").store.clear()


def test_a_batch_is_done_when_its_files_are_on_the_disk(world, monkeypatch):
    flushed, real = [], os.fsync

    def fsync(descriptor):
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    world.arrive("date=2026-11-20/part-0.parquet")
    monkeypatch.setattr(os, "fsync", fsync)
    world.take_all()
    done = max(i for i, path in enumerate(flushed) if path.parent.name == "done")
    assert {"part-0.parquet", "date=2026-11-20"} <= {path.name for path in flushed[:done]}


def test_each_file_once_with_the_bytes_of_score(any_world):
    world = any_world
    for i in range(7):
        world.arrive(f"date=2026-11-{20 + i % 2}/part-{i}.parquet")
    world.rules = Rules(limits=Limits(files=3))
    follower = world.take_all()
    assert world.written() == world.expected()
    assert follower.ledger.last == 3
    again = world.take_all()
    assert again.ledger.last == 3
    world.arrive("late.parquet")
    assert world.take_all().ledger.last == 4
    assert world.written() == world.expected()


# A kill after each write of a batch


class Killing:
    """Dies at the n-th write, before or after it."""

    def __init__(self, monkeypatch, at: int, after: bool) -> None:
        self.left = at
        self.after = after
        for module, name in (
            (LocalFolder, "create"),
            (LocalFolder, "write"),
            (StoreFolder, "create"),
            (StoreFolder, "write"),
            (batches, "score_file"),
            (Ledger, "_remove"),
            (Follower, "_remove"),
        ):
            monkeypatch.setattr(module, name, self._wrapped(getattr(module, name)))

    def _wrapped(self, function):
        def dying(*args, **kwargs):
            self.left -= 1
            dies = self.left == 0
            if dies and not self.after:
                raise Died
            result = function(*args, **kwargs)
            return self._last(result) if dies else result

        return dying

    def _last(self, result):
        if not inspect.isgenerator(result):
            raise Died

        def steps():
            yield from result
            raise Died

        return steps()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("protocol", ["file", "memory"])
def test_a_kill_at_each_write_leaves_what_the_next_follower_finishes(tmp_path, protocol, after, monkeypatch):
    monkeypatch.setattr(ledgers, "COMPACT_EVERY", 2)
    at, happened = 0, True
    while happened:
        at += 1
        folder = tmp_path / f"kill-{at}"
        folder.mkdir()
        world = World(folder, protocol)
        world.rules = Rules(limits=Limits(files=2), deleted="remove")
        for i in range(5):
            world.arrive(f"date=2026-11-20/part-{i}.parquet")
        gone = world.arrive("date=2026-11-21/gone.parquet", at=1.0)
        with monkeypatch.context() as patch:
            killing = Killing(patch, at, after)
            follower = None
            try:
                follower = world.follower()
                follower.start()
                follower.run(follower.listing(complete=True))
                gone.unlink()
                world.take_all(follower)
            except Died:
                # The operating system gives the lock back; a lease runs out.
                if follower is not None:
                    _die(follower)
            happened = killing.left <= 0
        gone.unlink(missing_ok=True)
        # The table has changed meanwhile: a batch that was planned keeps its version.
        planned = _planned(world)
        world.current = "000002-b"
        done = set(_known(world))
        with monkeypatch.context() as patch:
            patch.setattr(locks, "LEASE", dt.timedelta(0))
            world.take_all()
        versions = dict.fromkeys({*planned, *done}, "000001-a")
        assert world.written() == world.expected(versions), at
        assert set(_known(world)) == set(world.written())
        fsspec.filesystem("memory").store.clear()
    assert at > 15


def _die(follower: Follower) -> None:
    if not follower.ledger.folder.remote:
        follower.lease_owner.release()
    else:
        follower.lease_owner._lock._ended.set()


def _planned(world: World) -> list[str]:
    ledger = world.ledger()
    left = ledger.load() if ledger.stream() else None
    return [] if left is None else [source.name for source in left.files]


def _known(world: World) -> dict[str, Known]:
    ledger = world.ledger()
    if ledger.stream():
        ledger.load()
    return ledger.files


def test_two_followers(any_world):
    world = any_world
    first = world.follower()
    with pytest.raises(TemporaryError, match="follows this stream already"):
        world.follower()
    first.lease_owner.release()
    world.follower().lease_owner.release()


def test_a_paused_holder_of_a_lease_writes_nothing_more(tmp_path, monkeypatch):
    world = World(tmp_path, "memory")
    world.arrive("a.parquet")
    paused = world.started()
    change = paused.listing(complete=True)
    world.current = "000002-b"
    monkeypatch.setattr(locks, "LEASE", dt.timedelta(0))
    world.take_all()
    with pytest.raises(TemporaryError, match="took over"):
        paused.run(change)
    assert world.written() == world.expected()
    fsspec.filesystem("memory").store.clear()


def test_the_loser_of_a_race_for_a_batch_ends(world):
    world.arrive("a.parquet")
    follower = world.started()
    change = follower.listing(complete=True)
    other = world.ledger()
    other.load()
    assert other.plan("000001-a", change.new) is not None
    with pytest.raises(TemporaryError, match="another follower began"):
        follower.run(change)


def test_times_order_files_and_never_leave_one_out(world):
    world.arrive("new.parquet", at=time.time())
    world.arrive("future.parquet", at=dt.datetime(2099, 1, 1, tzinfo=dt.UTC).timestamp())
    world.arrive("date=2099-01-01/future.parquet")
    world.arrive("date=1970-01-02/old.parquet", at=1.0)
    follower = world.take_all()
    assert world.written() == world.expected()
    world.arrive("date=1970-01-02/later.parquet", at=2.0)
    follower = world.started()
    assert [s.name for s in follower.listing(complete=False).new] == []
    assert [s.name for s in follower.listing(complete=True).new] == ["date=1970-01-02/later.parquet"]


def test_all_days_are_listed_again_once_the_time_has_passed(world):
    world.rules = Rules(lookback=1, relist=3600.0)
    follower = world.started()
    follower.listing()
    world.arrive("date=2020-01-01/old.parquet")
    assert not follower.listing().new
    follower._last_complete -= 3600
    assert [file.name for file in follower.listing().new] == ["date=2020-01-01/old.parquet"]


def test_between_whole_listings_only_days_within_the_lookback_are_listed(world):
    today = dt.datetime.now(dt.UTC).date()
    for days in (0, 3, 4, -1):
        world.arrive(f"date={today - dt.timedelta(days)}/part.parquet")
    world.arrive("other=1/part.parquet")
    since = today - dt.timedelta(3)
    found = {s.name for s in list_sources(Folder.at(world.log), since=since)}
    whole = {s.name for s in list_sources(Folder.at(world.log))}
    assert whole - found == {f"date={today - dt.timedelta(4)}/part.parquet"}


@pytest.mark.parametrize("changed", ["rescore", "ignore", "fail"])
def test_a_file_that_is_changed_in_place(world, changed):
    path = world.arrive("a.parquet", at=1.0)
    world.take_all()
    before = world.written()
    content = pq.read_table(path)
    backwards = pa.array(content["score"].to_numpy()[::-1].copy())
    pq.write_table(content.set_column(0, "score", backwards), path)
    os.utime(path, (2.0, 2.0))
    world.rules = Rules(changed=changed)
    if changed == "fail":
        with pytest.raises(CheckFailedError, match="another size or stamp"):
            world.take_all()
        return
    world.take_all()
    assert world.written() == (world.expected() if changed == "rescore" else before)


def test_a_file_that_changes_between_plan_and_read_is_taken_as_it_is_then(world, monkeypatch):
    path = world.arrive("a.parquet", at=1.0)
    follower = world.started()
    change = follower.listing(complete=True)
    world.arrive("a.parquet", rows=30, at=2.0)
    report = follower.run(change)
    assert report.files == 0
    assert world.written() == {}
    world.take_all(follower)
    assert world.written() == world.expected()
    assert pq.read_metadata(path).num_rows == 30


@pytest.mark.parametrize("deleted", ["keep", "remove"])
def test_a_source_that_is_deleted(any_world, deleted):
    world = any_world
    world.arrive("a.parquet")
    gone = world.arrive("b.parquet")
    world.take_all()
    before = world.written()
    gone.unlink()
    world.rules = Rules(deleted=deleted)
    world.take_all()
    assert world.written() == (before if deleted == "keep" else world.expected())
    assert ("b.parquet" in _known(world)) == (deleted == "keep")


def test_half_written_then_whole(world):
    path = world.arrive("a.parquet")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    world.arrive("b.parquet")
    follower = world.started()
    report = follower.run(follower.listing(complete=True))
    assert (report.files, report.waiting, report.refused) == (1, 1, {})
    # Not tried at every look, unless it has changed.
    assert follower.listing(complete=True).new == ()
    path.write_bytes(whole)
    os.utime(path, (5.0, 5.0))
    world.take_all(follower)
    assert world.written() == world.expected()
    assert follower.ledger.waiting == {}


def test_a_clock_that_is_set_back_lets_no_file_wait_for_as_long(world, monkeypatch):
    (world.log / "half.parquet").write_bytes(b"PAR1")
    world.rules = Rules(give_up=60)
    real = time.time
    for set_to, waits in ((0, True), (-86400, True), (-86400 + 61, False)):
        monkeypatch.setattr(following.time, "time", lambda moved=set_to: real() + moved)
        follower = world.take_all()
        assert (list(follower.ledger.waiting) == ["half.parquet"]) is waits
    assert list(follower.ledger.refused) == ["half.parquet"]


def test_poison_stops_nothing_and_is_tried_again_when_asked(world):
    path = world.log / "poison.parquet"
    pq.write_table(pa.table({"other": [1.0]}), path)
    os.utime(path, (1.0, 1.0))
    empty = world.log / "empty.parquet"
    empty.touch()
    world.arrive("good.parquet")
    world.rules = Rules(give_up=0)
    follower = world.take_all()
    refused = {name for name, known in follower.ledger.files.items() if known.reason}
    assert refused == {"poison.parquet", "empty.parquet"}
    assert "column 'score' ($[score]) is not in" in follower.ledger.files["poison.parquet"].reason
    assert "0 bytes" in follower.ledger.files["empty.parquet"].reason
    assert set(world.written()) == {"good.parquet"}
    # Mended in place, with its size and time as they were.
    again = world.started()
    with pytest.raises(InputRejectedError, match="refused are"):
        again.retry("nowhere.parquet")
    again.retry("good.parquet")
    assert "good.parquet" in again.ledger.files
    pq.write_table(pa.table({"score": [1.0]}), path)
    again.ledger.files["poison.parquet"] = Known(path.stat().st_size, str(path.stat().st_mtime), reason="so")
    assert again.listing(complete=True).new == ()
    again.retry("poison.parquet")
    world.take_all(again)
    assert set(world.written()) == {"good.parquet", "poison.parquet"}


def _content(columns, **options) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), buffer, **options)
    return buffer.getvalue()


def _of_rows(first: int) -> bytes:
    """A file of 30 rows whose footer says another number of its first row group."""

    def change(groups):
        groups[0][3] = (thrift.I64, thrift.integer(first))

    return with_row_groups(_content({"score": np.linspace(0, 1, 30)}, row_group_size=10), change)


POISON = {
    "text": _content({"score": ["0.5", "0.1"]}),
    "nulls": _content({"score": pa.nulls(3)}),
    "instants": _content({"score": pa.array([1, 2], pa.timestamp("ns"))}),
    "days": _content({"score": pa.array([1, 2], pa.date32())}),
    "durations": _content({"score": pa.array([5], pa.duration("us"))}),
    "booleans": _content({"score": [True, False]}),
    "two": _content(pa.Table.from_arrays([pa.array([0.5]), pa.array([0.5])], names=["score", "score"])),
    "lists": _content({"score": [[0.5]]}),
    "negative": _of_rows(-5),
    "least": _of_rows(-(2**63)),
    "fewer": _of_rows(0),
}
"""Files whose footers can be read, and whose scores cannot be used."""


def test_a_schema_of_too_many_levels_is_told_so(place, stream):
    """It was told to be written again, though nothing was wrong with the write, and to be half-written."""
    follow, arriving = stream
    column = pa.array([1.5])
    for _ in range(150):
        column = pa.StructArray.from_arrays([column], ["inner"])
    path = arriving / "deep.parquet"
    pq.write_table(pa.table({"score": [0.5], "deep": column}), path)
    try:
        pq.read_schema(path)
    except OSError as error:
        if "nested" not in str(error):
            pytest.skip("this Arrow says something else")
    says = "expected columns that Arrow reads, found one of too many levels"
    place.job("score", log__path=path, output__path="alone").expect(3, says, "write the file without it")
    assert "being written" not in follow("--once").expect(3, says).stderr
    assert list(follow("--status", "--json").expect(0).json["refused"]) == ["deep.parquet"]


def test_files_that_cannot_be_used_are_refused_by_each_command(place, stream):
    follow, arriving = stream
    for kind, content in POISON.items():
        (arriving / f"{kind}.parquet").write_bytes(content)
    _lands(arriving, "good.parquet")
    follow("--once").expect(3, f"{len(POISON)} files refused")
    assert [path.name for path in place.output.glob("*.parquet")] == ["good.parquet"]
    refused = follow("--status", "--json").expect(0).json["refused"]
    assert set(refused) == {f"{kind}.parquet" for kind in POISON}
    for kind in ("text", "negative"):
        place.job("score", log__path=arriving / f"{kind}.parquet", output__path="alone").expect(3, kind)


def test_files_that_are_scored_together_do_not_share_their_faults(world, monkeypatch):
    """Of eight: one is no Parquet, one lacks the column, and one changes while it is read."""
    for i in range(8):
        world.arrive(f"{i}.parquet", rows=20 + i, at=float(i + 1))
    (world.log / "1.parquet").write_bytes(b"PAR1 and not more PAR1")
    pq.write_table(pa.table({"other": [0.5]}), world.log / "3.parquet")
    real = score_file

    def disturbed(*args):
        if args[1].relative == "5.parquet":
            path = world.log / "5.parquet"
            path.write_bytes(path.read_bytes())
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(batches, "score_file", disturbed)
        follower = world.started()
        follower.run(follower.listing())
    assert set(world.written()) == {f"{i}.parquet" for i in (0, 2, 4, 6, 7)}
    known = _known(world)
    assert "'score'" in known["3.parquet"].reason
    assert {name for name, one in known.items() if one.reason is None} == set(world.written())
    assert set(follower.ledger.waiting) == {"1.parquet"}
    assert not list(Path(world.output).rglob(".*"))
    world.take_all(follower)
    assert {"5.parquet"} == set(world.written()) - {f"{i}.parquet" for i in (0, 2, 4, 6, 7)}
    (world.log / "1.parquet").unlink()
    (world.log / "3.parquet").unlink()
    assert world.written() == world.expected()


def test_a_lost_ledger_is_made_again(world, monkeypatch):
    world.arrive("a.parquet")
    changed = world.arrive("b.parquet")
    world.take_all()
    shutil.rmtree(records_beside(str(world.output)))
    later = time.time() + 10
    os.utime(changed, (later, later))
    follower = world.follower()
    follower.ledger.load()
    assert rebuilt(world.places, follower.ledger) == 1
    scored = []
    real = score_file
    monkeypatch.setattr(batches, "score_file", lambda *args: (scored.append(args[1].path), real(*args))[1])
    world.take_all(follower)
    assert scored == [str(changed)]
    assert world.written() == world.expected()


def test_what_is_left_of_a_ledger_is_no_hindrance_to_a_new_one(any_world):
    world = any_world
    world.arrive("a.parquet")
    world.take_all()
    world.ledger().folder.remove("stream.json")
    assert rebuilt(world.places, world.ledger()) == 1
    world.arrive("b.parquet")
    follower = world.take_all()
    assert set(follower.ledger.files) == {"a.parquet", "b.parquet"}
    assert world.written() == world.expected()


def test_the_ledger_of_another_stream(world):
    world.take_all()
    path = Path(records_beside(str(world.output))) / "stream.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "format_version": "2"}))
    with pytest.raises(InputRejectedError, match=r"ledger of this stream is damaged .*--rebuild"):
        world.ledger().begin(STREAM)
    del content["checksum"]
    path.write_text(json.dumps({**content, "format_version": "2"}))
    with pytest.raises(InputRejectedError, match="newer version of logcal"):
        world.ledger().begin(STREAM)


def test_old_partitions_are_forgotten_by_name_and_not_scored_again(world, monkeypatch):
    monkeypatch.setattr(ledgers, "COMPACT_EVERY", 1)
    today = dt.datetime.now(dt.UTC).date()
    for days in (0, 40):
        world.arrive(f"date={today - dt.timedelta(days)}/a.parquet")
    world.take_all()
    assert len(_known(world)) == 2
    world.rules = Rules(forget=30, deleted="remove")
    world.arrive("b.parquet")
    world.take_all()
    assert set(_known(world)) == {f"date={today}/a.parquet", "b.parquet"}
    assert world.written() == world.expected()


def test_states_hold_what_is_known(world, monkeypatch):
    monkeypatch.setattr(ledgers, "COMPACT_EVERY", 3)
    world.rules = Rules(limits=Limits(files=1))
    for i in range(8):
        world.arrive(f"date=2026-11-{20 + i % 3}/part-{i}.parquet", at=i + 1.0)
    known = world.take_all().ledger.files
    assert _known(world) == known
    ledger = Path(records_beside(str(world.output)))
    assert len(list((ledger / "done").iterdir())) <= 3
    assert len(list((ledger / "state").rglob("*.json"))) == 3


def test_a_batch_has_one_file_at_least_and_keeps_to_its_limits():
    files = [SourceFile(str(i), 10, "0") for i in range(5)]
    limits = [Limits(9, 1), Limits(9, 25), Limits(3, 99), Limits(9, 99)]
    assert [len(cut(files, own)) for own in limits] == [1, 2, 3, 5]
    assert cut([], Limits()) == ()


# The command


@pytest.fixture(scope="module")
def s3():
    pytest.importorskip("moto")
    with s3_server() as server:
        yield server


def test_a_file_that_became_a_folder_of_its_name_has_only_its_own_result_removed(tmp_path, s3):
    world = World(tmp_path)
    keys = {"key": "someone", "secret": "very-secret-indeed"}
    world.filesystem = fsspec.filesystem("s3", endpoint_url=s3.url, **keys)
    world.output = f"{BUCKET}/{tmp_path.name}/scored"
    world.rules = Rules(deleted="remove")
    gone = world.arrive("a.parquet")
    world.take_all()
    gone.unlink()
    world.arrive("a.parquet/part-0.parquet")
    world.take_all()
    assert world.written() == world.expected() != {}
    assert _known(world).keys() == {"a.parquet/part-0.parquet"}


@pytest.fixture
def stream(fitted, place):
    """Follow a folder that files arrive in, with a table that has been published; and the folder."""
    arriving = place.root / "arriving"
    arriving.mkdir()

    def follow(*settings, run=place.job):
        return run("follow", *settings, log__path=arriving, output__path=place.output)

    return follow, arriving


def _lands(folder: Path, name: str, rows: int = 50) -> None:
    hidden = folder / f"_{name}"
    pq.write_table(pa.table({"score": np.random.default_rng(rows).random(rows)}), hidden)
    hidden.rename(folder / name)


def test_once_says_what_it_did(place, stream):
    follow, arriving = stream
    follow("--once").expect(99, "no files are new")
    _lands(arriving, "a.parquet")
    done = follow("--once", "--json").expect(0).json
    assert (done["files"], done["rows"], done["batches"], done["version"]) == (1, 50, 1, place.current)
    follow("--once").expect(99)
    (arriving / "poison.parquet").write_text("this is no Parquet file")
    _lands(arriving, "b.parquet")
    follow("--once", "log.give_up=0s").expect(3, "1 file refused (poison.parquet); the others were scored")
    follow("--once").expect(99)
    status = follow("--status", "--json").expect(0).json
    assert (status["files"], status["backlog"], list(status["refused"])) == (2, 0, ["poison.parquet"])
    _lands(arriving, "c.parquet")
    status = follow("--status").expect(0)
    assert "2 files scored, 1 to score" in status.stdout
    assert "refused poison.parquet: " in status.stdout
    follow("--once", "follow.retry=nothing").expect(3, "expected the name of a refused file, found nothing")
    place.job("score", log__path=arriving / "b.parquet", output__path=place.root / "batch").expect(0)
    assert (place.output / "b.parquet").read_bytes() == (place.root / "batch" / "b.parquet").read_bytes()


@pytest.mark.parametrize(
    ("number", "code", "phrase"),
    [
        (errno.ENOSPC, 75, "no space left"),
        (errno.EROFS, 2, "expected a place that can be written to"),
        (errno.EACCES, 2, "found no permission"),
        (errno.ENOENT, 75, "found none"),  # the folder has been removed
        (errno.EIO, 75, "a file operation failed"),
    ],
)
def test_an_output_that_cannot_be_written_is_no_fault_of_the_files(
    place, stream, monkeypatch, number, code, phrase
):
    follow, arriving = stream
    _lands(arriving, "a.parquet")

    def fails(*names):
        raise OSError(number, os.strerror(number), names[1])

    with monkeypatch.context() as patched:
        patched.setattr("pipeline.score.parquet.append.os.replace", fails)
        follow("--once").expect(code, phrase)
    assert follow("--status", "--json").expect(0).json["refused"] == {}
    assert follow("--once", "--json").expect(0).json["files"] == 1


def test_a_version_that_a_begun_batch_names_is_not_removed(place, stream):
    follow, arriving = stream
    pinned = place.current

    def prune():
        return place.run("tables", "prune", "--store", str(place.store), "--table", "ads", "--keep", "1")

    _lands(arriving, "a.parquet")
    follow("--once").expect(0)
    ledger = Ledger(Folder.at(place.output))
    ledger.load()
    _lands(arriving, "b.parquet")
    listed = [s for s in list_sources(Folder.at(arriving)) if s.name == "b.parquet"]
    assert ledger.plan(pinned, listed) is not None  # and its follower dies
    for method in ("histogram", "sbb"):
        place.job("fit", f"calibrator.method={method}", "gate.max_change=null").expect(0)
    prune().expect(0)
    assert pinned in place.versions
    assert follow("--once", "--json").expect(0).json["version"] == pinned
    prune().expect(0)
    assert pinned not in place.versions
    note = next((place.store / "ads" / "streams").iterdir())
    note.write_text("{")
    prune().expect(75, "remove it")
    shutil.rmtree(place.root / ".output.logcal")
    note.write_text(json.dumps({"output": str(place.output)}))
    prune().expect(0)


def test_metrics_and_a_page_say_how_it_stands(place, stream):
    follow, arriving = stream
    told = (f"record.prometheus={place.root}/all.prom", f"report.path={place.root}/page")
    (place.root / "all.prom").write_text('logcal_rows{job="fit",table="ads",kind="rows"} 7\n')
    _lands(arriving, "a.parquet")
    (arriving / "<b>.parquet").write_text("this is no Parquet file")
    follow("--once", "log.give_up=0s", *told).expect(3)
    metrics = (place.root / "all.prom").read_text()
    own = f'table="ads",output="{place.output}"'
    for line in (
        f"logcal_stream_batches{{{own}}} 1.0",
        f'logcal_stream_files{{{own},kind="scored"}} 1.0',
        f'logcal_stream_files{{{own},kind="refused"}} 1.0',
        f'logcal_stream_rows{{{own},kind="scored"}} 50.0',
        'logcal_rows{job="fit",table="ads",kind="rows"} 7',
        'logcal_last_exit_code{job="follow",table="ads"} 3.0',
    ):
        assert line in metrics.splitlines(), metrics
    page = (place.root / "page" / "report.html").read_text()
    assert "&lt;b&gt;.parquet" in page
    assert "<b>.parquet" not in page
    assert "1 file scored, 1 refused." in page
    # The live version, whatever the last batch had.
    place.job("fit", "calibrator.method=platt").expect(0)
    follow("--once", *told).expect(99)
    assert place.current in (place.root / "page" / "report.html").read_text()
    follow("--once", *told, "report.path=/proc/page").expect(99, "report.path: /proc/page cannot be written")
    assert f"logcal_stream_batches{{{own}}} 0.0" in (place.root / "all.prom").read_text()


def test_the_page_has_the_calibration_of_the_last_days(tmp_path):
    own = {"version": "000001-a", "rows": 1000.0, "expected": 100.0, "set_aside": False}
    days = [{"day": f"2026-03-{i:02d}", "observed": 100.0 + i, **own} for i in range(1, 30)]
    page = render_stream("ads", {"files scored": 3}, {}, [], [*days, days[0] | {"observed": 190.0}])
    assert page.count('<tr><th scope="row" class="day">2026-') == 30
    said = '2026-03-01</span> there were <span class="whole">90 %</span> more positives than predicted'
    for text in (said, "3 files scored; nothing is waiting.", "1.290", "No batch since"):
        assert text in page
    troubled = render_stream("ads", {"files scored": 3}, {}, [], days[:1], ["Labels wait."], clock.now())
    assert '<p class="headline high">Labels wait.</p>' in troubled
    assert "this page says nothing" in troubled
    assert "this page says nothing" not in page
    table = Folder.of(LOCAL, str(tmp_path))
    watched = [
        WatchedDay(f"2026-03-0{i}", version, 9.0, 1.0, 2.0, math.inf, None, None)
        for i, version in ((2, "000001-a"), (1, "000002-b"))
    ]
    history = History({}, tuple(watched))
    (table / "monitor").write("history.json", history.as_json())
    assert read_history(table) == history
    found = watched_days(history)
    assert [(day["day"], day["version"]) for day in found] == [
        ("2026-03-01", "000002-b"),
        ("2026-03-02", "000001-a"),
    ]


def test_scores_that_the_table_has_not_seen_are_counted(stream):
    follow, percent = stream
    pq.write_table(pa.table({"score": [0.5, 50.0, 99.0, -1.0]}), percent / "a.parquet")
    pq.write_table(pa.table({"score": [0.4, 0.6]}), percent / "b.parquet")
    done = follow("--once", "score.max_outside_range=1", "--json")
    found = done.expect(0, "3 of 6 rows have scores outside the range of the table's fit").json
    assert (found["rows_below_range"], found["rows_above_range"]) == (1, 2)
    status = follow("--status", "--json").expect(0).json
    assert (status["rows"], status["rows_below_range"], status["rows_above_range"]) == (6, 1, 2)


def test_once_takes_all_that_was_there_however_many_batches_it_needs(stream):
    follow, arriving = stream
    for rows in (50, 60):
        # New ones, then the same names with other contents.
        for name in "abc":
            _lands(arriving, f"{name}.parquet", rows)
        done = follow("--once", "follow.max_files=1", "--json").expect(0).json
        assert (done["files"], done["batches"], done["rows"]) == (3, 3, 3 * rows)


def test_what_cannot_be_followed_is_refused(place, stream):
    follow, arriving = stream
    _lands(arriving, "a.parquet")
    follow("--once", "store.table=other").expect(3, "expected a published table 'other'")
    follow("--once", f"log.path={arriving}/a.parquet").expect(2, "expected a folder, found the file")
    follow("--once", f"log.path={arriving}/*.parquet").expect(2, "expected a folder, found the glob")
    follow("--once", f"log.path=[{arriving}, {place.log}]").expect(2, "expected one folder, found 2 paths")
    follow("--once", f"output.path={arriving}/scored").expect(2, "would be read as rows")
    follow("--once", "follow.poll=soon").expect(2, "expected a duration such as")
    follow("--once", "output.interval=true").expect(2, "expected a table with intervals")
    follow("--once").expect(0)
    follow("--once", "output.column=p").expect(2, "ledger of another")
    shutil.rmtree(place.root / ".output.logcal")
    follow("--once").expect(2, "found 1 file without it", "--rebuild")
    follow("--once", "--rebuild").expect(99)
    follow("--once").expect(99)


def test_a_stream_that_is_moved_with_its_log_and_store_goes_on(place, stream):
    follow, arriving = stream
    _lands(arriving, "a.parquet")
    follow("--once").expect(0)
    moved = place.root / "moved"
    moved.mkdir()
    for path in (arriving, place.store, place.output, place.root / ".output.logcal"):
        path.rename(moved / path.name)
    paths = [f"log.path={moved / arriving.name}", f"store.path={moved / 'store'}"]
    follow("--once", *paths, f"output.path={moved / 'output'}").expect(99)
    _lands(moved / arriving.name, "b.parquet")
    done = follow("--once", *paths, f"output.path={moved / 'output'}", "--json").expect(0).json
    assert (done["files"], place.output.exists()) == (1, False)


def test_only_regular_files_are_read(place, stream):
    """A read of a device, a FIFO or a socket may never end."""
    follow, arriving = stream
    _lands(arriving, "a.parquet")
    (arriving / "endless.parquet").symlink_to("/dev/zero")
    os.mkfifo(arriving / "fifo.parquet")
    with socket.socket(socket.AF_UNIX) as bound, contextlib.chdir(arriving):
        bound.bind("socket.parquet")
    done = follow("--once", "--json").expect(0).json
    assert (done["files"], done["rows"]) == (1, 50)
    follow("--once").expect(99)
    for path in (arriving, f"{arriving}/*.parquet"):
        output = place.root / f"scored-{path == arriving}"
        scored = place.job("score", "--json", log__path=path, output__path=output).expect(0).json
        assert scored["rows"] == 50
    found = place.job("score", log__path=arriving / "fifo.parquet", output__path=place.root / "none")
    found.expect(3, "expected a file or a folder, found a device, FIFO or socket")


@pytest.mark.parametrize(
    ("target", "problem"),
    [(".", "leads back to a folder that it lies in"), ("nowhere", "where there is nothing")],
)
def test_links_are_refused_as_by_score(place, stream, target, problem):
    follow, arriving = stream
    _lands(arriving, "a.parquet")
    (arriving / "link.parquet").symlink_to(target)
    follow("--once").expect(3, problem)
    place.job("score", log__path=arriving, output__path=place.root / "none").expect(3, problem)


@pytest.mark.system
@pytest.mark.parametrize("kind", ["inline", "threads"])
def test_files_are_scored_as_they_come_until_it_is_stopped(place, stream, start, kind):
    follow, arriving = stream
    running = follow("follow.poll=50ms", f"cluster.kind={kind}", run=partial(start, place))
    for name in ("a.parquet", "b.parquet"):
        _lands(arriving, name)
        running.await_that((place.output / name).exists, name)
    running.process.send_signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 143, result.stderr
    assert "Traceback" not in result.stderr
    assert f"following {arriving} every 50ms" in result.stderr
    assert f"scored with table 'ads' ({place.current}) into {place.output}" in result.stderr
    assert re.search(r"follow: stopped after [12] files?; (nothing|1) pending", result.stderr)
    _lands(arriving, "c.parquet")
    follow("--once").expect(0)
    follow("--once").expect(99)
    place.job("score", log__path=arriving, output__path=place.root / "batch").expect(0)
    for name in ("a.parquet", "b.parquet", "c.parquet"):
        assert (place.output / name).read_bytes() == (place.root / "batch" / name).read_bytes()


@pytest.mark.system
def test_sigterm_ends_the_wait_for_a_first_version_and_for_a_lock(place, stream, start):
    follow, arriving = stream
    run = partial(start, place)
    running = follow("store.table=none", run=run)
    running.await_line("table 'none' has no version yet: files wait for the first")
    running.process.send_signal(signal.SIGTERM)
    assert running.result().code == 143, running.stderr
    # A refit publishes, and another run has the table's lock.
    rows = place.predictions(300)
    pq.write_table(pa.table(rows), arriving / "a.parquet")
    table = os.open(place.store / "ads", os.O_RDONLY)
    try:
        fcntl.flock(table, fcntl.LOCK_EX)
        running = follow("refit.every=1s", "follow.poll=50ms", "log.label=label", run=run)
        running.await_line("merge: done")
        time.sleep(1)  # what is left of the fit
        running.process.send_signal(signal.SIGTERM)
        result = running.result()
    finally:
        os.close(table)
    assert result.code == 143, result.stderr
    assert len(place.versions) == 1


@pytest.mark.system
@pytest.mark.parametrize("kind", ["inline", "threads"])
@pytest.mark.parametrize(
    ("method", "where"),
    [
        ("GET", "list-type=2"),
        ("GET", "log/part-0"),
        ("PUT", "scored/part-0"),
        ("PUT", "plan/"),
        ("PUT", "done/"),
    ],
)
def test_sigterm_ends_a_stream_whose_store_does_not_answer(place, s3, kind, method, where):
    """Its clean-up asks the store, too: what it has not done within a bound is left to the next run."""
    place.environment.update(environment(s3.url))
    place.write_log(files=2)
    place.job("fit").expect(0)
    url = f"s3://{BUCKET}/{place.root.name}"
    filesystem = fsspec.filesystem("s3", endpoint_url=s3.url, key="someone", secret="very-secret-indeed")
    filesystem.put(str(place.log), f"{url}/log", recursive=True)
    paths = {"log__path": f"{url}/log", "output__path": f"{url}/scored"}
    s3.requests.clear()
    s3.fault = lambda asked, path: "hang" if asked == method and where in path else None
    arguments = place.arguments("follow", f"cluster.kind={kind}", **paths)
    code = "import sys; from jobs import cli, interrupts; interrupts.CLEAN_UP = 2.0; cli.run()"
    running = Running([sys.executable, "-c", code, *arguments], place.root, place.environment)
    try:
        running.await_that(
            lambda: any(fault == "hang" for *_, fault in s3.requests), "a request without an answer"
        )
        running.process.send_signal(signal.SIGTERM)
        assert running.result(timeout=30).code == 143, running.stderr
    finally:
        s3.fault = lambda asked, path: None
        running.kill()
    assert "Traceback" not in running.stderr


def test_it_ends_by_itself_after_its_lifetime(stream):
    follow, arriving = stream
    _lands(arriving, "a.parquet")
    assert follow("follow.lifetime=1s", "--json").expect(0).json["files"] == 1


@pytest.mark.system
def test_memory_does_not_grow_with_batches(world):
    """What a follower keeps is what it knows of files, and nothing of batches."""
    import gc
    import tracemalloc

    world.rules = Rules(limits=Limits(files=1))
    follower = world.started()

    def run(batches: int) -> None:
        for _ in range(batches):
            # The same file again and again, so that no more are known.
            world.arrive("a.parquet", at=run.time)
            run.time += 1.0
            assert follower.run(follower.listing(complete=True)) is not None

    run.time = 1.0
    run(110)  # past a compaction
    tracemalloc.start()
    grown = []
    for _ in range(2):
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        run(100)
        gc.collect()
        grown.append(tracemalloc.get_traced_memory()[0] - before)
    tracemalloc.stop()
    follower.lease_owner.release()
    # What is loaded once, by whatever runs in this process, is no growth: batches would show in each stretch.
    assert min(grown) < 80_000, grown
