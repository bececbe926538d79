"""Outputs that appear whole or not at all."""

import contextlib
import ctypes
import errno
import itertools
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from jobs.demo import _clear
from jobs.rows import above_days
from logcal.errors import ConfigError, LogcalError, NothingToDoError, TemporaryError
from pipeline.files.folders import free_for
from pipeline.files.output import MANIFEST, LocalOutput, Output
from pipeline.files.storage import records_beside
from pipeline.score.parquet.append import open_target

NAMES = ["day=1/a.parquet", "b.parquet"]


@pytest.fixture(params=["local", "memory"])
def place(request, tmp_path):
    """An output's path, its file system, and what is there: relative path to content."""
    if request.param == "local":
        filesystem, path = LocalFileSystem(), str(tmp_path / "out")
    else:
        filesystem, path = fsspec.filesystem("memory"), "memory://bucket/out"
    root = fsspec.core.url_to_fs(path)[1]

    def content():
        files = filesystem.find(root) if filesystem.exists(root) else []
        return {file.removeprefix(f"{root}/"): filesystem.cat_file(file) for file in files}

    yield SimpleNamespace(path=path, filesystem=filesystem, root=root, content=content)
    if request.param == "memory" and filesystem.exists("/bucket"):
        filesystem.rm("/bucket", recursive=True)


def put(staging, name, content):
    """Write a file of an output."""
    with open_target(staging.folder.filesystem, staging.target(name)) as file:
        file.write(content)
    staging.files += [name]


def write(path, run_id="run", names=NAMES, failure=None):
    """Write an output, or fail just before its end; return its staging folder."""
    with Output.at(path).writing(run_id, names) as staging:
        for name in names:
            put(staging, name, name.encode())
        staging.facts = {"rows": 7}
        if failure is not None:
            raise failure
    return staging


def test_files_and_manifest(place):
    write(place.path)
    content = place.content()
    assert json.loads(content.pop(MANIFEST)) == {"run_id": "run", "rows": 7}
    assert content == {name: name.encode() for name in NAMES}
    assert Output.at(place.path).manifest() == {"run_id": "run", "rows": 7}


def _full():
    raise OSError(errno.ENOSPC, "full")


def test_nothing_appears_where_the_system_does_not_write(tmp_path):
    with (  # noqa: PT012
        pytest.raises(OSError, match="full"),
        open_target(LocalFileSystem(), str(tmp_path / "a")) as file,
    ):
        file.write(b"x")
        _full()
    assert not any(tmp_path.iterdir())


def test_nothing_is_visible_before_the_end(place):
    with Output.at(place.path).writing("run", NAMES) as staging:
        put(staging, "b.parquet", b"x")
        assert Output.at(place.path).manifest() is None
        if isinstance(Output.at(place.path), LocalOutput):
            assert place.content() == {}
    assert set(place.content()) == {MANIFEST, "b.parquet"}


@pytest.mark.parametrize("failure", [ZeroDivisionError(), KeyboardInterrupt()])
def test_a_failure_leaves_nothing(place, tmp_path, failure):
    with pytest.raises(type(failure)):
        write(place.path, failure=failure)
    assert place.content() == {}
    assert list(tmp_path.iterdir()) == []
    write(place.path)


def test_the_same_run_again_has_nothing_to_do_and_another_is_refused(place):
    write(place.path)
    before = place.content()
    with pytest.raises(NothingToDoError, match="holds the result of this run already"):
        Output.at(place.path).check("run")
    with pytest.raises(NothingToDoError):
        write(place.path)
    with pytest.raises(ConfigError, match=r"found _logcal\.json, b\.parquet, .* the result of another run"):
        Output.at(place.path).check("other")
    assert place.content() == before


def test_an_empty_folder_is_fine(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "out")
    write(str(tmp_path / "link"))
    assert (tmp_path / "out" / MANIFEST).exists()


def test_a_folder_that_another_run_filled_meanwhile(tmp_path):
    path = tmp_path / "out"
    with (
        pytest.raises(ConfigError, match="result of another run"),
        Output.at(str(path)).writing("run", NAMES),
    ):
        write(str(path), "other")
    assert Output.at(str(path)).manifest() == {"run_id": "other", "rows": 7}
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_what_lost_workers_left_is_not_published(tmp_path):
    with Output.at(str(tmp_path / "out")).writing("run", NAMES) as staging:
        put(staging, "b.parquet", b"x")
        with open(staging.target(".b.parquet.123.tmp"), "wb") as file:  # noqa: PTH123
            file.write(b"half")
    assert sorted(p.name for p in (tmp_path / "out").rglob("*") if p.is_file()) == [MANIFEST, "b.parquet"]


def test_a_task_that_outlives_its_run_cannot_bring_the_folder_back(tmp_path):
    late = write(str(tmp_path / "out")).target("day=1/a.parquet")
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(FileNotFoundError), open_target(LocalFileSystem(), late):
        pass
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_in_a_bucket_is_removed():
    filesystem = fsspec.filesystem("memory")
    root = "/bucket/out"
    try:
        filesystem.pipe_file(f"{root}/old.parquet", b"half")
        marker = {"run_id": "old", "token": "1", "files": ["old.parquet", "never.parquet"]}
        filesystem.pipe_file(f"{root}/_logcal_unfinished.json", json.dumps(marker).encode())
        write("memory://bucket/out")
        assert sorted(filesystem.find(root)) == [f"{root}/{n}" for n in (MANIFEST, *sorted(NAMES))]
    finally:
        filesystem.rm("/bucket", recursive=True)


def write_and_mark(filesystem):
    write("memory://bucket/out", "other")
    marker = {"run_id": "other", "token": "1", "files": []}
    filesystem.pipe_file("/bucket/out/_logcal_unfinished.json", json.dumps(marker).encode())


def test_two_runs_in_one_bucket_do_not_both_finish():
    filesystem = fsspec.filesystem("memory")
    try:
        with (
            pytest.raises(TemporaryError, match="another run began to write to /bucket/out"),
            Output.at("memory://bucket/out").writing("run", NAMES),
        ):
            write_and_mark(filesystem)
        assert Output.at("memory://bucket/out").manifest()["run_id"] == "other"
    finally:
        filesystem.rm("/bucket", recursive=True)


@pytest.mark.parametrize(
    ("output", "other", "expected"),
    [
        ("a", "a", True),
        ("a/b", "a", True),
        ("a", "a/b", True),
        ("a", "ab", False),
        ("link/c", "a/c/d", True),
        ("b", "a", False),
    ],
)
def test_overlaps(tmp_path, output, other, expected):
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    place = Output.at(str(tmp_path / output))
    assert place.overlaps(LocalFileSystem(), str(tmp_path / other)) is expected
    assert not place.overlaps(fsspec.filesystem("memory"), str(tmp_path / other))


# The manifest beside the output


def write_beside(path, run_id="run", content=b"1", replace=False):
    output = Output.at(path, beside=True, replace=replace)
    with output.writing(run_id, ["a.parquet"]) as staging:
        put(staging, "a.parquet", content)
        staging.facts = {"files": [{"path": "a.parquet"}]}
    return output


@pytest.mark.parametrize(
    ("path", "among", "side"),
    [
        ("days/1", "days", ".days.logcal/1"),
        ("days/1/scored", "days", ".days.logcal/1/scored"),
        ("days/1", None, "days/.1.logcal"),
        ("days/1", "other", "days/.1.logcal"),
    ],
)
def test_where_a_manifest_lies(tmp_path, path, among, side):
    for base in (str(tmp_path), "memory://bucket/x"):
        output = Output.at(f"{base}/{path}", beside=True, among=among and f"{base}/{among}")
        assert output.beside.endswith(f"/{side}")


def test_a_manifest_lies_among_outputs_where_it_can_lie_nowhere_else(tmp_path, monkeypatch):
    monkeypatch.setattr(os.path, "ismount", lambda path: str(path) == f"{tmp_path}/days")
    assert (
        Output.at(f"{tmp_path}/days/1", beside=True, among=f"{tmp_path}/days").beside
        == f"{tmp_path}/days/.1.logcal"
    )


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("scored/{day}", "scored"),
        ("a/b-{day}/c", "a"),
        ("s3://bucket/a/{day}", "s3://bucket/a"),
        ("s3://bucket/{day}", None),
        ("s3://b{day}/x", None),
        ("./{day}", None),
        ("../{day}", None),
        ("{day}", None),
        ("/{day}", None),
        ("scored", None),
    ],
)
def test_the_folder_above_days(path, folder):
    assert above_days(path) == folder


def test_a_manifest_beside_the_output(place):
    output = write_beside(place.path)
    assert set(place.content()) == {"a.parquet"}
    side = [name.rpartition("/")[2] for name in place.filesystem.find(records_beside(place.root))]
    assert side == ["manifest.json"]
    assert output.manifest()["run_id"] == "run"
    with pytest.raises(NothingToDoError):
        write_beside(place.path)
    with pytest.raises(ConfigError, match=r"another run \(run\): choose another, or remove it, or set"):
        write_beside(place.path, "other")


def test_a_manifest_without_its_output_counts_for_nothing(place):
    output = write_beside(place.path)
    place.filesystem.rm(place.root, recursive=True)
    assert output.manifest() is None
    write_beside(place.path)
    assert output.manifest()["run_id"] == "run"


def failing(*arguments):
    raise KeyboardInterrupt


@pytest.mark.parametrize("replaced", [False, True])
def test_a_run_that_ended_between_the_rename_and_the_manifest_has_finished(tmp_path, monkeypatch, replaced):
    path = str(tmp_path / "out")
    if replaced:
        write_beside(path, "first", b"0")
    with monkeypatch.context() as patched:
        patched.setattr(LocalOutput, "settle", failing)
        patched.setattr(LocalOutput, "check", lambda self, run_id: None)
        with pytest.raises(KeyboardInterrupt):
            write_beside(path, replace=replaced)
    assert Output.at(path, beside=True).manifest()["run_id"] == "run"
    with pytest.raises(NothingToDoError):
        Output.at(path, beside=True).check("run")
    assert (tmp_path / "out" / "a.parquet").read_bytes() == b"1"
    assert sorted(p.name for p in tmp_path.rglob("*")) == [".out.logcal", "a.parquet", "manifest.json", "out"]


@pytest.mark.parametrize("system", ["exchange", "renames"])
def test_a_new_output_takes_the_old_ones_place(tmp_path, monkeypatch, system):
    if system == "renames":
        monkeypatch.setattr("pipeline.files.folders.ctypes.CDLL", lambda *a, **k: SimpleNamespace())
    path = str(tmp_path / "out")
    write_beside(path, "first", b"0", replace=True)
    with (
        pytest.raises(ZeroDivisionError),
        Output.at(path, beside=True, replace=True).writing("second", ["a.parquet"]),
    ):
        1 / 0  # noqa: B018
    assert (tmp_path / "out" / "a.parquet").read_bytes() == b"0"
    output = write_beside(path, "second", b"1", replace=True)
    assert (tmp_path / "out" / "a.parquet").read_bytes() == b"1"
    assert output.manifest()["run_id"] == "second"
    assert sorted(p.name for p in tmp_path.iterdir()) == [".out.logcal", "out"]
    with pytest.raises(NothingToDoError):
        write_beside(path, "second", replace=True)


def test_a_full_disk_at_the_exchange_leaves_the_old_output_in_place(tmp_path, monkeypatch):
    def full(*arguments):
        ctypes.set_errno(errno.ENOSPC)
        return -1

    write_beside(str(tmp_path / "out"), "first", b"0", replace=True)
    system = SimpleNamespace(renameat2=full)
    monkeypatch.setattr("pipeline.files.folders.ctypes.CDLL", lambda *a, **k: system)
    with pytest.raises(TemporaryError, match="No space left"):
        write_beside(str(tmp_path / "out"), "second", b"1", replace=True)
    assert (tmp_path / "out" / "a.parquet").read_bytes() == b"0"


@pytest.mark.parametrize("replace", [False, True])
def test_a_folder_that_others_may_not_enter_stays_closed_to_them(tmp_path, replace):
    path = tmp_path / "out"
    if replace:
        write_beside(str(path), "first", b"0", replace=True)
    else:
        path.mkdir()
    path.chmod(0o2750)
    output = Output.at(str(path), beside=True, replace=replace)
    with output.writing("second", ["a.parquet"]) as staging:
        target = Path(staging.target("a.parquet"))
        assert target.parent.stat().st_mode & 0o7777 == 0o2750
        target.write_bytes(b"1")
        staging.files += ["a.parquet"]
        staging.facts = {"files": [{"path": "a.parquet"}]}
    assert path.stat().st_mode & 0o7777 == 0o2750
    assert (path / "a.parquet").read_bytes() == b"1"


def test_only_a_result_is_replaced(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"found notes\.txt"):
        write_beside(str(tmp_path / "out"), replace=True)
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


def _write(output, run, names):
    with output.writing(run, names) as staging:
        for name in names:
            staging.folder.write(name, f"{run} {name}".encode())
            staging.files.append(name)
        staging.facts = {"files": [{"path": name} for name in names]}


@pytest.mark.parametrize("beside", [True, False])
def test_a_result_in_an_object_store_is_replaced_whole_or_made_again(beside, monkeypatch):
    """Ended after any of its writes, copies and removals, a replacement leaves one result, or none that is finished."""
    filesystem = MemoryFileSystem()
    seen = set()
    for stop in itertools.count(1):
        filesystem.store.clear()
        output = Output.at("memory://bucket/out", beside=beside, replace=True)
        _write(output, "first", ["a", "b"])
        left = [stop]

        def dying(call, left=left):
            def died(*arguments, **options):
                left[0] -= 1
                if left[0] <= 0:
                    raise OSError("the store is gone")
                return call(*arguments, **options)

            return died

        with monkeypatch.context() as context:
            for name in ("pipe_file", "cp_file", "rm_file"):
                context.setattr(MemoryFileSystem, name, dying(getattr(MemoryFileSystem, name)))
            with contextlib.suppress(LogcalError, OSError):
                _write(output, "second", ["b", "c"])
        manifest = output.manifest()
        run = None if manifest is None else manifest["run_id"]
        seen.add(run)
        found = {name.rpartition("/")[2]: filesystem.cat(name) for name in filesystem.find("/bucket/out")}
        contents = {name: found[name].decode() for name in ("a", "b", "c") if name in found}
        if run == "first":
            assert contents == {"a": "first a", "b": "first b"}
        elif run == "second":
            assert contents == {"b": "second b", "c": "second c"}
        with contextlib.suppress(NothingToDoError):
            _write(output, "second", ["b", "c"])
        assert output.manifest()["run_id"] == "second"
        names = {name.rpartition("/")[2] for name in filesystem.find("/bucket")}
        names -= {MANIFEST, "manifest.json"}
        if run != "second":  # the result of a run that ended as it tidied is not touched
            assert names == {"b", "c"}
        if left[0] > 0:
            break
    assert seen == {"first", None, "second"}


def _gone(*_):
    raise ConnectionError("the store is gone")


@pytest.mark.parametrize("beside", [True, False])
def test_a_replacement_that_ended_as_it_began_to_remove_and_another_that_fails(beside, monkeypatch):
    """The second one removes what the first one would have; the old manifest must not tell of files that are gone."""
    filesystem = MemoryFileSystem()
    filesystem.store.clear()
    output = Output.at("memory://bucket/out", beside=beside, replace=True)
    _write(output, "first", ["a", "b"])
    with monkeypatch.context() as context:
        context.setattr(MemoryFileSystem, "rm_file", _gone)
        with pytest.raises(TemporaryError):
            _write(output, "second", ["b", "c"])
    assert output.manifest()["run_id"] == "first"
    with pytest.raises(ArithmeticError), output.writing("third", ["b"]):
        raise ArithmeticError
    assert output.manifest() is None
    _write(output, "third", ["b"])
    assert output.manifest()["run_id"] == "third"


class _Disk:
    """What is on the disk: of each file and folder what was last flushed, under the name that it had then."""

    def __init__(self, monkeypatch):
        self.flushed = []
        self.real = os.fsync
        monkeypatch.setattr(os, "fsync", self.fsync)

    def fsync(self, descriptor):
        self.flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        self.real(descriptor)

    def before(self, last):
        """The last parts of the names of what was flushed before something was."""
        return set(self.flushed[: max(i for i, name in enumerate(self.flushed) if name.startswith(last))])


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files have no names here")
@pytest.mark.parametrize("replace", [False, True])
def test_a_manifest_is_written_when_all_else_is_on_the_disk(tmp_path, monkeypatch, replace):
    path = str(tmp_path / "out")
    if replace:
        write_beside(path, "first", b"0", replace=True)
    disk = _Disk(monkeypatch)
    output = Output.at(path, beside=True, replace=replace)
    with output.writing("run", NAMES) as staging:
        for name in NAMES:
            put(staging, name, b"2")
    found = disk.before(".unfinished.json")
    assert {"a.parquet", "b.parquet", "day=1"} <= found
    assert any(name.startswith(".out.logcal-staging-") for name in found)
    # And the folder's new name before what says that it is there.
    assert tmp_path.name in disk.before(".manifest.json")


def test_a_folder_that_a_job_marks_as_its_own(tmp_path):
    """A demo that is killed at any moment can be run again in its folder."""
    folder, marker = tmp_path / "own", "demo.json"
    assert free_for(folder, marker)
    folder.mkdir()
    assert free_for(folder, marker)
    (folder / f".{marker}.{'2d' * 16}.tmp").write_text("{")
    assert free_for(folder, marker)
    (folder / "mine").mkdir()
    assert not free_for(folder, marker)
    (folder / marker).write_text("{}")
    (folder / "a.txt").write_text("a")
    assert free_for(folder, marker)
    _clear(folder)
    assert [path.name for path in folder.iterdir()] == [marker]
