"""The rows of a window as runs: whole row groups of one day, and others divided while they are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from logcal.errors import InputRejectedError
from pipeline.execution import Graph
from pipeline.files.blobs import receipts_in
from pipeline.log import quarantine
from pipeline.log.log_files import Piece
from pipeline.log.windows import Window
from pipeline.sort import divided_runs
from pipeline.sort.day_files import FileId
from pipeline.sort.runs import Reading, RunReceipt, write_runs
from pipeline.sort.score_table import SortPlan, add_up


class SortedDay(NamedTuple):
    """What sort tasks leave of a day: references to receipts.

    own : of tasks that read rows of this day alone. divided : of those that read others' rows, too.
    """

    folder: str
    day: int
    own: list[Any]
    divided: list[Any]


def check_window(total: RunReceipt, plan: SortPlan) -> None:
    """Check that a window's rows can be used.

    Raises
    ------
    InputRejectedError
        Unusable rows beyond what the rules allow; no usable row.
    """
    quarantine.check(total.bad, total.rows, plan.rules)
    if total.used == 0:
        raise InputRejectedError(
            f"window: expected usable rows, found none among {total.rows:,}"
            f"{quarantine.waiting(total.rows - total.bad.total)}: set window.until or window.last"
        )


def add_up_day(
    folder: str, day: int, own: list[RunReceipt], divided: list[dict[int, RunReceipt]]
) -> RunReceipt:
    """The receipts of a day as one; see `SortedDay`."""
    return add_up([*own, *(receipts[day] for receipts in divided if day in receipts)])


def add_days(
    graph: Graph,
    window: Window,
    files: dict[int, frozenset[FileId]],
    folders: dict[int, str],
    plan: SortPlan,
) -> list[SortedDay]:
    """Add to a graph what sorts the rows of some days into runs in the days' own folders: a layer `sort-i`.

    Of each day those row groups are read that some files have of it; a day needs the tasks alone that read them.
    """
    log = window.log
    reading = Reading(log.filesystem, log.columns, plan.transform, plan.lookup, plan.grid)
    plain = reading._replace(columns=divided_runs.without_date(log.columns))
    keep = plan.rules.keep
    tasks: list[tuple[Any, ...]] = []
    # The days that each task gives rows of; one day, where it reads no others.
    reach: list[int | frozenset[int]] = []
    pure, mixed = _divide(window, files)
    for day, pieces in pure.items():
        for some in divided_runs.pack(pieces, plan.run_rows):
            tasks.append((write_runs, some, plain, folders[day], len(tasks), plan.run_rows, keep))
            reach.append(day)
    for own_days, divided in sorted(mixed.items(), key=lambda item: sorted(item[0])):
        places = {day: folders[day] for day in sorted(own_days)}
        for few in divided_runs.pack(divided, plan.run_rows):
            tasks.append(
                (divided_runs.write_divided_runs, few, reading, places, len(tasks), plan.run_rows, keep)
            )
            reach.append(own_days)
    found = graph.layer("sort", _call, tasks, receipts=receipts_in(plan.scratch))
    finished = []
    for day, folder in folders.items():
        own = [result for days, result in zip(reach, found, strict=True) if days == day]
        others = [
            result
            for days, result in zip(reach, found, strict=True)
            if isinstance(days, frozenset) and day in days
        ]
        finished.append(SortedDay(folder, day, own, others))
    return finished


def _divide(
    window: Window, files: dict[int, frozenset[FileId]]
) -> tuple[dict[int, list[Piece]], dict[frozenset[int], list[divided_runs.MixedPiece]]]:
    """The row groups that some files have of each day: those of one day, and by their days those of several.

    Of a file that some days have a table of already, only the others' rows are taken.
    """
    wanted = {path for own in files.values() for path, _, _ in own}
    pure: dict[int, list[Piece]] = {day: [] for day in files}
    mixed: dict[frozenset[int], list[divided_runs.MixedPiece]] = {}
    for file, groups in window.files:
        if file.path not in wanted:
            continue
        own_days = {day for day, own in files.items() if (file.path, file.size, file.stamp) in own}
        for group in groups:
            days = own_days.intersection(range(group.first, group.last + 1))
            if not days:
                continue
            piece = file.piece((group.place,), group.start, group.rows)
            if group.mixed:
                divided = mixed.setdefault(frozenset(days), [])
                divided.append(divided_runs.MixedPiece(piece, group.first, group.last))
            else:
                pure[group.first].append(piece)
    return pure, mixed


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """One stage's tasks may be of two kinds."""
    return function(*arguments)
