"""Many small files: several are one task, and are scored in lockstep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from fsspec.implementations.local import LocalFileSystem

from pipeline.execution import Companions
from pipeline.execution.lockstep import Result, Work, lockstep
from pipeline.execution.turns import Turns
from pipeline.log.log_files import LogFile
from pipeline.score.scored_file import FileCounts, Scoring, score_in_parts

_STEP_FILES, _STEP_BYTES = 8, 1 << 20
"""Of files that are scored in lockstep: how many, and bytes of all of them. More would not stay in the caches."""

_TASK_FILES, _TASK_BYTES = 32, 1 << 22
"""Of a task: few enough that workers get equal shares, of files that are small and of those that are not."""

_COMPANION_FILES = 256
"""Of each process beside this one at least: fewer are done by the time it has begun."""

_WAITED = 2.0
"""Seconds from which on it counts that steps wait for storage."""

_turns = Turns(_WAITED)


def in_step(works: Sequence[Work[Result]], *, local: bool) -> list[Result]:
    """As `lockstep`, for works on small files. local : whether they lie on a mounted file system."""
    return _turns.run(lambda: lockstep(works)) if local else lockstep(works)


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


def companions_for(
    filesystem: Any, files: Sequence[Sized], target_filesystem: Any, workers: int
) -> Companions | None:
    """Processes beside this one for scoring files as many workers; None where threads alone serve as well.

    Of many small files that are not waited for, nearly all is work that Python's lock lets one thread do at a time.
    """
    local = isinstance(filesystem, LocalFileSystem) and isinstance(target_filesystem, LocalFileSystem)
    small = sum(file.size for file in files) <= len(files) * _STEP_BYTES
    count = min(workers - 1, len(files) // _COMPANION_FILES)
    return Companions(count) if local and small and count > 0 else None


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
