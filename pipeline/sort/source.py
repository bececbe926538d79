"""Sources: the rows that a job sorts, of a whole log or of a window's days, and the tasks that sort them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from logcal.errors import InputRejectedError, LabelsWaitingError, examples
from pipeline.execution import Executor, Graph
from pipeline.files.folders import Folder
from pipeline.log import quarantine
from pipeline.log.label_counts import all_counted, sum_labels
from pipeline.log.logs import Log
from pipeline.log.quarantine import BAD_PARTS
from pipeline.log.windows import Window, day_of, window_days
from pipeline.sort.day_profiles import Profile, profile_day, weigh_day, with_weights
from pipeline.sort.day_tables import DayTable, DayTables, add_scratch_days, itself
from pipeline.sort.run_files import most_bytes
from pipeline.sort.run_merging import add_regrouping
from pipeline.sort.runs import RunReceipt
from pipeline.sort.score_table import SortedRows, SortPlan, add_sort, add_up, scratch_bytes
from pipeline.sort.suspect_days import EVERY_DAY, USE, DayRule, Finding, in_words, suspects
from pipeline.table.journal import EXCLUDE, INCLUDE, Decision


class Days(NamedTuple):
    """The day tables of a window.

    tables : all of them, by day. used : those that are fitted to. thin : days whose labels are not known well enough
    set_aside : findings on strange days. drift : on strange days that are used, since another is alike
    excluded, included : days that a person decided on, with the reasons
    spread : how much days vary, see `suspects`
    """

    tables: tuple[DayTable, ...] = ()
    used: tuple[DayTable, ...] = ()
    thin: tuple[dict[str, Any], ...] = ()
    set_aside: tuple[Finding, ...] = ()
    drift: tuple[Finding, ...] = ()
    excluded: tuple[dict[str, str], ...] = ()
    included: tuple[dict[str, str], ...] = ()
    spread: float | None = None


class Sorted(NamedTuple):
    """A source's rows as runs, and a window's day tables; or references to them."""

    total: Any
    days: Any = Days()


@dataclass(frozen=True)
class Source:
    """Rows that are sorted.

    Attributes
    ----------
    log : their log. window : which of its days; None: all of it.
    kept : the day tables of a published table; None: nothing of the days is kept.
    half_life : in days, after which a row counts half; None: all count the same.
    rule : which days are used.
    tables : of the window, where they are known. only : days of the window; None: all.
    """

    log: Log
    window: Window | None = None
    kept: DayTables | None = None
    half_life: int | None = None
    rule: DayRule = EVERY_DAY
    tables: Sequence[DayTable] | None = None
    only: frozenset[int] | None = None

    @property
    def sorted_log(self) -> Log:
        """The log as its runs are: with a half-life, their rows have weights."""
        return self.log if self.half_life is None else with_weights(self.log)

    def scratch_bytes(self, *, write: bool) -> int:
        """Scratch space that sorting needs at most; see `score_table.scratch_bytes`."""
        needed = scratch_bytes(self.log, write=write)
        if self.kept is not None:  # whose runs are not in scratch
            needed -= scratch_bytes(self.log, write=False)
        if self.half_life is not None:
            needed += most_bytes(self.log.rows, weighted=True, segmented=bool(self.log.columns.segments))
        return needed

    def add(self, graph: Graph, plan: SortPlan) -> Sorted:
        """Add what sorts the rows to a graph; return references.

        Of a log `sort-i -> check`. Of a window `sort-i -> days-k -> profile-k -> choose -> total`; with a half-life
        `weigh-k` follows on the days.
        """
        if self.window is None:
            return Sorted(add_sort(graph, self.log, plan))
        days_folder = plan.scratch
        if self.tables is not None:
            day_tables = graph.layer("there", itself, [(table,) for table in self.tables], shown=False)
        elif self.kept is None:
            day_tables = add_scratch_days(graph, self.window, plan, self.only)
        else:
            days_folder, day_tables = str(self.kept.folder), self.kept.add(graph, self.window, plan)
        profiles: list[Any] = []
        if self.rule.suspect != USE:
            profiles = graph.layer(
                "profile", profile_day, [(days_folder, table) for table in day_tables], shown=False
            )
        if self.half_life is not None:
            how = (self.window.last, self.half_life)
            tasks = [
                (table, *how, f"{plan.scratch}/run-decayed-{i:06d}") for i, table in enumerate(day_tables)
            ]
            day_tables = graph.layer("weigh", weigh_day, tasks)
        days = graph.task("choose", choose_days, day_tables, profiles, self.rule)
        outcomes = self.log.columns.outcomes
        if self.tables is not None:  # they have been checked all together
            plan = replace(plan, rules=replace(plan.rules, matched=False))
        total = graph.task("total", _total, days, plan, days_folder, outcomes)
        rows = SortedRows(self.sorted_log, plan, total)
        most_runs = len(day_tables) + -(-self.log.rows // plan.run_rows)
        return Sorted(add_regrouping(graph, total, most_runs, rows.most_parts, plan.scratch), days)

    def sort(self, plan: SortPlan, executor: Executor) -> Sorted:
        """Sort the rows.

        Raises
        ------
        InputRejectedError
            Unusable rows beyond what the rules allow; no usable row.
        """
        graph = Graph()
        found: Sorted = executor.compute(graph, graph.task("sorted", Sorted, *self.add(graph, plan)))
        return found

    def planned(self) -> dict[str, Any]:
        """Describe the window of a fit that keeps days, for a dry run."""
        assert self.window is not None
        assert self.kept is not None
        covers = self.kept.covers(self.window)
        return {
            **window_days(self.window),
            "days_to_sort": sum(bool(cover.missing) for cover in covers.values()),
            "days_without_files": len(self.window.days) - len(covers),
        }


def window_facts(source: Source, days: Days) -> dict[str, Any]:
    """Describe a window for the manifest."""
    window = source.window
    assert window is not None
    by_day: dict[int, list[DayTable]] = {}
    for table in days.tables:
        by_day.setdefault(table.day, []).append(table)
    filled = {day: parts for day, parts in by_day.items() if any(table.receipt.rows for table in parts)}
    new = [day for day, parts in filled.items() if any(table.rows_sorted for table in parts)]
    found: dict[str, Sequence[Any]] = {
        "days_set_aside": [finding.as_dict() for finding in days.set_aside],
        "days_unlabelled": days.thin,
        "days_excluded": days.excluded,
    }
    reasons = {own["day"]: name.removeprefix("days_") for name, left_out in found.items() for own in left_out}
    each, rows = [], dict[str, list[int]]()
    for number, parts in filled.items():
        day = day_of(number).isoformat()
        read, usable = (sum(getattr(table.receipt, name) for table in parts) for name in ("rows", "used"))
        if day in reasons:
            rows.setdefault(reasons[day], []).append(read)
        each.append(
            {
                "day": day,
                "tables": [table.content for table in parts],
                "files": sum(len(table.kept.files) for table in parts),
                "rows_read": read,
                "rows_usable": usable,
                "rows_used": 0 if day in reasons else usable,
                "sorted_now": number in new,
                **_labels(parts),
            }
        )
    found |= {"days_of_drift": [finding.as_dict() for finding in days.drift], "days_included": days.included}
    facts = {
        **window_days(window),
        "days_sorted": len(new),
        "days_reused": len(filled) - len(new),
        "days_missing": [day_of(day).isoformat() for day in window.days if day not in filled],
        "rows_sorted": sum(table.rows_sorted for table in days.tables),
        "left_out": {name: {"days": len(own), "rows": sum(own)} for name, own in sorted(rows.items())},
        "days": each,
        **{name: list(own) for name, own in found.items() if own},
    }
    if source.half_life is not None:
        facts["half_life"] = source.half_life
    return facts


def _labels(tables: Sequence[DayTable]) -> dict[str, Any]:
    """Facts for the manifest about a day's joined labels."""
    counts = sum_labels([table.receipt.labels for table in tables])
    return {} if counts is None else {"labels": counts.facts()}


def choose_days(tables: list[DayTable], profiles: list[Profile], rule: DayRule) -> Days:
    """Choose the days of a window that are used.

    Parameters
    ----------
    tables : of a window
    profiles : of each; none with a rule that sets no strange days aside

    Raises
    ------
    InputRejectedError
        A day is strange and the rule refuses that; no day is left.

    Notes
    -----
    Days with too few labels are left out since positives and negatives become known at different speeds: what is known
    of a day early is biased.
    """
    rows: dict[int, int] = {}
    waiting: dict[int, int] = {}
    for table in tables:
        receipt = table.receipt
        rows[table.day] = rows.get(table.day, 0) + receipt.rows
        waiting[table.day] = waiting.get(table.day, 0) + receipt.waiting
    thin = {day for day, count in rows.items() if count and waiting[day] > (1 - rule.min_labelled) * count}
    excluded, included = rule.decided(tables, EXCLUDE), rule.decided(tables, INCLUDE)
    order = sorted(range(len(tables)), key=lambda i: (tables[i].day, tables[i].name))
    every = [tables[i] for i in order]
    left_in = [i for i in order if tables[i].day not in thin and tables[i].day not in excluded]
    findings, spread = suspects(
        [tables[i] for i in left_in], [profiles[i] for i in left_in if profiles], rule
    )
    found = [finding for finding in findings if not finding.drift]
    strange = {finding.day for finding in found}
    used = tuple(tables[i] for i in left_in if tables[i].day not in strange)
    if (found or excluded) and not any(table.receipt.used for table in used):
        raise InputRejectedError(
            "window: expected days to fit to, found that all are set aside or excluded; decide with `logcal days`"
            f"{': ' * bool(found)}{in_words(found)}"
        )
    return Days(
        tuple(every),
        used,
        tuple(
            {"day": day_of(day).isoformat(), "rows": rows[day], "rows_waiting": waiting[day]}
            for day in sorted(thin)
        ),
        tuple(found),
        tuple(finding for finding in findings if finding.drift),
        _said(excluded),
        _said(included),
        spread,
    )


def _said(decided: dict[int, Decision]) -> tuple[dict[str, str], ...]:
    return tuple(
        {"day": day_of(day).isoformat(), "reason": own.reason} for day, own in sorted(decided.items())
    )


def _too_thin(days: Days) -> str:
    """List the labelled share of each day, if that of some day is too small."""
    if not days.thin:
        return ""
    shares = [f"{day['day']} has {1 - day['rows_waiting'] / day['rows']:.0%}" for day in days.thin]
    return f"; of days with too few labels (window.min_labelled) {examples(shares)}"


def _total(days: Days, plan: SortPlan, place: str, outcomes: int) -> RunReceipt:
    """All days' runs as one sort's; their bad rows, where they are kept, are put where a sort leaves them.

    place : the folder of the tables' folders. outcomes : see `all_counted`

    Raises
    ------
    InputRejectedError
        Unusable rows beyond what the rules allow; no usable row.
    """
    total = add_up([table.receipt for table in days.used])
    quarantine.check(total.bad, total.rows, plan.rules)
    total.labels = all_counted(total.labels, outcomes, matched=plan.rules.matched)
    if total.used == 0:
        raise (LabelsWaitingError if total.waiting else InputRejectedError)(
            f"window: expected usable rows, found none among {total.rows:,}"
            f"{quarantine.waiting(total.waiting)}{_too_thin(days)}: set window.until or window.last"
        )
    if plan.rules.keep:
        scratch, count = Folder.at(plan.scratch), 0
        for table in days.tables:
            folder = Folder.at(f"{place}/{table.name}")
            for part in folder.matching(BAD_PARTS):
                scratch.link(folder, part, f"bad-{count:06d}.parquet")
                count += 1
    return total
