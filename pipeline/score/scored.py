"""The scored log: copies of the log's files with two more columns, the probability and the lookup table's version."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from fsspec.implementations.local import LocalFileSystem

from logcal.errors import ConfigError, examples
from logcal.reading import cached_table
from logcal.reading import read_facts as read_lookup_facts
from pipeline.days.records import digest_of
from pipeline.execution import Executor, Graph
from pipeline.files.output import Output
from pipeline.files.requests import together
from pipeline.log.log_files import LogFile, check_unchanged
from pipeline.log.logs import MOST_NAMED, Log, batched_by_size
from pipeline.score.ranges import RangeCount, RowCounts, range_of
from pipeline.score.scored_file import HELD_BYTES, FileCounts, Scoring, score_file
from pipeline.score.shift import Shift, bins_of, total_counts

_NEW_BYTES_PER_ROW = 9


class ScoredFile(NamedTuple):
    """File of a scored log: its relative path, and counts of its rows."""

    path: str
    counts: RowCounts


@dataclass(frozen=True)
class ScoredLog:
    """Scored log that has been written.

    Attributes
    ----------
    path : its folder
    table, version : names of the lookup table and of its version
    files : its files, in the log's order
    counts : counts of all rows
    outside : number of rows outside the table's calibration range
    shift : distance between the scores and the table's; None if it was not measured
    """

    path: str
    table: str
    version: str
    files: tuple[ScoredFile, ...]
    counts: RowCounts
    outside: RangeCount
    shift: Shift | None = None


def scored_output(path: str, *, among: str | None = None, replace: bool = False) -> Output:
    """Return the output of a scored log. Its manifest lies beside it, so that any Parquet reader can read the folder.

    among, replace : see `Output`
    """
    return Output.at(path, beside=True, among=among, replace=replace)


def check_output(log: Log, output: Output, run_id: str) -> None:
    """Check a scored log's output before anything is read or written.

    Raises
    ------
    ConfigError
        The output lies in the log or the log in the output; it holds something else; it cannot be written to; two
        files of the log have one relative path.
    NothingToDoError
        This run has already written the output.
    TemporaryError
        There is too little space.
    """
    _check_apart(log, output)
    output.check(run_id, log.size + _NEW_BYTES_PER_ROW * log.rows)


def _check_apart(log: Log, output: Output) -> None:
    output.check_apart(log.locations())
    counts = Counter(file.relative for file in log.files)
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated:
        raise ConfigError(
            f"$[paths]: expected files with different relative paths, found several named {examples(repeated, 3)}: "
            "score the folders one by one, each to an output of its own"
        )


def add_scoring(graph: Graph, tasks: list[tuple[Any, ...]]) -> Any:
    """Add the tasks of `score_log` to a graph: `score-i -> commit`; return a reference to the files' counts."""
    return graph.task("commit", _concatenate, graph.layer("score", score_files, tasks))


def _concatenate(counts: list[list[FileCounts]]) -> list[FileCounts]:
    """Concatenate the tasks' counts of their files."""
    return list(chain.from_iterable(counts))


def score_log(
    log: Log,
    scoring: Scoring,
    output: Output,
    executor: Executor,
    *,
    run_id: str,
    table: str = "",
    accept: Callable[[ScoredLog], None] = lambda scored: None,
) -> ScoredLog:
    """Write a log with the probability of each row.

    Files keep their relative paths, including hive folders. A row whose score is null or NaN gets a null probability
    and is counted; an infinite score gets the constant probability at its end of the map.

    Parameters
    ----------
    log : result of `open_log`; only its score column is used, or with `scoring.classifying` its features
    scoring : plan of the scoring
    output : result of `scored_output`; it appears atomically
    executor : runs one task for each large file or group of small files; the output's bytes do not depend on it
    run_id : identity of the run, which a repeated run shares
    table : name of the lookup table, for the manifest
    accept : called with the result before it is published; if it raises an error, nothing is published

    Raises
    ------
    ConfigError, NothingToDoError, TemporaryError
        See `check_output`.
    InputRejectedError
        A file cannot be read, or has a column with the name of a new one; the lookup table is invalid.
    """
    _check_apart(log, output)  # `writing` checks the rest
    facts = read_lookup_facts(scoring.lookup)
    with output.writing(run_id, [file.relative for file in log.files]) as staging:
        tasks = [
            (log.filesystem, output.filesystem, [(f, staging.target(f.relative)) for f in group], scoring)
            for group in tasks_of(log)
        ]
        counts = executor.reduce("score", score_files, tasks, _concatenate, "commit")
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
        shift = None
        if scoring.shift is not None:
            bins = bins_of(cached_table(scoring.lookup).map)
            shift = scoring.shift.judge(bins, total_counts(n.bins for n in counts))
        scored = ScoredLog(output.url, table, facts.version, files, total, outside, shift)
        accept(scored)
        staging.files += [file.path for file in files]
        row_counts = total._asdict()
        del row_counts["bytes"]
        staging.facts = {
            "table": table,
            "table_version": facts.version,
            "score": scoring.score,
            "columns": [name for _, name in scoring.new_columns()],
            # Damage in these would have been copied.
            "columns_not_read": sorted({name for n in counts for name in n.unread}),
            "log_files": digest_of(log.files),
            **row_counts,
            "files": [{"path": file.path, **file.counts._asdict()} for file in files],
            "files_skipped": len(log.skipped),
            "files_skipped_names": list(log.skipped[:MOST_NAMED]),
            **({"snapshots": list(log.snapshots)} if log.snapshots else {}),
            **({"shift": shift.facts()} if shift is not None else {}),
        }
    return scored


# Several small files are one task.

_TASK_FILES, _TASK_BYTES = 32, 1 << 22
"""Limits of a task: small enough that workers get equal shares."""
_REMOTE_FACTOR = 8
"""Factor of these limits for files of a store: more requests of one task are then concurrent."""


def tasks_of(log: Log) -> list[tuple[LogFile, ...]]:
    """Divide a log's files into tasks, in order; a large file is a task of its own."""
    factor = 1 if log.local else _REMOTE_FACTOR
    return list(
        batched_by_size(log.files, lambda file: file.size, factor * _TASK_BYTES, factor * _TASK_FILES)
    )


def score_files(
    filesystem: Any, target_filesystem: Any, files: list[tuple[LogFile, str]], scoring: Scoring
) -> list[FileCounts]:
    """Call `score_file` for each file and its target. Repeating it is harmless."""

    def score(pair: tuple[LogFile, str]) -> FileCounts:
        return score_file(filesystem, pair[0], target_filesystem, pair[1], scoring)

    remote = not isinstance(filesystem, LocalFileSystem) or not isinstance(target_filesystem, LocalFileSystem)
    return list(together(score, files, remote=remote))
