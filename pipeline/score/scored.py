"""The scored log: the log's own files with two columns more, the probability and the lookup table's version."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from fsspec.implementations.local import LocalFileSystem

from logcal.errors import ConfigError, examples
from logcal.reading import read_facts as read_lookup_facts
from pipeline.execution import Executor, Graph
from pipeline.files.output import Output
from pipeline.files.requests import together
from pipeline.log.log_files import LogFile, check_unchanged
from pipeline.log.logs import MOST_NAMED, Log, neighbours
from pipeline.score.ranges import RangeCount, RowCounts, range_of
from pipeline.score.scored_file import HELD_BYTES, FileCounts, Scoring, score_file

_NEW_BYTES_PER_ROW = 9


class ScoredFile(NamedTuple):
    """A file of a scored log: its relative path, and counts of its rows."""

    path: str
    counts: RowCounts


@dataclass(frozen=True)
class ScoredLog:
    """A scored log that has been written.

    Attributes
    ----------
    path : its folder. table, version : what it was scored with. files : all of them, in the log's order.
    counts : of all rows
    outside : rows outside the scores that the table was fitted to
    """

    path: str
    table: str
    version: str
    files: tuple[ScoredFile, ...]
    counts: RowCounts
    outside: RangeCount


def scored_output(path: str, *, among: str | None = None, replace: bool = False) -> Output:
    """Output of a scored log: its manifest lies beside it, so that any reader of Parquet takes the folder.

    among : the folder of many scored logs, such as days, which readers take as well. replace : whether it may take the
    place of an earlier result
    """
    return Output(path, beside=True, among=among, replace=replace)


def check_output(log: Log, place: Output, run_id: str) -> None:
    """Check what can be checked before anything is read or written.

    Raises
    ------
    ConfigError
        The output lies in the log or the log in the output; it holds something else; it cannot be written to; two
        files of the log would get one name.
    NothingToDoError
        This run has finished here before.
    TemporaryError
        Too little space.
    """
    _check_apart(log, place)
    place.check(run_id, log.size + _NEW_BYTES_PER_ROW * log.rows)


def _check_apart(log: Log, place: Output) -> None:
    place.check_apart(log.locations())
    counts = Counter(file.relative for file in log.files)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise ConfigError(
            f"log.path: expected files with different relative paths, found several named {examples(twice, 3)}: "
            "score the folders one by one, each to an output of its own"
        )


def add_scoring(graph: Graph, tasks: list[tuple[Any, ...]]) -> Any:
    """Add to a graph what `score_log` computes: `score-i -> commit`; return a reference to what was done to each."""
    return graph.task("commit", _of_all, graph.layer("score", score_files, tasks))


def _of_all(counts: list[list[FileCounts]]) -> list[FileCounts]:
    """Merge the tasks' reports on their files."""
    return list(chain.from_iterable(counts))


def score_log(
    log: Log,
    scoring: Scoring,
    place: Output,
    executor: Executor,
    *,
    run_id: str,
    table: str = "",
    accept: Callable[[ScoredLog], None] = lambda scored: None,
) -> ScoredLog:
    """Write a log with the probability of each row.

    Files keep their relative paths, hive directories included. A row whose score is null or NaN gets a null
    probability and is counted; an infinite score gets the constant level at its end of the map.

    Parameters
    ----------
    log : as `open_log` gives it; only its score column is used, or with `scoring.classifying` its features
    scoring : how
    place : as `scored_output` gives it; it appears complete or not at all
    executor : runs a task a file, or for some small ones; the output's bytes do not depend on it
    run_id : tells a repeated run from another
    table : the lookup table's name, for the manifest
    accept : looks at what is to be published; what it raises leaves nothing behind

    Raises
    ------
    ConfigError, NothingToDoError, TemporaryError
        As `check_output`.
    InputRejectedError
        A file cannot be read, or has a column that is named like a new one; the lookup table is not one.
    """
    _check_apart(log, place)  # the rest is checked where it is written
    facts = read_lookup_facts(scoring.lookup)
    with place.writing(run_id, [file.relative for file in log.files]) as staging:
        tasks = [
            (
                log.filesystem,
                group,
                place.filesystem,
                tuple(staging.target(file.relative) for file in group),
                scoring,
            )
            for group in tasks_of(log)
        ]
        counts = executor.reduce("score", score_files, tasks, _of_all, "commit")
        if not log.local:
            check_unchanged(log.filesystem, [file for file in log.files if file.size <= HELD_BYTES])
        files = tuple(map(ScoredFile, (file.relative for file in log.files), (n.rows for n in counts)))
        total = RowCounts.total(n.rows for n in counts)
        outside = RangeCount(
            range_of(facts),
            total.rows_below_range,
            total.rows_above_range,
            min((n.lowest for n in counts), default=math.inf),
            max((n.highest for n in counts), default=-math.inf),
        )
        scored = ScoredLog(place.url, table, facts.version, files, total, outside)
        accept(scored)
        staging.files += [file.path for file in files]
        of_rows = total._asdict()
        del of_rows["bytes"]
        staging.facts = {
            "table": table,
            "table_version": facts.version,
            "score": scoring.score,
            "columns": [name for _, name in scoring.new_columns()],
            **of_rows,
            "files": [{"path": file.path, **file.counts._asdict()} for file in files],
            "files_skipped": len(log.skipped),
            "files_skipped_names": list(log.skipped[:MOST_NAMED]),
            **({"snapshots": list(log.snapshots)} if log.snapshots else {}),
        }
    return scored


# Many small files: several are one task.

_TASK_FILES, _TASK_BYTES = 32, 1 << 22
"""Size of a task: few enough files that workers get equal shares, whether files are small or not."""
_TIMES_REMOTE = 8
"""As many more of a store's: its requests wait together, and between tasks for nothing."""


def tasks_of(log: Log) -> list[tuple[LogFile, ...]]:
    """A log's files in groups that are a task each, in order; a large one is a task of its own."""
    times = 1 if log.local else _TIMES_REMOTE
    return list(neighbours(log.files, lambda file: file.size, times * _TASK_BYTES, times * _TASK_FILES))


def score_files(
    filesystem: Any,
    files: tuple[LogFile, ...],
    target_filesystem: Any,
    targets: tuple[str, ...],
    scoring: Scoring,
) -> list[FileCounts]:
    """Do `score_file` for each of some files and its target. May run again."""

    def score(pair: tuple[LogFile, str]) -> FileCounts:
        return score_file(filesystem, pair[0], target_filesystem, pair[1], scoring)

    remote = not isinstance(filesystem, LocalFileSystem) or not isinstance(target_filesystem, LocalFileSystem)
    return list(together(score, list(zip(files, targets, strict=True)), remote=remote))
