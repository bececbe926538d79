"""Many small files: several are one task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from pipeline.log.log_files import LogFile
from pipeline.score.scored_file import FileCounts, Scoring, score_file

_TASK_FILES, _TASK_BYTES = 32, 1 << 22
"""Of a task: few enough that workers get equal shares, of files that are small and of those that are not."""


class Sized(Protocol):
    """A file whose size is known."""

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


def score_files(
    filesystem: Any,
    files: tuple[LogFile, ...],
    target_filesystem: Any,
    targets: tuple[str, ...],
    scoring: Scoring,
) -> list[FileCounts]:
    """As `score_file`, for each of some files and its target. May run again."""
    return [
        score_file(filesystem, file, target_filesystem, target, scoring)
        for file, target in zip(files, targets, strict=True)
    ]
