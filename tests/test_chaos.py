"""The campaign in short: every job disturbed at some of its writes, run again, and compared with an undisturbed run.

`make chaos` does it at every write, for as long as it is told.
"""

import ctypes
import os
import posix
import re
import shutil
import stat
import sys
import tempfile
from collections import Counter
from importlib import import_module
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chaos.damaged_stores import DAMAGES, stores
from chaos.disks import disks
from chaos.inputs import configurations, files, lookup_table
from chaos.mutated_parquet import WRITERS, mutated, with_row_groups
from chaos.mutated_parquet import trial as file_trial
from chaos.scenarios import SCENARIOS, Stage
from chaos.together import together
from chaos.tracing import forked, possible, traced
from chaos.trials import AT_RANDOM, AT_WRITES

import pipeline
from logcal.errors import InputRejectedError
from pipeline.log import thrift
from pipeline.log.chunks import CheckedFooter
from pipeline.log.column_facts import log_facts
from pipeline.log.logs import Columns, cut, open_log, read_rows
from pipeline.log.windows import choose_window

pytestmark = pytest.mark.system

FEW = [name for name in SCENARIOS if name not in ("compare", "tables diff")]
"""Of the others a run takes long, or nothing."""


@pytest.fixture(autouse=True)
def _flushes(monkeypatch):
    """Flushing to the disk is something that fails, too; elsewhere tests leave it out."""
    monkeypatch.setattr(os, "fsync", posix.fsync)


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """A scenario's stage, in a process that has imported what it needs."""
    if not possible():
        pytest.skip("processes cannot be traced here")
    for name in ("cli", "run", "fit", "score", "monitor", "follow", "tables"):
        import_module(f"jobs.{name}")
    folder = tmp_path_factory.mktemp("chaos")

    def make(name):
        """It and what its command writes."""
        made = Stage(SCENARIOS[name], folder)
        made.warm()
        made.reset()
        return made, traced(made.command, made.place.root).calls

    return make


@pytest.mark.parametrize("name", FEW)
def test_a_command_that_is_disturbed(stage, name):
    made, calls = stage(name)
    assert len(calls) >= 5
    random = np.random.default_rng(len(calls))
    kinds = list(AT_WRITES)
    if name in ("generate", "evaluate"):
        kinds = ["killed"]
    found = [
        trial for kind in kinds for trial in AT_WRITES[kind](made, calls[random.integers(len(calls))], random)
    ]
    assert [(trial.kind, trial.moment, trial.problems) for trial in found if trial.problems] == []


@pytest.mark.parametrize("name", ["follow, a ledger made anew", "follow, a refit", "monitor"])
def test_files_that_may_not_grow(stage, name):
    made, _ = stage(name)
    random = np.random.default_rng(len(name))
    found = [AT_RANDOM["files are limited"](made, random, 0.0) for _ in range(4)]
    assert 75 in {trial.code for trial in found}
    assert [(trial.moment, trial.problems) for trial in found if trial.problems] == []


def test_a_page_is_seen_whole(stage):
    made, calls = stage("monitor")
    own = [call for call in calls if "report.html" in call.paths[-1]]
    assert len(own) >= 3
    found = [trial for call in own for trial in AT_WRITES["killed"](made, call, None)]
    assert [(trial.moment, trial.problems) for trial in found if trial.problems] == []


@pytest.mark.parametrize("name", DAMAGES)
def test_a_byte_of_a_store_is_another(stage, tmp_path, name):
    found = list(stores(8, 5, tmp_path, (name,)))
    assert len(found) == 8
    assert [(trial.moment, trial.problems) for trial in found if trial.problems] == []


def test_commands_at_the_same_time(stage, tmp_path):
    assert [(t.scenario, t.problems) for t in together(2, 4, tmp_path) if t.problems] == []


def test_small_disks_that_are_full(stage, tmp_path):
    found = list(disks(1, 6, tmp_path))
    if not found:
        pytest.skip("nothing can be mounted here")
    assert [(t.scenario, t.moment, t.problems) for t in found if t.problems] == []


def test_files_in_a_process_of_their_own(tmp_path):
    """Twenty of each writer for each of four readers; half with a footer that decodes and contradicts itself."""
    found = list(files(800, 7, tmp_path))
    assert len(found) == 800
    assert {trial.code for trial in found} == {0, 3}


def test_no_configuration_however_odd_is_a_bug(tmp_path):
    found = list(configurations(500, 0, tmp_path))
    assert [(trial.moment, trial.problems) for trial in found if trial.problems] == []
    assert Counter(trial.code for trial in found)[2] > 100


# The means themselves


def test_a_difference_and_a_half_are_found(stage, tmp_path):
    made, calls = stage("tables promote")
    made.after = {**made.after, "store/ads/CURRENT": b"another\n"}
    [trial, *_] = AT_WRITES["killed"](made, calls[-1], None)
    assert "CURRENT neither old nor new" in " ".join(trial.problems)


# What the campaign found


def test_a_fit_that_is_killed_while_it_frees_its_runs_can_be_run_again(stage):
    """Its receipts told of runs that were gone, and the rerun ended with 2."""
    made, calls = stage("fit, segments")
    removed = [call for call in calls if call.name == "unlink" and call.paths[-1].startswith("scratch/")]
    assert len(removed) > 2
    outcomes = Counter()
    for call in removed[:: len(removed) // 3]:
        for trial in AT_WRITES["killed"](made, call, None):
            assert trial.problems == ()
            outcomes[trial.again] += 1
    assert outcomes == {0: sum(outcomes.values())}


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("fit, a second version", "store/ads/versions"),
        ("fit, a replaced version again", "mkdir"),
        ("fit, refused", "store/ads/versions"),
        ("tables promote", "mkdir"),
        ("tables rollback", "mkdir"),
        ("tables prune", "mkdir"),
        ("follow", "mkdir"),
        ("follow, a ledger made anew", "mkdir"),
        ("follow, a file tried again", "mkdir"),
        # What comes before is the fit's own, whose trials are above.
        ("follow, a refit", "store/ads/versions"),
    ],
)
def test_a_command_that_is_killed_at_any_write_is_as_if_it_had_not_been(stage, name, first):
    """Before each write, and so after the one before it. A ledger that was being made anew blocked its stream, a
    candidate was not in the journal, and old versions stayed where a run ended before it had removed them.
    """
    made, calls = stage(name)
    start = next(call.number for call in calls if first in (call.name, *call.paths))
    found = [trial for call in calls[start:] for trial in AT_WRITES["killed"](made, call, None)]
    assert len(found) > (40 if name.startswith("follow") else 12)
    assert [(trial.moment, trial.problems) for trial in found if trial.problems] == []


# Damaged Parquet files

PIPELINE = Path(pipeline.__file__).parent


@pytest.fixture(scope="module")
def lookup(tmp_path_factory):
    return lookup_table(tmp_path_factory.mktemp("lookup") / "lookup.parquet")


@pytest.mark.parametrize(("writer", "seed"), [("arrow page index", 83), ("arrow delta", 102)])
def test_a_footer_whose_chunks_have_other_names(tmp_path, lookup, writer, seed):
    assert file_trial("score", writer, seed, tmp_path, lookup) == "3"


# Footers that decode and contradict themselves


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
        chunks = [thrift.read_struct(chunk)[0] for chunk in thrift.read_list(groups[0][1][1])]
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
    assert file_trial("score", "arrow", 0, tmp_path, lookup, content, without_last_chunk) == "3"


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


# A container whose root is read-only, without a home, with the id of another user

SOMEONE_ELSE = 65534
_RDONLY, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 32, 4096, 16384, 1 << 18
_NEWNS, _NEWUSER = 0x20000, 0x10000000

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source, target, kind=None, flags=0, options=None):
    arguments = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    if _libc.mount(*arguments, ctypes.c_ulong(flags), None if options is None else options.encode()) == -1:
        raise OSError(ctypes.get_errno(), f"mount {source} {target}")


def become_another(place):
    """Have this process see all but a place as read-only, and be someone who owns nothing else."""
    root, user, group = os.geteuid() == 0, os.geteuid(), os.getegid()
    if _libc.unshare(_NEWNS | (0 if root else _NEWUSER)) == -1:
        raise OSError(ctypes.get_errno(), "unshare")
    if not root:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{SOMEONE_ELSE} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{SOMEONE_ELSE} {group} 1")
    mount(None, "/", flags=_REC | _PRIVATE)
    mount(str(place), str(place), flags=_BIND)
    if root:
        let_python_be_found(place)
    mount(None, "/", flags=_REMOUNT | _BIND | _RDONLY)
    if root:
        os.setgroups([])
        os.setgid(SOMEONE_ELSE)
        os.setuid(SOMEONE_ELSE)
    for name in ("HOME", "USER", "LOGNAME", "XDG_CACHE_HOME", "MPLCONFIGDIR"):
        os.environ.pop(name, None)


def let_python_be_found(place):
    """Where it lies in a folder that others may not enter, such as root's home, there is nothing else in it then."""
    home = Path(sys.base_prefix).resolve()
    closed = [folder for folder in reversed(home.parents) if not folder.stat().st_mode & stat.S_IXOTH]
    if closed:
        aside = place / "temporary" / "python"
        aside.mkdir()
        mount(str(home), str(aside), flags=_BIND)
        mount("tmpfs", str(closed[0]), "tmpfs", 0, "mode=755")
        home.mkdir(parents=True)
        mount(str(aside), str(home), flags=_BIND)


@pytest.fixture(scope="module")
def folder():
    # Not below pytest's, which others may not enter.
    made = Path(tempfile.mkdtemp(prefix="logcal-container-"))
    made.chmod(0o755)
    (made / "place").mkdir()
    (made / "place" / "temporary").mkdir()
    ended = forked(lambda: become_another(made / "place") or 0, seconds=30)
    if ended.code:
        pytest.skip(f"no namespaces here: {ended.said.splitlines()[-1:]}")
    yield made
    shutil.rmtree(made)


JOBS = ("fit, quarantine", "fit, window with segments", "score", "evaluate", "monitor", "generate", "follow",
        "tables rollback", "fit")  # fmt: skip


@pytest.mark.parametrize("name", JOBS)
def test_every_job_runs_there(folder, name):
    """A fit also as a process of its own."""
    stage = Stage(SCENARIOS[name], folder)
    stage.warm()
    stage.reset()
    if os.geteuid() == 0:
        for path in (stage.place.root, *stage.place.root.rglob("*")):
            os.chown(path, SOMEONE_ELSE, SOMEONE_ELSE)

    def there():
        become_another(stage.place.root)
        with pytest.raises(OSError, match="Read-only file system"):
            (folder / "elsewhere").write_text("")
        assert os.geteuid() == SOMEONE_ELSE
        if name != "fit":
            return stage.command()
        os.chdir(stage.place.root)
        own = {name: os.environ[name] for name in ("PATH", "LOGCAL_CACHE") if name in os.environ}
        own["TMPDIR"] = str(stage.place.root / "temporary")
        return os.execve(sys.executable, [sys.executable, "-m", "logcal", *stage.scenario.arguments], own)

    ended = forked(there)
    assert ended.code == stage.scenario.code, ended.said
    assert stage.place.files() == stage.after
