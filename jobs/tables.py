"""Commands for published tables: list, show, compare, promote, roll back and prune versions; exclude days of fits."""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.config.naming import in_keys
from jobs.outcome import Outcome
from jobs.records import RUNS
from jobs.run import in_settings_of
from logcal.errors import ConfigError, InputRejectedError, TemporaryError, counted
from logcal.storage import open_filesystem
from pipeline.files.faults import as_fault
from pipeline.files.folders import Folder
from pipeline.files.storage import use
from pipeline.table.journal import FILE, Decision, Entry, decide, read_decisions, trail
from pipeline.table.published import (
    CURRENT,
    PublishedTable,
    Status,
    Version,
    days_fitted,
    describe_suspect_days,
    same_table,
    status_of,
)
from pipeline.table.store import TableStore

if TYPE_CHECKING:
    from jobs.config.jobs import DaysConfig

# The commands import the rest where they use it: `tables list` is often called, and takes as long as its imports.

log = logging.getLogger("logcal")

_LAPSED = " (no longer: the day's files changed)"
"""End of a line about a decision that applies to files of before."""
_SHOWN = (
    "table", "version", "created", "method", "parameters", "monotone", "lookup_rows", "score_transform",
    "fingerprint", "run_id", "previous_version", "seconds",
)  # fmt: skip


def resolve_table(
    files: Sequence[str], store: str | None, table: str | None, *, required: bool = True
) -> tuple[str, str | None]:
    """Return a command's store and table, from its options or a job's configuration; apply its storage options.

    required : whether the command needs a table

    Raises
    ------
    ConfigError
        The store or a required table is not given, or the configuration is wrong.
    """
    from jobs.config.jobs import TableConfig
    from jobs.config.loading import load_values, read_values

    values = read_values(files, ())
    for key, value in (("path", store), ("table", table)):
        if value is not None:
            values.put(("store", key), value, {})
    options = {"path": "--store PATH", **({"table": "--table NAME"} if required else {})}
    missing = [key for key in options if values.get(("store", key)) is None]
    if missing:
        raise ConfigError(
            f"expected {' and '.join(options[key] for key in missing)}, or --config FILE with "
            f"{' and '.join(f'store.{key}' for key in missing)}, found neither"
        )
    if not files:
        return str(store), table
    named_table = values.get(("store", "table"))
    if named_table is None:
        values.put(("store", "table"), "any", {})
    config = load_values(TableConfig, values)
    use(config.storage.options)
    return config.store.path, named_table


def list_tables(store: str) -> Outcome:
    """List the tables of a store with their current versions."""
    filesystem, root = open_filesystem(store, "--store")
    rows, lines = [], []
    for name in Folder.of(filesystem, root).names():
        try:
            table = PublishedTable(store, name)
        except ConfigError:
            continue
        count, current = len(table.names()), table.readable_current()
        if not count and current is None:
            continue
        since = current and table.journal.went_live(current)
        rows.append({"table": name, "current": current, "since": since, "versions": count})
        lines.append(f"{name}  {current or 'no current version'}  {since or ''}  {counted(count, 'version')}")
    if not rows:
        raise InputRejectedError(f"expected published tables, found none in {store}: see `logcal fit`")
    return Outcome({"store": store, "tables": rows}, lines)


def list_versions(store: str, table: str | None) -> Outcome:
    """List the versions of a table, oldest first, with the current one marked; without a table, all tables."""
    if table is None:
        return list_tables(store)
    published = PublishedTable(store, table)
    versions = published.versions()
    current = published.readable_current()
    _check_exists(published, table, versions or current is not None)
    entries = published.journal.entries()
    since = current and published.journal.went_live(current)
    rows = [_row(version, current, since, entries) for version in versions]
    lines = [_line(row) for row in rows]
    if all(not row["current"] for row in rows):
        lines.append(_without_current(rows, current, entries))
    return Outcome({"table": table, "current": current, "since": since, "versions": rows}, lines)


def _check_exists(published: PublishedTable, table: str, content: object) -> None:
    """Raise InputRejectedError for a table without content, such as versions."""
    if not content:
        expected = f"expected a published table '{table}', found none in {published.url}"
        raise InputRejectedError(f"{expected}: see `logcal fit`")


def _without_current(rows: list[dict[str, Any]], current: str | None, entries: list[Entry]) -> str:
    """Return a line of advice for a table without a live version."""
    if current is None and not trail(entries, [row["version"] for row in rows], None):
        return (
            "no version has been live yet: run `logcal fit` again once the log is mended, or make one live with "
            f"`logcal tables promote {rows[-1]['version']}`"
        )
    trouble = "is not there" if current is None else "names no version that is there"
    return f"{CURRENT} {trouble}: use `logcal tables rollback`"


def _row(version: Version, current: str | None, since: str | None, entries: list[Entry]) -> dict[str, Any]:
    manifest = version.manifest
    status = status_of(version, entries, current)
    return {
        "version": version.name,
        "current": version.name == current,
        "since": since if version.name == current else None,
        "status": status.value,
        "created": manifest["created"],
        "method": manifest["method"],
        "window": _window(manifest) if manifest.get("window") else None,
        "rows_used": manifest["data"]["rows_used"],
        "lookup_rows": manifest["lookup_rows"],
        "gate": manifest.get("gate"),
        "fingerprint": manifest["fingerprint"],
    }


def _window(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a version's window, and as text how many of its days were not used: left out, or without labels."""
    window, days = manifest["window"], days_fitted(manifest)
    text = f"{window['first']} to {window['last']}"
    if out := len(window["days"]) - len(days):
        text += f" without {counted(out, 'day')}"
        text += f" (last day fitted to: {days[-1]})" if days and days[-1] != str(window["last"]) else ""
    return {**{key: window.get(key) for key in ("first", "last", "left_out")}, "summary": text}


def _line(row: dict[str, Any]) -> str:
    gate = row["gate"] or {}
    parts = [
        f"{'*' if row['current'] else ' '} {row['version']}",
        row["created"],
        row["method"],
        f"{row['rows_used']:,} rows",
        *([row["window"]["summary"]] if row["window"] else []),
        f"{row['lookup_rows']:,} lookup rows",
    ]
    if gate.get("auc") is not None:
        parts.append(f"AUC {gate['auc']:.3f}")
    if (loss := (gate.get("holdout") or {}).get("log_loss")) is not None:
        parts.append(f"log loss {float(loss):.4f} held out")  # infinity is text in JSON
    if row["current"]:
        parts.append(f"current since {row['since']}" if row["since"] else "current")
    elif row["status"] != Status.REPLACED.value:
        failed = gate.get("failed")
        parts.append(f"{row['status']} ({', '.join(failed)})" if failed else row["status"])
    return "  ".join(parts)


def show(store: str, table: str, name: str | None) -> Outcome:
    """Show a version: its manifest as JSON, its main facts as lines."""
    from jobs.fit_outcome import segments_line
    from jobs.gate.agreement import agreement_lines, fall_lines

    published = PublishedTable(store, table)
    version = published.version(name)
    manifest = version.manifest
    current = published.readable_current()
    status = status_of(version, published.journal.entries(), current)
    since = published.journal.went_live(version.name) if status is Status.CURRENT else None
    lines = [*_fact_lines("", {key: manifest[key] for key in _SHOWN})]
    lines.insert(2, f"status: {status.value}{f' since {since}' if since else ''}")
    lines += _fact_lines("", manifest["data"])
    lines += [f"window: {_window(manifest)['summary']}"] if manifest.get("window") else []
    lines += [f"day {day}" for day in describe_suspect_days(version)]
    lines += [segments_line(manifest["segments"])] if manifest.get("segments") else []
    lines += agreement_lines(manifest.get("agreement")) + fall_lines(manifest)
    lines += _fact_lines("gate", manifest.get("gate") or {})
    lines += [f"refused: {refusal['message']}" for refusal in version.refusals]
    lines += [f"lookup table: {version.lookup_path}"]
    return Outcome(summary={**manifest, "status": status.value, "since": since}, lines=lines)


def _fact_lines(name: str, value: Any) -> Iterator[str]:
    """Yield a line for each value in nested facts, named by its keys."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _fact_lines(f"{name}, {key}".lstrip(", "), item)
    elif value is not None:
        yield f"{name}: {', '.join(map(str, value)) or 'none' if isinstance(value, list) else value}"


def history(store: str, table: str) -> Outcome:
    """List the run records of a table, oldest first."""
    from pipeline.files.records import read_records

    folder = f"{store.rstrip('/')}/{table}/{RUNS}"
    records, damaged = read_records(folder)
    lines = [_history_line(record) for record in records] or [f"no run records in {folder}"]
    if damaged:
        lines.append(f"{counted(damaged, 'file')} in {folder} cannot be read")
    return Outcome(summary={"table": table, "runs": records, "damaged": damaged}, lines=lines)


def sql(
    store: str,
    table: str,
    name: str | None,
    dialect: str,
    inline: bool,
    max_error: float | None,
    log: str,
    score: str | None,
) -> Outcome:
    """Return the SQL query that applies a version. score : None for the score column of its fit."""
    from logcal.reading import read_table
    from pipeline.table.sql import DIALECTS, MAX_ERROR, query

    if max_error is not None and not inline:
        raise ConfigError("--max-error: give --inline, too: other queries read the whole table")
    version = TableStore(store, table).version(name)
    if score is None:
        score = str(version.manifest["config"]["log"].get("score", "score"))
    path = version.lookup_path
    lookup = read_table(path)
    path = path if "://" in path else str(Path(path).absolute())
    max_error = MAX_ERROR if max_error is None else max_error
    text = query(lookup, path, dialect, inline=inline, max_error=max_error, log=log, score=score)
    _warn_of_length(len(text.encode()), dialect, DIALECTS[dialect].most_bytes)
    summary = {"table": table, "version": version.name, "dialect": dialect, "sql": text}
    return Outcome(summary=summary, lines=[f"{text};"])


def _warn_of_length(size: int, dialect: str, most: int | None) -> None:
    """Warn of a query that an engine does not take."""
    if most is not None and size > most:
        log.warning(
            "the query has %s bytes, and %s takes %s unless it is set up for more: give a larger --max-error, or fit "
            "with a larger calibrator.params.max_error",
            *(f"{size:,}", dialect, f"{most:,}"),
        )


def _history_line(record: dict[str, Any]) -> str:
    rows, measures = record.get("rows", {}), record.get("measures", {})
    parts = [record["start"][:19], f"{record['job']:15}", f"exit {record['exit_code']}"]
    parts.append(f"{record.get('seconds', 0):.1f} s")
    parts += [f"version {record['version']}"] if record.get("version") else []
    used = rows.get("rows_used", rows.get("rows"))
    parts += [f"{used:,} rows"] if used is not None else []
    if isinstance(measures.get("ece_frequency"), float):
        parts.append(f"ECE {measures['ece_frequency']:.4f}")
    if record.get("message"):
        parts.append(f"({textwrap.shorten(record['message'], 200, placeholder=' …')})")
    return "  ".join(parts)


def rollback(store: str, table: str, name: str | None) -> Outcome:
    """Point CURRENT to the named version, or to the one that was current before."""
    return _change_of_current(table, *TableStore(store, table).rollback(name))


def promote(store: str, table: str, name: str) -> Outcome:
    """Point CURRENT to the named version, such as a candidate."""
    return _change_of_current(table, *TableStore(store, table).promote(name))


def _change_of_current(table: str, before: str | None, version: Version) -> Outcome:
    summary = {"table": table, "previous_version": before, "version": version.name}
    former = f"; it was {before}" if before else ""
    lines = [f"{table}: the live version is {version.name}{former}"]
    if before and before != version.name and same_table(before, version.name):
        lines.append("both versions have the same table: probabilities stay as they were")
    return Outcome(summary=summary, lines=lines)


def prune(store: str, table: str, keep: int) -> Outcome:
    """Remove all versions but the newest, the current one, its predecessor, and those that streams need."""
    from pipeline.follow.ledger import needed_versions

    published = TableStore(store, table)
    _check_exists(published, table, published.names())
    removed = published.prune(keep, lambda: needed_versions(published.folder))
    versions = published.names()
    lines = [*(f"removed {name}" for name in removed), f"{table}: {counted(len(versions), 'version')} left"]
    return Outcome(summary={"table": table, "removed": removed, "versions": versions}, lines=lines)


def diff(store: str, table: str, old: str, new: str, report: str | None) -> Outcome:
    """Compare two versions, and draw a page if `report` is given."""
    from pipeline.evaluate.version_difference import percentage, render_difference, version_difference
    from pipeline.pages.figures import fact_text

    published = PublishedTable(store, table)
    difference = version_difference(published.version(old), published.version(new))
    lines = [f"{table}: {difference.old.name} and {difference.new.name}"]
    lines += [difference.headline, *difference.better]
    lines += [f"  {name}: {fact_text(a)} -> {fact_text(b)}" for name, (a, b) in difference.facts.items()]
    for key, rows, change in difference.segments:
        segment = ", ".join(f"{column}={value}" for column, value in key.items())
        mean, most = percentage(change.mean), percentage(change.largest)
        lines.append(f"  {segment}: {rows:,} rows, changes by {mean} points on average, {most} at most")
    summary = {"table": table, **difference.as_dict(), "page": report}
    if report is not None:
        write_file(report, in_keys(render_difference(difference, table)).encode(), "--report")
        lines.append(f"  {report}")
    return Outcome(summary=summary, lines=lines)


def write_file(output: str, data: bytes, option: str) -> None:
    """Write a file whole. option : the option that names it, for messages."""
    parent, _, name = output.rpartition("/")
    try:
        Folder.at(parent or ("/" if output.startswith("/") else ".")).write(name, data)
    except OSError as error:
        fault = as_fault(error, f"{option}: {output}")
        if isinstance(fault, TemporaryError):
            raise fault from None
        reason = error.strerror or error
        raise ConfigError(f"{option}: cannot write {output} ({reason}): choose another place") from None


# Days of a table's log that the user excludes from fits or includes.


def list_days(store: str, table: str, files: Sequence[str] = ()) -> Outcome:
    """List all days of a daily job's log with the state of each.

    Without its configuration: the days that users excluded or included, and those that the newest version's fit set
    aside.

    files : configuration of the daily job
    """
    from pipeline.days.day_files import digests_of_day

    published = PublishedTable(store, table)
    decisions = read_decisions(published.folder)
    days = published.folder / "days"
    # Whether a decision on a file holds, its log tells.
    holds = {
        day: day.startswith(FILE) or entry.holds(digests_of_day(days, day))
        for day, entry in decisions.items()
    }
    versions = published.versions()
    _check_exists(published, table, versions or decisions)
    window = versions[-1].manifest.get("window") if versions else None
    aside = (window or {}).get("days_set_aside", [])
    suspect = describe_suspect_days(versions[-1]) if versions else []
    lines = [
        f"{day}  {entry.decision}d on {entry.at}: {entry.reason}{'' if holds[day] else _LAPSED}"
        for day, entry in decisions.items()
    ]
    lines += [f"{day} (version {versions[-1].name})" for day in suspect]
    rows = [row | {"holds": holds[row["day"]]} for row in _as_rows(decisions)]
    summary = {"table": table, "decisions": rows, "set_aside": aside}
    config = _daily_config(files, store, table)
    if config is None:
        return Outcome(summary, lines or ["no day was excluded, included or set aside"])
    from jobs.day_list import listing
    from jobs.day_survey import survey

    found = in_settings_of(config, survey, config)
    all_days, day_lines = listing(found.states, found.log)
    return Outcome(summary | all_days, day_lines)


def _daily_config(files: Sequence[str], store: str, table: str) -> DaysConfig | None:
    """Return the configuration of the daily job on a table; None if the files are another job's, or there are none."""
    if not files:
        return None
    from jobs.config.jobs import DaysConfig
    from jobs.config.loading import load

    try:
        config = load(DaysConfig, files, [f"store.path={store}", f"store.table={table}"])
    except ConfigError as error:
        log.info(
            "only decisions are listed, since this is not the configuration of `logcal days run`: %s", error
        )
        return None
    return config


def day_or_file(day: str | None, file: str | None) -> str:
    """Return what a decision is on, of which one is given: see `decide_on`."""
    if (day is None) == (file is None):
        raise ConfigError("expected DAY or --file NAME, found both or neither")
    return f"{FILE}{file}" if day is None else day


def decide_on(
    store: str,
    table: str,
    day: str,
    decision: str | None,
    reason: str = "",
    files: Sequence[str] = (),
) -> Outcome:
    """Exclude or include a day, or a file of the log.

    day : the day, or FILE and the path of a file relative to the log
    decision : None removes an earlier decision, so that fits check the day again
    files : configuration of the daily job, which names the log; only for a file
    """
    if day.startswith(FILE):
        return _decide_on_file(store, table, day.removeprefix(FILE), decision, reason, files)
    from pipeline.days.day_files import digests_of_day
    from pipeline.days.records import DayRecords
    from pipeline.log.windows import parse_day

    parsed = parse_day(day)
    if parsed is None:
        raise ConfigError(f"DAY: expected a date such as 2026-01-31, found {day!r}")
    published = PublishedTable(store, table)
    _check_exists(published, table, published.folder.names())
    name = parsed.isoformat()
    digests = digests_of_day(published.folder / "days", name)
    # Files that no fit has sorted, such as damaged ones, are known from the day's records.
    digests |= {found[-1].files for found in DayRecords(published.folder).read().get(name, {}).values()} - {
        ""
    }
    decisions = decide(published.folder, name, decision, reason, digests)
    text = f"the next fit judges {name} itself" if decision is None else f"from now on fits {decision} {name}"
    text += "" if digests else " (no fit of this table has read rows of this day yet)"
    return Outcome({"table": table, "decisions": _as_rows(decisions)}, [text])


def _decide_on_file(
    store: str, table: str, name: str, decision: str | None, reason: str, files: Sequence[str]
) -> Outcome:
    from pipeline.days.day_files import file_digests
    from pipeline.log.log_files import find_files

    config = _daily_config(files, store, table)
    if config is None:
        raise ConfigError(
            "--file: expected the configuration of `logcal days run`, which names the log, found none: give it with "
            "--config"
        )
    published = PublishedTable(store, table)
    _check_exists(published, table, published.folder.names())
    listed = {file.relative: file for file in in_settings_of(config, find_files, config.log.path).files}
    digests = file_digests([listed[name].identity]) if name in listed else set[str]()
    if not digests and (decision is not None or f"{FILE}{name}" not in read_decisions(published.folder)):
        raise ConfigError(
            f"--file: expected a file of {', '.join(config.log.path)}, by its path there, found {name!r}: take the "
            "name from the message of `logcal days run`"
        )
    decisions = decide(published.folder, f"{FILE}{name}", decision, reason, digests)
    text = (
        f"{name} is read again" if decision is None else f"from now on no job opens {name}, until it changes"
    )
    return Outcome({"table": table, "decisions": _as_rows(decisions)}, [text])


def _as_rows(decisions: dict[str, Decision]) -> list[dict[str, Any]]:
    return [
        {"day": day, "decision": entry.decision, "reason": entry.reason, "at": entry.at}
        for day, entry in decisions.items()
    ]
