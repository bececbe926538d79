"""The ledger of a stream: the known files, and the plan and result of each batch.

It lies beside the output, in the hidden folder `.<output>.logcal/`, where readers do not see it:

    stream.json              log, columns, store: the identity of the stream
    plan/<n>.json            plan of batch n: the table's version; files with their sizes and stamps
    done/<n>.json            result of batch n: each file's rows, or the reason of its refusal
    state/<partition>/<n>.json   all known files of a partition after batch n
    follower.json            host and process of the follower

Plans and results are new files, never overwritten. A result commits its batch. A plan without a result belongs to a
follower that died, and the next follower carries it out. A result without a plan only records facts about files, for
example when a ledger is rebuilt or a file is to be tried again. States summarise plans and results, so that a start
reads few files; older plans and results are removed.

One process at a time owns a ledger; a process that lost its lease notices this before it writes. The next follower
finishes a batch that was begun, with the version that its plan names, perhaps months later. So a stream writes a note
into the table's folder, `<store>/<table>/streams/<digest>.json`, and the command that removes versions reads the
ledgers that these notes name.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from logcal.errors import ConfigError, InputRejectedError, TemporaryError
from logcal.schema import FORMAT_VERSION, check_format
from logcal.storage import open_filesystem, parse_json, with_checksum
from pipeline.files.folders import Folder
from pipeline.files.locks import locking
from pipeline.files.requests import together
from pipeline.files.storage import records_beside

COMPACT_EVERY = 100
"""Batches between states."""

_STREAM = "stream.json"
_OWNER = "follower.json"
_NOTES = "streams"


class SourceFile(NamedTuple):
    """File of the log: its path below the log's root, size in bytes, and stamp, which changes with its content."""

    name: str
    size: int
    stamp: str


class Known(NamedTuple):
    """Ledger entry of a file.

    Attributes
    ----------
    size, stamp : size and stamp of the source
    rows, null_rows, unseen_rows, bytes : counts of its scored file; see `RowCounts`
    reason : why it was refused; None if it was scored
    rows_below_range, rows_above_range : number of rows with scores below or above the table's calibration range
    """

    size: int
    stamp: str
    rows: int = 0
    null_rows: int = 0
    unseen_rows: int = 0
    bytes: int = 0
    reason: str | None = None
    rows_below_range: int = 0
    rows_above_range: int = 0


@dataclass(frozen=True)
class Batch:
    """Plan of a batch.

    Attributes
    ----------
    number : number of the batch, from 1
    version : version of the table that scores its files
    files : files to score
    removed : names of files whose sources are gone and whose scored files are removed
    """

    number: int
    version: str
    files: tuple[SourceFile, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass
class Done:
    """Result of a batch.

    Attributes
    ----------
    known : entries of the files that were scored or refused
    waiting : for each unreadable file, when it was first found, in seconds since 1970
    forgotten : names that are no longer known: of files that were removed, or are to be tried again
    facts : facts about the batch: its version, duration, time
    """

    known: dict[str, Known] = field(default_factory=dict)
    waiting: dict[str, float] = field(default_factory=dict)
    forgotten: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


class Ledger:
    """Ledger of an output.

    Parameters
    ----------
    output : folder of the output
    """

    def __init__(self, output: Folder) -> None:
        self.output = output
        self.root = records_beside(output.root)
        self.folder = Folder.of(output.filesystem, self.root)
        self.files: dict[str, Known] = {}
        self.waiting: dict[str, float] = {}
        self.last = 0
        self.facts: dict[str, Any] = {}
        self._compacted = 0
        self._states: dict[str, int] = {}
        self._touched: set[str] = set()

    # Identity of the stream

    def stream(self) -> dict[str, Any] | None:
        """Read the identity of the stream that the ledger was begun for; None if there is no ledger."""
        return self._read(_STREAM)

    def begin(self, stream: Mapping[str, Any]) -> None:
        """Begin a ledger, or check that the existing one belongs to the same stream.

        Raises
        ------
        ConfigError
            The folder holds another stream's ledger.
        InputRejectedError
            A newer logcal wrote it.
        """
        content = {"format_version": FORMAT_VERSION, **stream}
        written = self.stream()
        if written is None:
            if self.folder.create(_STREAM, _json(content)):
                return
            written = self.stream() or {}
        check_format(f"{self.root}/{_STREAM}", written.get("format_version"), "use another output")
        different = [key for key, value in content.items() if written.get(key) != value]
        if different:
            listed = "; ".join(f"{k}: {written.get(k)!r}, now {content[k]!r}" for k in sorted(different))
            raise ConfigError(
                f"$[output]: expected an output of this stream, found the ledger of another at {self.root} "
                f"({listed}): choose another output, or set the keys as they were"
            )

    # Reading

    def _read(self, name: str) -> dict[str, Any] | None:
        """Call `Folder.read_json`; a damaged file is an error of the ledger."""
        try:
            return self.folder.read_json(name)
        except InputRejectedError as error:
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> InputRejectedError:
        return InputRejectedError(
            f"{self.root}: the ledger of this stream is damaged ({error}): remove this folder, then run "
            "`logcal follow --rebuild`"
        )

    def load(self) -> Batch | None:
        """Read the ledger; return the batch that was planned and not committed, if any.

        Raises
        ------
        InputRejectedError
            The ledger is damaged.
        """
        try:
            return self._load()
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._damaged(error) from error

    def _load(self) -> Batch | None:
        self.files, self.waiting, self.facts = {}, {}, {}
        self._states, self._touched = {}, set()
        remote = self.folder.remote
        lists: list[Callable[[], list[Any]]] = [
            self._state_numbers,
            partial(self._numbers, "done"),
            partial(self._numbers, "plan"),
        ]
        states, done, plans = together(lambda read: read(), lists, remote=remote)
        contents = together(self._read, [self._state(*state) for state in states], remote=remote)
        for (partition, number), content in zip(states, contents, strict=True):
            if content is None or number <= self._states.get(partition, -1):
                continue
            self._states[partition] = number
            self.files.update((name, Known(*values)) for name, values in content["files"].items())
        self._compacted = max(self._states.values(), default=0)
        self.last = self._compacted
        contents = together(self._read, [self._path("done", number) for number in done], remote=remote)
        for number, content in zip(done, contents, strict=True):
            if content is not None:
                self._apply(number, _done_of(content))
            self.last = max(self.last, number)
        return self._uncommitted(self.last, plans)

    def begun(self) -> Batch | None:
        """Read only the batch that was planned and not committed, if any."""
        states = (number for _, number in self._state_numbers())
        last = max((*states, *self._numbers("done")), default=0)
        # Plans are listed last, so that a batch that is planned in the meantime counts.
        return self._uncommitted(last, self._numbers("plan"))

    def _uncommitted(self, last: int, plans: Iterable[int]) -> Batch | None:
        for number in plans:
            content = self._read(self._path("plan", number)) if number > last else None
            if content is not None:
                files = tuple(SourceFile(*file) for file in content["files"])
                return Batch(number, content["version"], files, tuple(content["removed"]))
        return None

    def _apply(self, number: int, done: Done) -> None:
        for name, known in done.known.items():
            partition = partition_of(name)
            if number > self._states.get(partition, 0):
                self.files[name] = known
                self._touched.add(partition)
        for name in done.forgotten:
            if number > self._states.get(partition_of(name), 0):
                self.files.pop(name, None)
                self._touched.add(partition_of(name))
        self.waiting = dict(done.waiting)
        self.facts = done.facts or self.facts

    # Writing

    def plan(
        self, version: str, files: Iterable[SourceFile] = (), removed: Iterable[str] = ()
    ) -> Batch | None:
        """Begin a batch; return None if another follower began one of the same number."""
        batch = Batch(self.last + 1, version, tuple(files), tuple(removed))
        content = {"version": version, "files": batch.files, "removed": batch.removed}
        created = self.folder.create(self._path("plan", batch.number), _json(content))
        return batch if created else None

    def note(self, done: Done) -> bool:
        """Record facts about files without a plan; return False if another follower wrote in the meantime."""
        return self.commit(Batch(self.last + 1, ""), done)

    def discard(self) -> None:
        """Remove all plans, results and states."""
        for kind in ("plan", "done", "state"):
            self.folder.remove(kind)

    def commit(self, batch: Batch, done: Done) -> bool:
        """Write a batch's result; return False if another follower did."""
        content = {
            "known": done.known,
            "waiting": done.waiting,
            "forgotten": done.forgotten,
            "facts": done.facts,
        }
        if not self.folder.create(self._path("done", batch.number), _json(content)):
            return False
        self._apply(batch.number, done)
        self.last = batch.number
        return True

    @property
    def refused(self) -> dict[str, str]:
        """Reasons by name of the refused file."""
        return {name: known.reason for name, known in self.files.items() if known.reason is not None}

    @property
    def due(self) -> bool:
        """True if states should be written."""
        return self.last - self._compacted >= COMPACT_EVERY

    def compact(self) -> None:
        """Write the states of changed partitions, then remove older files. Repeating it is harmless."""
        by_partition: dict[str, dict[str, Any]] = {partition: {} for partition in self._touched}
        for name, known in self.files.items():
            partition = partition_of(name)
            if partition in by_partition:
                by_partition[partition][name] = known
        old = []
        for partition, files in by_partition.items():
            if partition in self._states:
                old.append(self._state(partition, self._states[partition]))
            self.folder.write(self._state(partition, self.last), _json({"files": files}))
            self._states[partition] = self.last
        self._touched, self._compacted = set(), self.last
        if not self._states:
            return
        # An unchanged partition's newest state may be older, and contains all its known files.
        # Only the last result has the waiting files and the last facts.
        dropped = [n for n in self._numbers("done") if n < self.last]
        self._remove([*old, *(self._path("done", n) for n in dropped)])
        self._remove(self._path("plan", n) for n in self._numbers("plan") if n <= self.last)

    def forget_partition(self, partition: str) -> None:
        """Forget the files of a partition."""
        for name in [name for name in self.files if partition_of(name) == partition]:
            del self.files[name]
        number = self._states.pop(partition, None)
        self._touched.discard(partition)
        if number is not None:
            self._remove([self._state(partition, number)])

    # Paths

    def _path(self, kind: str, number: int) -> str:
        return f"{kind}/{number:012d}.json"

    def _state(self, partition: str, number: int) -> str:
        return f"state/{quote(partition, safe='=') or '_'}/{number:012d}.json"

    def _numbers(self, kind: str) -> list[int]:
        names = (self.folder / kind).matching("*.json")
        return sorted(_number(name) for name in names if not name.startswith("."))

    def _state_numbers(self) -> list[tuple[str, int]]:
        numbers = []
        for path in (self.folder / "state").files_below():
            folder, _, name = path.rpartition("/")
            if name.endswith(".json") and not name.startswith("."):
                partition = unquote(folder.rpartition("/")[2])
                numbers.append(("" if partition == "_" else partition, _number(name)))
        return sorted(numbers, key=lambda item: (item[0], -item[1]))

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            self.folder.remove(name)


def partition_of(name: str) -> str:
    """Return a file's partition: its first hive folder, or ''."""
    if "=" not in name:
        return ""
    return next((part for part in name.split("/")[:-1] if "=" in part), "")


def _done_of(content: Mapping[str, Any]) -> Done:
    known = {name: Known(*values) for name, values in content["known"].items()}
    return Done(known, dict(content["waiting"]), tuple(content["forgotten"]), dict(content["facts"]))


def _number(name: str) -> int:
    return int(name.removesuffix(".json"))


def _json(content: Mapping[str, Any]) -> bytes:
    return f"{json.dumps(with_checksum(content), ensure_ascii=True, separators=(',', ':'), allow_nan=False)}\n".encode()


class LeaseOwner:
    """Owner of a ledger's lock.

    Parameters
    ----------
    folder : folder of the ledger

    Raises
    ------
    TemporaryError
        Another process has the lock.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._stack = ExitStack()
        try:
            self._lock = self._stack.enter_context(locking(folder, patience=0))
        except TemporaryError:
            recorded = folder.read_json(_OWNER)
            owner = f"process {recorded['process']} on {recorded['host']}" if recorded else "another process"
            raise TemporaryError(
                f"{folder.root}: {owner} follows this stream already: one is enough; stop it first, or let it go on"
            ) from None
        facts = {"host": socket.gethostname(), "process": os.getpid()}
        try:
            folder.write(_OWNER, json.dumps(facts).encode())
        except BaseException:
            self.release()
            raise

    def check(self) -> None:
        """Check before a write that the lock has not been lost.

        Raises
        ------
        TemporaryError
            Another process took it over.
        """
        try:
            self._lock.check()
        except TemporaryError:
            raise TemporaryError(
                f"{self._folder.root}: another follower took over while this one was paused: it goes on, this one ends"
            ) from None

    def release(self) -> None:
        """Release the lock."""
        self._stack.close()


def announce(table: Folder, ledger: Ledger) -> None:
    """Write a note into a table's folder that a stream scores with the table, unless it exists.

    Raises
    ------
    OSError
        The store cannot be written to.
    """
    output = str(ledger.output.filesystem.unstrip_protocol(ledger.output.root))
    name = f"{hashlib.sha256(output.encode()).hexdigest()[:16]}.json"
    notes = table / _NOTES
    content = json.dumps({"output": output}).encode()
    if notes.read(name) != content:
        notes.make()
        notes.write(name, content)


def needed_versions(table: Folder) -> set[str]:
    """Return the versions of a table that begun batches need.

    Raises
    ------
    TemporaryError
        A stream's ledger cannot be read.
    """
    notes = table / _NOTES
    versions = set()
    for name in notes.names():
        if not name.endswith(".json"):
            continue
        output = _output(notes, name)
        try:
            batch = Ledger(Folder.of(*open_filesystem(output))).begun()
        except OSError as error:
            raise TemporaryError(
                f"{output}: expected the ledger of a stream that uses this table, found that it cannot be read "
                f"({error}): run again later, or remove {notes.root}/{name} if that stream is no more"
            ) from error
        if batch is not None and batch.version:
            versions.add(batch.version)
    return versions


def _output(notes: Folder, name: str) -> str:
    data = notes.read(name)
    try:
        content: Any = parse_json(data or b"")
        return str(content["output"])
    except (ValueError, KeyError, TypeError) as error:
        raise TemporaryError(
            f"{notes.root}/{name}: expected the note of a stream, found a file that is damaged ({error}): remove it; "
            "a stream that is still followed writes it anew"
        ) from error
