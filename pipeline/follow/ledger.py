"""The ledger of a stream: the known files, and the plan and result of each batch.

It lies beside the output, in `<output>.logcal/`, where readers of the output do not see it:

    stream.json              log, columns, store: another stream is refused
    plan/<n>.json            the plan of batch n: the table's version; files with their sizes and stamps
    done/<n>.json            its result: each file's rows, or why it was refused
    state/<partition>/<n>.json   all known files of a partition after batch n
    follower.json            who holds it, and since when

Plans and results are new files, never overwritten. A result commits its batch; a plan without a result was left by a
follower that died, and the next one carries it out. A result without a plan only records facts about files, for example
when a ledger is rebuilt or a file is to be tried again. States sum up plans and results, so that a start reads little;
older plans and results are removed.

One process holds a ledger at a time; a process that was taken for dead notices this before it writes. The next follower
finishes a batch that was begun, with the version that its plan names, perhaps months later. So a stream leaves a note
in the table's folder, `<store>/<table>/streams/<digest>.json`, and the command that removes versions reads the ledgers
that these notes name.
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
from logcal.storage import open_filesystem, parse_json, with_checksum
from pipeline.files.folders import Folder
from pipeline.files.locks import locking
from pipeline.files.requests import together

FORMAT = 1
SUFFIX = ".logcal"
"""Suffix of the ledger's folder, behind the output's name."""

COMPACT_EVERY = 100
"""Batches between states."""

_STREAM = "stream.json"
_HELD_BY = "follower.json"
_NOTES = "streams"

_ALWAYS = 6
"""Numbers of a file that are always written."""


class Source(NamedTuple):
    """A file of the log: its name below the log's root, size in bytes, and stamp, which changes with its content."""

    name: str
    size: int
    stamp: str


class Known(NamedTuple):
    """Ledger entry of a file.

    Attributes
    ----------
    size, stamp : of the file that was read
    rows, null_rows, unseen_rows, bytes : of its scored file
    reason : why it was refused; None where it was scored
    rows_below_range, rows_above_range : of its rows, those whose score no row of the table's fit reached
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


_NOTHING = Known(0, "")


@dataclass(frozen=True)
class Batch:
    """Plan of a batch.

    Attributes
    ----------
    number : from 1
    version : of the table that its files are scored with
    files : to score. removed : names whose scored files go, since their sources went
    """

    number: int
    version: str
    files: tuple[Source, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass
class Done:
    """Result of a batch.

    Attributes
    ----------
    known : what became of each file that was scored or refused
    waiting : all files that could not be read yet, and when each was first seen, in seconds since 1970
    forgotten : names that are no longer known: removed, or to be tried once more
    facts : of the batch: its version, seconds, when it was done
    """

    known: dict[str, Known] = field(default_factory=dict)
    waiting: dict[str, float] = field(default_factory=dict)
    forgotten: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


class Ledger:
    """The ledger of an output.

    Parameters
    ----------
    filesystem, root : of the output
    """

    def __init__(self, filesystem: Any, root: str) -> None:
        self.filesystem = filesystem
        self.output = root
        self.root = f"{root.rstrip('/')}{SUFFIX}"
        self.folder = Folder(filesystem, self.root)
        self.files: dict[str, Known] = {}
        self.waiting: dict[str, float] = {}
        self.last = 0
        self.facts: dict[str, Any] = {}
        self._compacted = 0
        self._states: dict[str, int] = {}
        self._touched: set[str] = set()

    # What it is the ledger of

    def stream(self) -> dict[str, Any] | None:
        """Identity of the stream when its ledger was begun; None without a ledger."""
        return self._read(_STREAM)

    def begin(self, stream: Mapping[str, Any]) -> None:
        """Begin a ledger, or go on with one of the same stream.

        Raises
        ------
        ConfigError
            The folder holds another stream's ledger.
        InputRejectedError
            It was written by a newer logcal.
        """
        content = {"format": FORMAT, **stream}
        written = self.stream()
        if written is None:
            if self.folder.create(_STREAM, _json(content)):
                return
            written = self.stream() or {}
        if written.get("format", FORMAT) > FORMAT:
            raise InputRejectedError(
                f"{self.root}: expected a ledger of format {FORMAT} or older, found {written['format']}: "
                "use a newer logcal"
            )
        other = [key for key in content if written.get(key) != content[key] and key != "format"]
        if other:
            says = "; ".join(f"{key}: {written.get(key)!r}, now {content[key]!r}" for key in sorted(other))
            raise ConfigError(
                f"output.path: expected an output of this stream, found the ledger of another at {self.root} ({says}): "
                "choose another output, or set the keys as they were"
            )

    # Reading

    def _read(self, name: str) -> dict[str, Any] | None:
        """Do `Folder.read_json`."""
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
        """Read what is known; return the batch that was planned and not done, if there is one.

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
        remote = not self.folder.local
        lists: list[Callable[[], list[Any]]] = [
            self._state_numbers,
            partial(self._numbers, "done"),
            partial(self._numbers, "plan"),
        ]
        states, done, plans = together(lambda listed: listed(), lists, remote=remote)
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
        return self._left(self.last, plans)

    def begun(self) -> Batch | None:
        """The batch that was planned and not done, if there is one; what is known is not read for it."""
        states = (number for _, number in self._state_numbers())
        last = max((*states, *self._numbers("done")), default=0)
        return self._left(last, self._numbers("plan"))  # listed last: one that is planned meanwhile counts

    def _left(self, last: int, plans: Iterable[int]) -> Batch | None:
        for number in plans:
            content = self._read(self._path("plan", number)) if number > last else None
            if content is not None:
                files = tuple(Source(*file) for file in content["files"])
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

    def plan(self, version: str, files: Iterable[Source] = (), removed: Iterable[str] = ()) -> Batch | None:
        """Begin a batch; None: another follower began one of the same number."""
        batch = Batch(self.last + 1, version, tuple(files), tuple(removed))
        content = {"version": version, "files": batch.files, "removed": batch.removed}
        made = self.folder.create(self._path("plan", batch.number), _json(content))
        return batch if made else None

    def note(self, done: Done) -> bool:
        """Say something of files without a batch of them, in one write; False: another follower wrote meanwhile."""
        return self.commit(Batch(self.last + 1, ""), done)

    def discard(self) -> None:
        """Remove what is left of batches whose stream is not known any more."""
        for kind in ("plan", "done", "state"):
            self.folder.remove(kind)

    def commit(self, batch: Batch, done: Done) -> bool:
        """End a batch; False: another follower did."""
        content = {
            "known": {name: _row(known) for name, known in done.known.items()},
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
        """The files that were refused, and why."""
        return {name: known.reason for name, known in self.files.items() if known.reason is not None}

    @property
    def due(self) -> bool:
        """True if states should be written."""
        return self.last - self._compacted >= COMPACT_EVERY

    def compact(self) -> None:
        """Write the states of partitions that batches touched, then drop what they hold. Repeating it is harmless."""
        by_partition: dict[str, dict[str, Any]] = {partition: {} for partition in self._touched}
        for name, known in self.files.items():
            partition = partition_of(name)
            if partition in by_partition:
                by_partition[partition][name] = _row(known)
        old = []
        for partition, files in by_partition.items():
            if partition in self._states:
                old.append(self._state(partition, self._states[partition]))
            self.folder.replace(self._state(partition, self.last), _json({"files": files}))
            self._states[partition] = self.last
        self._touched, self._compacted = set(), self.last
        if not self._states:
            return
        # Another partition's newest state may be older: it holds all that is known of that partition.
        # What waits, and the last facts, are known from the last done alone.
        dropped = [n for n in self._numbers("done") if n < self.last]
        self._remove([*old, *(self._path("done", n) for n in dropped)])
        self._remove(self._path("plan", n) for n in self._numbers("plan") if n <= self.last)

    def forget_partition(self, partition: str) -> None:
        """Drop what is known of a partition's files."""
        for name in [name for name in self.files if partition_of(name) == partition]:
            del self.files[name]
        number = self._states.pop(partition, None)
        self._touched.discard(partition)
        if number is not None:
            self._remove([self._state(partition, number)])

    # Places

    def _path(self, kind: str, number: int) -> str:
        return f"{kind}/{number:012d}.json"

    def _state(self, partition: str, number: int) -> str:
        return f"state/{quote(partition, safe='=') or '_'}/{number:012d}.json"

    def _numbers(self, kind: str) -> list[int]:
        names = (self.folder / kind).matching("*.json")
        return sorted(_number(name) for name in names if not name.startswith("."))

    def _state_numbers(self) -> list[tuple[str, int]]:
        found = []
        for path in (self.folder / "state").files_below():
            folder, _, name = path.rpartition("/")
            if name.endswith(".json") and not name.startswith("."):
                partition = unquote(folder.rpartition("/")[2])
                found.append(("" if partition == "_" else partition, _number(name)))
        return sorted(found, key=lambda item: (item[0], -item[1]))

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            self.folder.remove(name)


def partition_of(name: str) -> str:
    """The partition that a file is known with: its first hive folder, or none."""
    if "=" not in name:
        return ""
    return next((part for part in name.split("/")[:-1] if "=" in part), "")


def _row(known: Known) -> list[Any]:
    count = len(known)
    # Empty fields at the end are left out: ledgers are long.
    while count > _ALWAYS and known[count - 1] == _NOTHING[count - 1]:
        count -= 1
    return list(known[:count])


def _done_of(content: Mapping[str, Any]) -> Done:
    known = {name: Known(*values) for name, values in content["known"].items()}
    return Done(known, dict(content["waiting"]), tuple(content["forgotten"]), dict(content["facts"]))


def _number(name: str) -> int:
    return int(name.removesuffix(".json"))


def _json(content: Mapping[str, Any]) -> bytes:
    return f"{json.dumps(with_checksum(content), ensure_ascii=True, separators=(',', ':'), allow_nan=False)}\n".encode()


class LeaseOwner:
    """The right to write to a ledger.

    Parameters
    ----------
    folder : of the ledger

    Raises
    ------
    TemporaryError
        Another process holds it.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._held = ExitStack()
        try:
            self._lock = self._held.enter_context(locking(folder, patience=0))
        except TemporaryError:
            by = folder.read_json(_HELD_BY)
            who = f"process {by['process']} on {by['host']}" if by else "another process"
            raise TemporaryError(
                f"{folder.root}: {who} follows this stream already: one is enough; stop it first, or let it go on"
            ) from None
        facts = {"host": socket.gethostname(), "process": os.getpid()}
        try:
            folder.replace(_HELD_BY, json.dumps(facts).encode())
        except BaseException:
            self.release()
            raise

    def check(self) -> None:
        """Before each write: make sure that it is still held.

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
        """Give it up."""
        self._held.close()


def announce(table: Folder, ledger: Ledger) -> None:
    """Leave a note beside a table that a stream scores with it; nothing where there is one.

    Raises
    ------
    OSError
        The store cannot be written to.
    """
    output = str(ledger.filesystem.unstrip_protocol(ledger.output))
    name = f"{hashlib.sha256(output.encode()).hexdigest()[:16]}.json"
    notes = table / _NOTES
    content = json.dumps({"output": output}).encode()
    if notes.read(name) != content:
        notes.make()
        notes.replace(name, content)


def needed_versions(table: Folder) -> set[str]:
    """The versions that batches were begun with and not ended.

    Raises
    ------
    TemporaryError
        A stream's ledger cannot be read now.
    """
    notes = table / _NOTES
    found = set()
    for name in notes.names():
        if not name.endswith(".json"):
            continue
        output = _output(notes, name)
        try:
            filesystem, root = open_filesystem(output)
            batch = Ledger(filesystem, root).begun()
        except OSError as error:
            raise TemporaryError(
                f"{output}: expected the ledger of a stream that uses this table, found that it cannot be read "
                f"({error}): run again later, or remove {notes.root}/{name} if that stream is no more"
            ) from error
        if batch is not None and batch.version:
            found.add(batch.version)
    return found


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
