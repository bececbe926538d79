"""Many small files: several are one task, and are scored in lockstep."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from fsspec.implementations.local import LocalFileSystem

from pipeline.execution.lockstep import Result, Work, lockstep
from pipeline.log.log_files import LogFile
from pipeline.score.scored_file import FileCounts, Scoring, score_in_parts

_STEP_FILES, _STEP_BYTES = 8, 1 << 20
"""Of files that are scored in lockstep: how many, and bytes of all of them. More would not stay in the caches."""

_TASK_FILES, _TASK_BYTES = 32, 1 << 22
"""Of a task: few enough that workers get equal shares, of files that are small and of those that are not."""

_MANY_FILES = 1000
"""So many small files take longer than processes to start that share them."""

_WAITED, _TIMES = 2.0, 3.0
"""When steps wait for storage: they took so many seconds more than they computed in, and so many times as long."""


class Turns:
    """Steps of small files by several threads: one at a time, unless they wait for storage most of the time.

    Nearly all that a step does needs Python's own lock, and threads that wrest it from each other take some third
    longer than one after the other. Where files are far, as in a mounted network folder, threads that wait side by
    side are worth more.

    Attributes
    ----------
    alone : whether steps take turns: at first, and until they have waited long
    """

    def __init__(self) -> None:
        self.alone = True
        self._turn = threading.Lock()
        self._seconds = self._computed = 0.0

    def run(self, works: Sequence[Work[Result]]) -> list[Result]:
        """As `lockstep`, in this thread's turn."""
        if not self.alone:
            return lockstep(works)
        with self._turn:
            begun, own = time.monotonic(), time.thread_time()
            try:
                return lockstep(works)
            finally:
                self._seconds += time.monotonic() - begun
                self._computed += time.thread_time() - own
                if self._seconds > max(self._computed + _WAITED, _TIMES * self._computed):
                    self.alone = False


_turns = Turns()


def in_step(works: Sequence[Work[Result]], *, local: bool) -> list[Result]:
    """As `lockstep`, for works on small files. local : whether they lie on a mounted file system."""
    return _turns.run(works) if local else lockstep(works)


class Sized(Protocol):
    """What has a size."""

    @property
    def size(self) -> int:
        """Bytes."""


File = TypeVar("File", bound=Sized)


def groups_of(files: Sequence[File], most_files: int, most_bytes: int) -> list[tuple[File, ...]]:
    """Files in groups of neighbours, in order: each has as many as the limits allow, and one at least."""
    groups: list[list[File]] = []
    size = 0
    for file in files:
        if not groups or len(groups[-1]) >= most_files or size + file.size > most_bytes:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size
    return [tuple(group) for group in groups]


def tasks_of(files: Sequence[File]) -> list[tuple[File, ...]]:
    """Files in groups that are a task each, in order; a large one is a task of its own."""
    return groups_of(files, _TASK_FILES, _TASK_BYTES)


def steps_of(files: Sequence[File]) -> list[tuple[File, ...]]:
    """A task's files in groups that are scored in lockstep, in order."""
    return groups_of(files, _STEP_FILES, _STEP_BYTES)


def are_small(files: Sequence[Sized]) -> bool:
    """Whether scoring them is mostly work that Python's lock lets one thread do at a time, and much of it."""
    return len(files) >= _MANY_FILES and sum(file.size for file in files) <= len(files) * _STEP_BYTES


def score_files(
    filesystem: Any,
    files: tuple[LogFile, ...],
    target_filesystem: Any,
    targets: tuple[str, ...],
    scoring: Scoring,
) -> list[FileCounts]:
    """As `score_file`, for each of some files and its target. May run again."""
    counts: list[FileCounts] = []
    for step in steps_of(files):
        there = targets[len(counts) : len(counts) + len(step)]
        works = [
            score_in_parts(filesystem, file, target_filesystem, target, scoring)
            for file, target in zip(step, there, strict=True)
        ]
        counts += in_step(works, local=len(works) > 1 and isinstance(filesystem, LocalFileSystem))
    return counts
