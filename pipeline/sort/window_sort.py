"""A window's rows as one sort's runs, of which nothing is kept: for measuring, and for fits that publish nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pipeline.execution import Executor, Graph
from pipeline.files.blobs import receipts_in
from pipeline.files.folders import Folder
from pipeline.log.quarantine import BAD_PARTS
from pipeline.log.windows import Window, day_of
from pipeline.sort.day_files import FileId, Kept
from pipeline.sort.day_tables import DayTable
from pipeline.sort.decay import factor, weigh_runs
from pipeline.sort.label_coverage import covered
from pipeline.sort.runs import RunReceipt
from pipeline.sort.score_table import SortPlan, add_up
from pipeline.sort.window_runs import add_days, add_up_day, check_window


def add_window(
    graph: Graph, window: Window, plan: SortPlan, *, min_labelled: float = 0.0, half_life: int | None = None
) -> Any:
    """Add what sorts a window's rows to a graph: `sort-i -> day-k -> total`; return a reference to a RunReceipt.

    Each day has a folder of its own in the plan's scratch space: see `make_days`.

    min_labelled : of a day's rows, the share that must not be waiting for their label; other days are left out
    half_life : in days, after which a row counts half: `weigh-k` follows on `day-k`; None: all count the same
    """
    files = _files(window)
    folders = {day: _folder(plan, day) for day in files}
    days = graph.layer("day", add_up_day, add_days(graph, window, files, folders, plan), shown=False)
    weighed = days
    if half_life is not None:
        weigh = [
            (receipt, factor(window.last - day, half_life), f"{plan.scratch}/run-decayed-{i:06d}")
            for i, (day, receipt) in enumerate(zip(folders, days, strict=True))
        ]
        weighed = graph.layer("weigh", _weighed, weigh, receipts=receipts_in(plan.scratch))
    return graph.task("total", _total, tuple(folders), days, weighed, min_labelled, plan)


def sort_window(window: Window, plan: SortPlan, executor: Executor) -> RunReceipt:
    """As `sort_log`, of a window's rows.

    Raises
    ------
    InputRejectedError
        Unusable rows beyond what the rules allow; no usable row.
    """
    graph = Graph()
    make_days(window, plan)
    found: RunReceipt = executor.compute(graph, add_window(graph, window, plan))
    gather_bad(window, plan)
    return found


def make_days(window: Window, plan: SortPlan) -> None:
    """Make the days' folders, which tasks write to."""
    for day in _files(window):
        Folder.at(_folder(plan, day)).make()


def gather_bad(window: Window, plan: SortPlan) -> None:
    """Move the bad rows that a window's days have kept to where a log's are."""
    scratch = Folder.at(plan.scratch)
    for day in _files(window):
        folder = Folder.at(_folder(plan, day))
        for part in folder.matching(BAD_PARTS):
            scratch.link(folder, part, f"{part.removesuffix('.parquet')}-{day_of(day)}.parquet")


def _files(window: Window) -> dict[int, frozenset[FileId]]:
    """The files that hold rows of each day, of the days that have any."""
    files = {
        day: frozenset((file.path, file.size, file.stamp) for file, _ in window.groups(day))
        for day in window.days
    }
    return {day: own for day, own in files.items() if own}


def _folder(plan: SortPlan, day: int) -> str:
    return f"{plan.scratch}/day-{day_of(day)}"


def _weighed(receipt: RunReceipt, weight: float, path: str) -> RunReceipt:
    """A day's rows, weighed down by age."""
    return replace(receipt, runs=weigh_runs(tuple(receipt.runs), None, weight, path, None))


def _total(
    numbers: tuple[int, ...],
    days: list[RunReceipt],
    weighed: list[RunReceipt],
    min_labelled: float,
    plan: SortPlan,
) -> RunReceipt:
    tables = [
        DayTable(day, str(i), receipt.rows, Kept(frozenset(), receipt, None))
        for i, (day, receipt) in enumerate(zip(numbers, days, strict=True))
    ]
    enough, _ = covered(tables, min_labelled)
    total = add_up([weighed[int(table.name)] for table in enough])
    check_window(total, plan)
    return total
