"""Sources: the rows that a job sorts, from a whole log or from a window's days, and the tasks that sort them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from logcal.errors import InputRejectedError, LabelsWaitingError, examples
from pipeline.days.day_profiles import Profile, profile_day, weigh_day, with_weights
from pipeline.days.day_tables import DayTable, DayTables, add_scratch_days, pass_table, tables_by_day
from pipeline.days.suspect_days import EVERY_DAY, USE, DayRule, Finding, find_suspect_days, findings_text
from pipeline.execution import Executor, Graph
from pipeline.files.folders import Folder
from pipeline.log import quarantine
from pipeline.log.label_counts import complete_counts
from pipeline.log.logs import Log
from pipeline.log.quarantine import BAD_PARTS
from pipeline.log.windows import Window, day_of, window_days
from pipeline.sort.run_files import most_bytes
from pipeline.sort.run_merging import add_regrouping
from pipeline.sort.runs import RunReceipt
from pipeline.sort.score_table import SortedRows, SortPlan, add_sort, add_up, scratch_bytes
from pipeline.table.journal import EXCLUDE, INCLUDE


class Days(NamedTuple):
    """Day tables of a window, and the decisions on its days.

    tables : all tables, by day. used : tables that the fit uses
    set_aside : findings on suspect days. drift : findings on suspect days that are used, since another day is alike
    left_out : other days that are left out, by reason: 'unlabelled' (too few labels are known), 'excluded' (by a
        person), 'damaged' (too many unusable rows)
    included : days that a person included
    spread : variation between days, see `find_suspect_days`
    """

    tables: tuple[DayTable, ...] = ()
    used: tuple[DayTable, ...] = ()
    set_aside: tuple[Finding, ...] = ()
    drift: tuple[Finding, ...] = ()
    left_out: Mapping[str, list[dict[str, Any]]] = {}
    included: Sequence[dict[str, Any]] = ()
    spread: float | None = None


class Sorted(NamedTuple):
    """Receipt of a source's runs, and a window's days; or references to them."""

    total: Any
    days: Any = Days()


@dataclass(frozen=True)
class Source:
    """Rows to sort.

    Attributes
    ----------
    log : log with the rows. window : days to sort; None: the whole log
    day_tables : day tables of a published table; None: days are sorted into scratch space
    half_life : days after which a row counts half; None: all rows count the same
    rule : rule for the days to use
    tables : the window's day tables, if they exist. only : days of the window to sort; None: all
    """

    log: Log
    window: Window | None = None
    day_tables: DayTables | None = None
    half_life: int | None = None
    rule: DayRule = EVERY_DAY
    tables: Sequence[DayTable] | None = None
    only: frozenset[int] | None = None

    @property
    def sorted_log(self) -> Log:
        """The log as described by its runs: with a half-life, rows have weights."""
        return self.log if self.half_life is None else with_weights(self.log)

    def scratch_bytes(self, *, write: bool) -> int:
        """Return an upper bound of the scratch space for sorting; see `score_table.scratch_bytes`."""
        needed = scratch_bytes(self.log, write=write)
        if self.day_tables is not None:  # day tables' runs are not in scratch
            needed -= scratch_bytes(self.log, write=False)
        if self.half_life is not None:
            needed += most_bytes(self.log.rows, weighted=True, segmented=bool(self.log.columns.segments))
        return needed

    def add(self, graph: Graph, plan: SortPlan) -> Sorted:
        """Add the tasks that sort the rows; return references.

        For a log: `sort-i -> check`. For a window: `sort-i -> days-k -> profile-k -> choose -> total`; with a half-life
        `weigh-k` follows the days.
        """
        if self.window is None:
            return Sorted(add_sort(graph, self.log, plan))
        days_folder = plan.scratch
        if self.tables is not None:
            tables = graph.layer("there", pass_table, [(table,) for table in self.tables], shown=False)
        elif self.day_tables is None:
            tables = add_scratch_days(graph, self.window, plan, self.only)
        else:
            days_folder, tables = str(self.day_tables.folder), self.day_tables.add(graph, self.window, plan)
        profiles: list[Any] = []
        if self.rule.suspect != USE:
            pairs = [(days_folder, table) for table in tables]
            profiles = graph.layer("profile", profile_day, pairs, shown=False)
        if self.half_life is not None:
            decay = (self.window.last, self.half_life)
            tasks = [(table, *decay, f"{plan.scratch}/run-decayed-{i:06d}") for i, table in enumerate(tables)]
            tables = graph.layer("weigh", weigh_day, tasks)
        days = graph.task("choose", choose_days, tables, profiles, self.rule)
        outcomes = self.log.columns.outcomes
        if self.tables is not None:  # outcomes were checked for all days together
            plan = replace(plan, rules=replace(plan.rules, matched=False))
        total = graph.task("total", _total, days, plan, days_folder, outcomes)
        rows = SortedRows(self.sorted_log, plan, total)
        most_runs = len(tables) + -(-self.log.rows // plan.run_rows)
        return Sorted(add_regrouping(graph, total, most_runs, rows.most_parts, plan.scratch), days)

    def sort(self, plan: SortPlan, executor: Executor) -> Sorted:
        """Sort the rows.

        Raises
        ------
        InputRejectedError
            There are more unusable rows than the rules allow, or no usable row.
        """
        graph = Graph()
        result: Sorted = executor.compute(graph, graph.task("sorted", Sorted, *self.add(graph, plan)))
        return result

    def planned(self) -> dict[str, Any]:
        """Describe the window of a fit that keeps days, for a dry run."""
        assert self.window is not None
        assert self.day_tables is not None
        covers = self.day_tables.covers(self.window)
        return {
            **window_days(self.window),
            "days_to_sort": sum(bool(cover.missing) for cover in covers.values()),
            "days_without_files": len(self.window.days) - len(covers),
        }


def window_facts(source: Source, days: Days) -> dict[str, Any]:
    """Describe a window for the manifest."""
    window = source.window
    assert window is not None
    filled = {
        day: parts
        for day, parts in tables_by_day(days.tables).items()
        if any(table.receipt.rows for table in parts)
    }
    new = [day for day, parts in filled.items() if any(table.rows_sorted for table in parts)]
    listed: dict[str, Sequence[Any]] = {
        "days_set_aside": [finding.as_dict() for finding in days.set_aside],
        **{f"days_{reason}": entries for reason, entries in days.left_out.items()},
    }
    reasons = {
        entry["day"]: key.removeprefix("days_") for key, entries in listed.items() for entry in entries
    }
    day_facts, left_out = [], dict[str, list[int]]()
    for number, parts in filled.items():
        day, total = _date(number), add_up([table.receipt for table in parts])
        if day in reasons:
            left_out.setdefault(reasons[day], []).append(total.rows)
        day_facts.append(
            {
                "day": day,
                "tables": [table.content for table in parts],
                "files": sum(len(table.stored.files) for table in parts),
                "rows_read": total.rows,
                "rows_usable": total.used,
                "rows_used": 0 if day in reasons else total.used,
                "sorted_now": number in new,
                **({} if total.labels is None else {"labels": total.labels.facts()}),
            }
        )
    closed = window.closed
    for kind in {entry.kind for entry in closed}:
        unopened = [
            {"day": _date(entry.day), "reason": entry.reason} for entry in closed if entry.kind == kind
        ]
        both = [*listed.get(f"days_{kind}", ()), *unopened]
        listed[f"days_{kind}"] = sorted(both, key=lambda entry: str(entry["day"]))
        left_out.setdefault(kind, []).extend(0 for _ in unopened)  # the rows of unopened files are not known
    day_facts += [{"day": _date(entry.day), **_UNOPENED} for entry in closed]
    known = {*filled, *(entry.day for entry in closed)}
    listed |= {"days_of_drift": [finding.as_dict() for finding in days.drift], "days_included": days.included}
    facts = {
        **window_days(window),
        "days_sorted": len(new),
        "days_reused": len(filled) - len(new),
        "days_missing": [_date(day) for day in window.days if day not in known],
        "rows_sorted": sum(table.rows_sorted for table in days.tables),
        "left_out": {name: {"days": len(n), "rows": sum(n)} for name, n in sorted(left_out.items())},
        "days": sorted(day_facts, key=lambda entry: str(entry["day"])),
        **{name: list(entries) for name, entries in listed.items() if entries},
    }
    if source.half_life is not None:
        facts["half_life"] = source.half_life
    return facts


_UNOPENED = {"tables": [], "files": 0, "rows_read": 0, "rows_usable": 0, "rows_used": 0, "sorted_now": False}
"""Facts of a day whose files were not opened."""


def _date(day: int) -> str:
    return day_of(day).isoformat()


def choose_days(tables: list[DayTable], profiles: list[Profile], rule: DayRule) -> Days:
    """Choose the days of a window to use.

    Parameters
    ----------
    tables : day tables of a window
    profiles : profile of each table; empty if the rule ignores suspect days

    Raises
    ------
    InputRejectedError
        A day is suspect and the rule is to refuse; no day is left.

    Notes
    -----
    Days with too few labels are left out, since positives and negatives become known at different speeds: early
    labels are biased.
    """
    by_day = tables_by_day(tables)
    totals = {day: add_up([table.receipt for table in parts]) for day, parts in by_day.items()}
    thin = [
        {"day": _date(day), "rows": total.rows, "rows_waiting": total.waiting}
        for day, total in totals.items()
        if total.rows and total.waiting > (1 - rule.min_labelled) * total.rows
    ]
    excluded, included = rule.decided(tables, EXCLUDE), rule.decided(tables, INCLUDE)
    damaged = {} if rule.rows is None else _damaged(totals, rule.rows)
    left_out = {"unlabelled": thin, "excluded": _reasons(excluded), "damaged": _reasons(damaged)}
    gone = {entry["day"] for entries in left_out.values() for entry in entries}
    by_name = dict(zip((table.name for table in tables), profiles, strict=bool(profiles)))
    ordered = [table for parts in by_day.values() for table in parts]
    candidates = [table for table in ordered if _date(table.day) not in gone]
    findings, spread = find_suspect_days(
        {day: total for day, total in totals.items() if _date(day) not in gone}, candidates, by_name, rule
    )
    suspect = [finding for finding in findings if not finding.drift]
    suspect_days = {finding.day for finding in suspect}
    used = tuple(table for table in candidates if table.day not in suspect_days)
    if (suspect or excluded or damaged) and not any(table.receipt.used for table in used):
        raise InputRejectedError(
            "window: expected days to fit to, found that all are set aside or excluded; decide with `logcal days`"
            f"{': ' * bool(suspect)}{findings_text(suspect)}{''.join(f'. {text}' for text in damaged.values())}"
        )
    drift = tuple(finding for finding in findings if finding.drift)
    return Days(tuple(ordered), used, tuple(suspect), drift, left_out, _reasons(included), spread)


def _damaged(totals: Mapping[int, RunReceipt], rules: quarantine.RowRules) -> dict[int, str]:
    """Return the days that have more unusable rows than the rules allow, with the message."""
    damaged = {}
    for day, total in totals.items():
        try:
            quarantine.check(total.bad, total.rows, rules)
        except InputRejectedError as error:
            damaged[day] = str(error)
    return damaged


def _reasons(days: Mapping[int, str]) -> list[dict[str, Any]]:
    return [{"day": _date(day), "reason": reason} for day, reason in sorted(days.items())]


def _unlabelled_days(days: Days) -> str:
    """List the labelled share of each day with too few labels, for a message."""
    thin = days.left_out["unlabelled"]
    if not thin:
        return ""
    shares = [f"{day['day']} has {1 - day['rows_waiting'] / day['rows']:.0%}" for day in thin]
    return f"; of days with too few labels ($[min_labelled]) {examples(shares)}"


def _total(days: Days, plan: SortPlan, days_folder: str, outcomes: int) -> RunReceipt:
    """Add up and check the receipts of the used days; link their unusable rows into the scratch folder, if kept.

    days_folder : folder of the tables' folders. outcomes : see `complete_counts`

    Raises
    ------
    InputRejectedError
        There are more unusable rows than the rules allow, or no usable row.
    """
    total = add_up([table.receipt for table in days.used])
    quarantine.check(total.bad, total.rows, plan.rules)
    total.labels = complete_counts(total.labels, outcomes, matched=plan.rules.matched)
    if total.used == 0:
        raise (LabelsWaitingError if total.waiting else InputRejectedError)(
            f"window: expected usable rows, found none among {total.rows:,}"
            f"{quarantine.waiting(total.waiting)}{_unlabelled_days(days)}: set $[until] or $[last]"
        )
    if plan.rules.keep:
        scratch, count = Folder.at(plan.scratch), 0
        for table in days.tables:
            folder = Folder.at(f"{days_folder}/{table.name}")
            for part in folder.matching(BAD_PARTS):
                scratch.link(folder, part, f"bad-{count:06d}.parquet")
                count += 1
    return total
