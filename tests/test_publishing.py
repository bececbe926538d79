"""Publishing, promoting and rolling back: killed at every write, run again, and run by several at once."""

import hashlib
import io
import json
import threading
import time
import uuid
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from jobs.config.jobs import FitConfig
from jobs.config.loading import load
from jobs.resume import unfinished_version
from logcal.errors import CheckFailedError, ConfigError, InputRejectedError, NothingToDoError, TemporaryError
from pipeline.files import folders, locks
from pipeline.files.folders import Folder
from pipeline.files.output import Output
from pipeline.files.scratch import check_space, scratch_folder
from pipeline.table.store import TableStore
from tests.manifests import FITTED, WRONG, with_value

STEPS = ("write_synced", "_append", "_rename", "_put")


@pytest.fixture(autouse=True)
def _whole_requests(monkeypatch):
    """Requests of threads come one after the other.

    fsspec looks first and creates or lists afterwards, and a file's readers share its position: one may read nothing.
    """
    one = threading.RLock()

    def whole(request):
        def requested(*args, **options):
            with one:
                return request(*args, **options)

        return requested

    for name in ("cat_file", "ls", "pipe_file", "rm"):
        monkeypatch.setattr(MemoryFileSystem, name, whole(getattr(MemoryFileSystem, name)))


@pytest.fixture(params=["local", "memory"])
def store(request, tmp_path):
    path = str(tmp_path / "store") if request.param == "local" else f"memory://{uuid.uuid4().hex}"
    return TableStore(path, "ads")


def fit(store, content, *, candidate=False, refused=()):
    """What a fit does, without its log: returns the version's name, or raises what the job would."""
    publish = "candidate" if candidate else "current"
    settings = ("log.path=log", "store.path=s", "store.table=ads", f"store.publish={publish}")
    made = unfinished_version(store, content, load(FitConfig, (), settings))
    if made is not None:
        store.make_current(made)
        return made.name
    manifest = {**FITTED, "run_id": content, **({"refused": list(refused)} if refused else {})}
    digest = hashlib.sha256(content.encode()).hexdigest()
    return store.publish(
        digest, lambda name: {"lookup.parquet": f"{content} {name}".encode()}, manifest, candidate=candidate
    ).name


# Killed at every write


class Killed(BaseException):
    """The process is gone."""


class Killer:
    """Ends the process before, within or after its nth write, and counts the writes."""

    def __init__(self, monkeypatch, die, number=None, when="before"):
        self.count, self.number, self.when, self.die = 0, number, when, die
        for name in STEPS:
            monkeypatch.setattr(folders, name, self.step(name, getattr(folders, name)))

    def step(self, name, function):
        def wrapped(*arguments, **mode):
            self.count += 1
            mine = self.count == self.number
            if mine and self.when == "within" and name in ("write_synced", "_append"):
                path, data = arguments
                with path.open("ab") as file:
                    file.write(data[: len(data) // 2])
            if mine and self.when != "after":
                self.die()
            function(*arguments, **mode)
            if mine:
                self.die()

        return wrapped


ACTIONS = {
    "publish the first": ([], lambda store: fit(store, "a")),
    "publish another": (["a"], lambda store: fit(store, "b")),
    "keep a candidate": (["a"], lambda store: fit(store, "b", candidate=True)),
    "finish what was replaced": (["a", "b"], lambda store: fit(store, "a")),
    "roll back": (["a", "b"], lambda store: store.rollback()),
    "roll back to the first": (["a", "b", "c"], lambda store: store.rollback("000001")),
    "promote": (["a", "b"], lambda store: store.promote("000001")),
}


def settle(action, store):
    try:
        action(store)
    except NothingToDoError:
        return


def looks(store):
    """What a reader finds: the current version, whole."""
    version = store.current()
    if version is not None:
        store.verify(version)
    return version and version.name


@pytest.mark.parametrize("kind", ["local", "memory"])
@pytest.mark.parametrize("name", ACTIONS)
def test_a_run_killed_at_any_write_leaves_the_old_or_the_new_and_can_be_run_again(
    tmp_path, monkeypatch, name, kind
):
    before, action = ACTIONS[name]

    def prepared():
        name = uuid.uuid4().hex
        store = TableStore(str(tmp_path / name) if kind == "local" else f"memory://{name}", "ads")
        for content in before:
            fit(store, content)
        return store

    expected = prepared()
    old = looks(expected)
    with pytest.MonkeyPatch.context() as patch:
        counter = Killer(patch, None)
        action(expected)
    new = looks(expected)
    assert counter.count >= 3
    # What a killed run held counts as long as it may be alive.
    monkeypatch.setattr(locks, "LEASE", timedelta(0))
    for number in range(1, counter.count + 1):
        for when in ("before", "within", "after"):
            store = prepared()
            with pytest.MonkeyPatch.context() as patch:

                def die(patch=patch):
                    for folder in (folders.LocalFolder, folders.StoreFolder):
                        patch.setattr(folder, "remove", lambda *_: None)
                    raise Killed

                Killer(patch, die, number, when)
                with pytest.raises(Killed):
                    action(store)
            seen = looks(store)
            assert seen in (old, new)
            if (number, when) == (counter.count, "after"):
                assert seen == new
            # Another rollback would go on.
            elif not (name.startswith("roll") and seen == new):
                settle(action, store)
            assert looks(store) == new
            assert store.names() == expected.names()
            # Whoever comes next finds everything in order, and nothing left over.
            fit(store, "next")
            left = {"journal.jsonl"} if kind == "local" else {"journal", "lock"}
            assert set(store.folder.names()) <= {"CURRENT", "versions", *left}
            assert (store.folder / "versions").names() == store.names()
            assert (store.folder / "lock").names() == []
            assert store.rollback()[1].name == (new or looks(expected))


@pytest.mark.parametrize("step", STEPS)
def test_a_store_that_fails_is_said_and_the_run_can_be_repeated(store, monkeypatch, step):
    first = fit(store, "a")
    with pytest.MonkeyPatch.context() as patch:
        function = getattr(folders, step)

        def fail(*arguments, **mode):
            if "CURRENT" in str(arguments[-2]) or step in ("_append", "_rename"):
                raise OSError(28, "No space left on device")
            return function(*arguments, **mode)

        patch.setattr(folders, step, fail)
        if (step == "_put") != store.folder.remote:
            return  # the other kind of store's
        with pytest.raises(TemporaryError, match=r"No space left on device.*nothing was published"):
            fit(store, "b")
    assert looks(store) == first
    second = fit(store, "b")
    assert looks(store) == second
    assert len(store.names()) == 2


# Which version a rerun makes current


def test_a_version_that_was_replaced_is_made_current_again(store):
    first, second = fit(store, "a"), fit(store, "b")
    assert fit(store, "a") == first == looks(store)
    assert fit(store, "b") == second == looks(store)
    with pytest.raises(NothingToDoError, match=f"published as version {second}: nothing to do"):
        fit(store, "b")
    assert store.names() == [first, second]


def test_a_version_that_was_taken_back_stays_so(store):
    first, second = fit(store, "a"), fit(store, "b")
    store.rollback()
    with pytest.raises(NothingToDoError, match=rf"was rolled back on .* \(the live version is {first}\)"):
        fit(store, "b")
    third = fit(store, "c")
    with pytest.raises(NothingToDoError, match="was rolled back"):
        fit(store, "b")
    assert looks(store) == third
    assert store.promote(second)[0] == third
    with pytest.raises(NothingToDoError, match="is current: nothing to do"):
        store.promote(second)
    assert fit(store, "c") == third


def test_a_rollback_goes_to_what_was_current_before(store):
    first, second = fit(store, "a"), fit(store, "b")
    assert store.rollback() == (second, store.version(first))
    third = fit(store, "c")
    assert store.rollback()[1].name == first
    with pytest.raises(InputRejectedError, match="no version before"):
        store.rollback()
    fit(store, "d")
    store.promote(third)
    assert [store.rollback()[1].name for _ in range(2)] == [store.names()[3], first]


def test_candidates(store):
    first = fit(store, "a")
    second = fit(store, "b", candidate=True)
    assert looks(store) == first
    with pytest.raises(NothingToDoError, match=r"store\.publish is candidate"):
        fit(store, "b", candidate=True)
    reasons = [{"rule": "min_rows", "message": "expected 1,000 rows, found 3"}]
    third = fit(store, "c", refused=reasons)
    assert store.version(third).candidate
    assert store.version("000003").refusals == reasons
    for _ in range(2):
        with pytest.raises(CheckFailedError, match="expected 1,000 rows, found 3"):
            fit(store, "c")
    assert looks(store) == first
    assert [entry.event for entry in store.journal.entries()] == ["publish", "candidate", "candidate"]
    assert store.journal.entries()[-1].note == "expected 1,000 rows, found 3"
    # No rollback goes to them; whoever wants one says so.
    with pytest.raises(InputRejectedError, match="no version before"):
        store.rollback()
    store.promote(third)
    assert looks(store) == third
    assert fit(store, "b") == second == looks(store)
    assert store.rollback()[1].name == third


def test_a_store_without_its_journal(store):
    names = [fit(store, content) for content in "abcd"]
    for left in ("journal.jsonl", "journal"):
        store.folder.remove(left)
    store.filesystem.pipe_file(f"{store.root}/CURRENT", f"{names[2]}\n".encode())
    fifth = fit(store, "e")
    assert [store.rollback()[1].name for _ in range(3)] == [names[2], names[1], names[0]]
    with pytest.raises(NothingToDoError, match="was rolled back"):
        fit(store, "e")
    assert store.rollback(fifth)[1].name == fifth


# CURRENT


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe\x00", b"../../etc", b"a b"])
def test_a_current_that_is_no_name(store, content):
    first, second = fit(store, "a"), fit(store, "b")
    store.filesystem.pipe_file(f"{store.root}/CURRENT", content)
    for action in (store.current, store.version, lambda: fit(store, "b"), lambda: fit(store, "c")):
        with pytest.raises(InputRejectedError, match="CURRENT: expected the name of a version, found"):
            action()
    # It holds again what it held.
    assert store.rollback() == ("(unreadable)", store.version(second))
    assert store.rollback()[1].name == first
    store.filesystem.pipe_file(f"{store.root}/CURRENT", content)
    assert store.rollback("000002")[1].name == second


@pytest.mark.parametrize("content", [b"000007-gone\n", b"latest", b"000002"])
def test_a_current_that_names_no_version_is_mended_to_the_live_one(store, content):
    first, second = fit(store, "a"), fit(store, "b")
    store.filesystem.pipe_file(f"{store.root}/CURRENT", content)
    assert store.rollback() == ("(unreadable)", store.version(second))
    assert store.rollback()[1].name == first
    # A version that has been removed is not the live one again: the one before it is.
    third = fit(store, "c")
    store.folder.remove(f"versions/{third}")
    assert store.rollback() == ("(unreadable)", store.version(first))


def test_a_name_that_is_too_long_is_told_so(tmp_path):
    with pytest.raises(ConfigError, match=r"expected at most 200 letters, .* found 300 characters"):
        TableStore(str(tmp_path), "a" * 300)
    assert TableStore(str(tmp_path), "a" * 200).names() == []


def test_versions_by_the_beginning_of_their_names(store):
    first, second = fit(store, "a"), fit(store, "b")
    assert store.version("000002").name == second
    assert store.version(first[:8]).name == first
    with pytest.raises(InputRejectedError, match="has 2 versions that begin with '00000'"):
        store.version("00000")
    with pytest.raises(InputRejectedError, match="has no version '000003'"):
        store.version("000003")


def test_what_was_left_of_a_pointer_is_tidied(tmp_path):
    store = TableStore(str(tmp_path), "ads")
    fit(store, "a")
    (tmp_path / "ads" / folders.temporary_name("CURRENT")).write_text("000001-")
    (tmp_path / "ads" / "another-program's.tmp").touch()
    fit(store, "b")
    (tmp_path / "ads" / "another-program's.tmp").unlink()
    assert not list((tmp_path / "ads").glob("*.tmp"))


# Which run made a version


def test_the_manifest_decides_which_run_made_a_version(store):
    names = [fit(store, content) for content in "abc"]
    assert store.find_run("b").name == names[1]
    assert store.find_run("z") is None
    # A run that was killed between its version and the entry of it.
    for left in ("journal.jsonl", "journal"):
        store.folder.remove(left)
    assert store.find_run("b").name == names[1]
    # Whatever the journal says.
    store.journal.add("publish", names[0], None, "d")
    assert store.find_run("d") is None


def test_a_start_reads_one_manifest_whatever_the_number_of_versions(store, monkeypatch):
    for content in "abcdefgh":
        fit(store, content)
    read = []
    function = folders.Folder.read
    monkeypatch.setattr(folders.Folder, "read", lambda self, name: read.append(name) or function(self, name))
    store.current()
    assert store.find_run("new") is None
    assert {name.partition("/")[0] for name in read} - {"journal", "journal.jsonl"} == {
        "CURRENT",
        "manifest.json",
    }
    assert read.count("manifest.json") <= 3


# Several at once


def together(*actions):
    """Carry out actions on threads that start at once; return what each returned or raised."""
    barrier, outcomes = threading.Barrier(len(actions)), [None] * len(actions)

    def carry_out(i):
        barrier.wait()
        try:
            outcomes[i] = actions[i]()
        except Exception as error:  # noqa: BLE001
            outcomes[i] = error

    threads = [threading.Thread(target=carry_out, args=(i,)) for i in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def test_publishers_take_turns(store):
    names = together(*(lambda content=content: fit(store, content) for content in "abcdef"))
    assert sorted(names) == store.names()
    assert [name[:6] for name in store.names()] == [f"{i:06d}" for i in range(1, 7)]
    entries = store.journal.entries()
    assert [entry.previous for entry in entries] == [None, *(entry.version for entry in entries[:-1])]
    assert looks(store) == entries[-1].version


def test_of_identical_runs_one_is_published(store):
    outcomes = together(*(lambda: fit(store, "a") for _ in range(5)))
    assert len(store.names()) == 1
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NothingToDoError"] * 4 + ["str"]
    assert looks(store) in outcomes


def test_waiting_ends(store, monkeypatch):
    monkeypatch.setattr(locks, "PATIENCE", 0.0)
    with store.locked(), pytest.raises(TemporaryError, match=r"has been using .*: run again later"):
        fit(store, "a")
    assert fit(store, "a") == looks(store)


@pytest.mark.parametrize("theirs", [timedelta(hours=-2), timedelta(hours=2)])
def test_whether_a_run_lives_is_told_by_the_stores_clock(theirs, monkeypatch):
    """Machines whose clocks differ took each other for dead, and both wrote; or for alive long after they had died."""
    store = TableStore(f"memory://{uuid.uuid4().hex}", "ads")
    monkeypatch.setattr(locks, "PATIENCE", 0.0)
    stored = locks._modified
    monkeypatch.setattr(locks, "_modified", lambda *entry: stored(*entry) + theirs)
    lock = {"host": "other", "process": 1, "shared": False}
    store.folder.write("lock/000001", json.dumps(lock).encode())
    store.folder.write("lock/12.bak", b"someone's copy")
    with pytest.raises(TemporaryError, match="a run on other"):
        fit(store, "a")
    written = store.filesystem.store[f"{store.folder.root}/lock/000001"]
    written.modified = datetime.now(UTC) - locks.LEASE
    fit(store, "a")
    assert (store.folder / "lock").names() == ["12.bak"]


class Unconditional(fsspec.AbstractFileSystem):
    """A store whose client creates a file by looking first, as fsspec's do that have no better."""

    protocol = "unconditional"
    written: ClassVar = []

    def ls(self, path, detail=True, **options):
        return []

    def _open(self, path, mode="rb", **options):
        if mode != "rb":
            self.written.append(path)
        return io.BytesIO()


class Refusing(MemoryFileSystem):
    """A store that refuses the condition."""

    protocol = "refusing"

    def pipe_file(self, path, value, mode="overwrite", **options):
        if mode == "create":
            raise NotImplementedError("no conditions")
        super().pipe_file(path, value, mode=mode)


def test_a_store_without_conditional_writes_is_refused_where_a_lock_is_needed():
    fsspec.register_implementation("unconditional", Unconditional, clobber=True)
    fsspec.register_implementation("refusing", Refusing, clobber=True)
    refused = partial(
        pytest.raises, ConfigError, match=r"conditional PUT.*use a mounted folder, or a store that"
    )
    store = TableStore("unconditional://bucket", "ads")
    with refused():
        store.check_writable()
    with refused():
        check_space("unconditional://bucket", 1)
    for protocol in ("unconditional", "refusing"):
        with refused():
            fit(TableStore(f"{protocol}://bucket", "ads"), "a")
        with refused(), scratch_folder(f"{protocol}://bucket"):
            pass
        assert Output.at(f"{protocol}://bucket/out").manifest() is None
    assert Unconditional.written == []


def test_a_lease_whose_answer_was_lost_is_found_again(monkeypatch):
    """The client repeats the request, and the object that it has created is there already."""
    store = TableStore(f"memory://{uuid.uuid4().hex}", "ads")
    create = folders.StoreFolder.create
    monkeypatch.setattr(folders.StoreFolder, "create", lambda *entry: create(*entry) and create(*entry))
    monkeypatch.setattr(locks, "PATIENCE", 0.0)
    assert fit(store, "a") == looks(store)
    assert (store.folder / "lock").names() == []


def test_leases_are_held_in_the_order_of_their_numbers():
    """Of many runs at once none shares the lock with one that has it for itself; no lease is left."""
    folder = Folder.at(f"memory://{uuid.uuid4().hex}")
    held, most = [], []

    def hold(i):
        for j in range(4):
            shared = (i + j) % 3 != 0
            with locks.locking(folder, shared=shared):
                held.append(shared)
                most.append(list(held))
                time.sleep(0.002)
                held.remove(shared)

    assert together(*(partial(hold, i) for i in range(6))) == [None] * 6
    assert len(most) == 24
    assert all(len(kinds) == 1 or all(kinds) for kinds in most)
    assert (folder / "lock").names() == []


def test_a_writer_that_was_taken_for_dead_does_not_write(monkeypatch):
    store = TableStore(f"memory://{uuid.uuid4().hex}", "ads")
    first = fit(store, "a")

    def slow(name):
        monkeypatch.setattr(locks, "LEASE", timedelta(0))
        fit(store, "c")
        return {"lookup.parquet": b"late"}

    with pytest.raises(TemporaryError, match="others took it for dead"):
        store.publish("f" * 64, slow, dict(FITTED))
    assert [store.version(name).manifest.get("run_id") for name in store.names()] == ["a", "c"]
    assert looks(store) == store.names()[1] != first


# The command


def test_a_candidate_by_the_command(place):
    place.write_log()
    done = place.job("fit", "store.publish=candidate").expect(0)
    assert "saved as a candidate: ads version 000001-" in done.stdout
    assert not (place.store / "ads" / "CURRENT").exists()
    place.job("fit", "store.publish=candidate").expect(99, "store.publish is candidate")
    place.job("fit").expect(0)
    assert place.current == place.versions[0]


# Versions, the pointer to the current one, and what survives trouble


def publish(store, content="x"):
    return store.version(fit(store, content))


def test_a_version_says_where_it_is_to_those_who_do_not_know_the_store(store):
    published = publish(store)
    for version in (published, store.current()):
        with fsspec.open(version.lookup_path) as file:
            assert file.read() == f"x {version.name}".encode()


def test_a_damaged_version_is_not_gone_back_to(store):
    first, second = publish(store), publish(store, "y")
    store.filesystem.pipe_file(first.lookup_path, b"damaged")
    with pytest.raises(InputRejectedError, match="expected the sha256"):
        store.rollback(first.name)
    assert store.current().name == second.name


def test_a_current_that_names_nothing(store):
    publish(store)
    store.filesystem.pipe_file(f"{store.root}/CURRENT", b"000007-gone\n")
    with pytest.raises(InputRejectedError, match="names version '000007-gone', which is not there; found"):
        store.current()
    assert store.rollback(store.names()[0])[1].name == store.names()[0]
    assert store.current().name == store.names()[0]


def test_a_line_of_the_journal_that_a_crash_cut_off_is_passed_over_and_a_damaged_one_is_not(tmp_path):
    """At any byte: the same run, run again, goes on."""
    store, journal = TableStore(str(tmp_path), "ads"), tmp_path / "ads" / "journal.jsonl"
    first, second = publish(store), publish(store, "y")
    lines = journal.read_bytes().splitlines(keepends=True)
    for cut in range(len(lines[1])):
        journal.write_bytes(lines[0] + lines[1][:cut])
        (tmp_path / "ads" / "CURRENT").write_text(first.name)
        store.make_current(second)
        assert [entry.version for entry in store.journal.entries()][:1] == [first.name]
        assert store.rollback()[1].name == first.name
    journal.write_bytes(lines[0].replace(b"0", b"1", 1) + lines[1])
    with pytest.raises(InputRejectedError, match=r"found line 1 of journal\.jsonl damaged .* restore it"):
        store.rollback()
    for damaged in (
        lines[1].replace(b"\n", b"N"),
        lines[1].replace(b"}", b"]"),
    ):  # whole, but for its last bytes
        journal.write_bytes(lines[0] + damaged)
        with pytest.raises(InputRejectedError, match=r"found line 2 of journal\.jsonl damaged"):
            store.rollback()


def test_a_version_without_a_manifest_does_not_exist(store):
    version = publish(store)
    store.filesystem.rm(f"{version.folder}/manifest.json")
    assert store.names() == []


def test_a_manifest_of_another_format_is_refused(store):
    version = publish(store)
    path = f"{version.folder}/manifest.json"
    store.filesystem.pipe_file(path, json.dumps({**version.manifest, "format_version": "99"}).encode())
    with pytest.raises(
        InputRejectedError, match="expected format_version 1, found 99: a newer version of logcal"
    ):
        store.version()
    features = {**version.manifest, "features": ["interval", "rays"], "table": 5}
    store.filesystem.pipe_file(path, json.dumps(features).encode())
    with pytest.raises(InputRejectedError, match=r"features among .*, found rays: a newer version of logcal"):
        store.version()
    store.filesystem.pipe_file(path, b"{")
    with pytest.raises(InputRejectedError, match="expected JSON, found a damaged file"):
        store.version()


@pytest.mark.parametrize("spoil", [*WRONG, "previous_version", "files", *FITTED])
def test_a_manifest_with_something_else_than_expected_or_without_a_key(tmp_path, spoil):
    store = TableStore(str(tmp_path), "ads")
    version = publish(store)
    written = tmp_path / "ads" / "versions" / version.name / "manifest.json"
    said = r"manifest\.json: expected .*, found .*: \w+"
    if isinstance(spoil, tuple):
        written.write_bytes(with_value(version.manifest, *spoil))
    else:
        left = {key: value for key, value in version.manifest.items() if key not in (spoil, "checksum")}
        written.write_text(json.dumps(left))
        said = f"expected {spoil} to be .*, found nothing"
    with pytest.raises(InputRejectedError, match=said):
        store.version()


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"[" * 200_000, "nested too deeply"), (b" " * (64 << 20) + b"{}", "at most 67,108,864")],
)
def test_a_manifest_without_bounds(tmp_path, content, said):
    store = TableStore(str(tmp_path), "ads")
    name = publish(store).name
    (tmp_path / "ads" / "versions" / name / "manifest.json").write_bytes(content)
    with pytest.raises(InputRejectedError, match=said):
        store.version()


def test_the_score_table_is_kept_with_its_checksums(store, tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "part-00000.parquet").write_bytes(b"part")
    version = store.publish("f" * 64, lambda name: {"lookup.parquet": b"x"}, FITTED, tmp_path / "kept")
    expected = {"bytes": 4, "sha256": hashlib.sha256(b"part").hexdigest()}
    assert version.manifest["files"]["score_table/part-00000.parquet"] == expected
    assert store.filesystem.cat_file(f"{version.folder}/score_table/part-00000.parquet") == b"part"


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b"])
def test_names_that_are_not_plain(tmp_path, name):
    with pytest.raises(ConfigError, match="choose a plain name"):
        TableStore(str(tmp_path), name)


def test_a_store_that_cannot_be_opened_or_written_to(tmp_path):
    with pytest.raises(ConfigError, match="cannot open"):
        TableStore("nosuchprotocol://x", "ads")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=r"the file .* in the way"):
        TableStore(str(tmp_path / "file"), "ads").check_writable()
