"""Published tables as SQL: queries that add the probability, with the table's path or the table written into them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrators.arithmetic.calibration_map import CalibrationMap
from calibrators.arithmetic.passes import Array
from logcal import schema, storage
from logcal.errors import ConfigError
from logcal.lookup_table import Key, LookupTable, SegmentedLookup
from logcal.reading import SEGMENTS_FILE


@dataclass(frozen=True)
class Dialect:
    """Spelling of the queries in an engine.

    Attributes
    ----------
    nan : of {x}, whether it is NaN; None where there is no NaN. double, text : names of types.
    parquet : of {path}, the table; None where the engine reads no Parquet by path.
    asof : whether it has as-of joins. quote : of names. suffix : of doubles. date : of a date's text.
    end : ends a query with joins. backslash : whether it escapes in texts.
    exp_fails : whether exp of a large number is an error instead of infinity, and of a small one instead of 0.
    """

    nan: str | None
    double: str
    text: str
    parquet: str | None = None
    asof: bool = False
    quote: str = '"'
    suffix: str = ""
    date: str = "DATE '{}'"
    end: str = ""
    backslash: bool = False
    exp_fails: bool = False


DIALECTS = {
    "duckdb": Dialect("isnan({x})", "DOUBLE", "VARCHAR", "read_parquet('{path}')", asof=True),
    "clickhouse": Dialect(
        "isNaN({x})",
        "Nullable(Float64)",
        "Nullable(String)",
        "file('{path}', Parquet)",
        asof=True,
        date="toDate('{}')",
        end="\nSETTINGS join_use_nulls = 1",
        backslash=True,
    ),
    "spark": Dialect(
        "isnan({x})", "DOUBLE", "STRING", "parquet.`{path}`", quote="`", suffix="D", backslash=True
    ),
    "datafusion": Dialect("isnan({x})", "DOUBLE", "VARCHAR", "'{path}'"),
    "sqlite": Dialect(None, "REAL", "TEXT", date="'{}'"),
    "postgres": Dialect("{x} = 'NaN'::float8", "double precision", "text", exp_fails=True),
    "bigquery": Dialect("IS_NAN({x})", "FLOAT64", "STRING", quote="`", backslash=True, exp_fails=True),
    "snowflake": Dialect("{x} = 'NaN'::FLOAT", "FLOAT", "VARCHAR", backslash=True, exp_fails=True),
    "trino": Dialect("is_nan({x})", "DOUBLE", "VARCHAR"),
}

_SCORE, _MAP, _MAPPED = "calibration_score", "calibration_map", "calibration_mapped"


def query(
    table: LookupTable | SegmentedLookup, path: str, dialect: str, *, inline: bool, log: str, score: str
) -> str:
    """A query that gives a log's rows with their probability.

    Parameters
    ----------
    table : the lookup table. path : its file, for engines that read Parquet.
    dialect : one of DIALECTS
    inline : write the table into the query, as one CASE expression that halves the table at each step
    log, score : names of the log's table, or its path where the engine reads Parquet, and of its score column

    Raises
    ------
    ConfigError
        The dialect is unknown, or reads no Parquet and `inline` is not set.

    Notes
    -----
    Null and NaN have no probability. Beside `probability` the result has `calibration_score`, the score as a double
    after the table's transform, with segments and a path `calibration_map`, which map was used, and where segments move
    maps `calibration_mapped`, that map's probability, and the numbers by which it was moved.
    """
    if dialect not in DIALECTS:
        raise ConfigError(f"--dialect: expected one of {', '.join(DIALECTS)}, found {dialect!r}")
    d = DIALECTS[dialect]
    if not inline and d.parquet is None:
        raise ConfigError(f"--dialect {dialect}: it reads no Parquet by its path: give --inline")
    if d.parquet is not None and "/" in log and log.endswith(".parquet"):
        log = d.parquet.format(path=log.replace("'", "''"))
    rows = f"(SELECT t.*, {_transformed(d, table.facts.score_transform, score)} AS {_SCORE} FROM {log} AS t)"
    adjusting = isinstance(table, SegmentedLookup) and table.adjustments is not None
    if inline and isinstance(table, SegmentedLookup) and adjusting:
        return _adjusted_inline(d, table, rows)
    if inline:
        ends = _inline_ends(d, table)
        return f"SELECT s.*,\n  {_guarded(d, _expression(d, table))} AS probability{ends}\nFROM {rows} AS s"
    assert d.parquet is not None
    where = d.parquet.format(path=path.replace("'", "''"))
    ends = _joined_ends(d, table)
    if isinstance(table, SegmentedLookup):
        beside = d.parquet.format(path=storage.beside(path, SEGMENTS_FILE).replace("'", "''"))
        return _segmented_join(d, table, where, beside, rows, ends) + d.end
    return _join(d, where, rows, ends) + d.end


def _transformed(d: Dialect, transform: str, score: str) -> str:
    value = f"CAST(t.{_quoted(d, score)} AS {d.double})"
    if transform == "none":
        return value
    return _sigmoid(d, value)


def _sigmoid(d: Dialect, value: str) -> str:
    """Write the sigmoid of any number; NaN of NaN."""
    one = f"1.0E0{d.suffix}"
    sigmoid = f"{one} / ({one} + exp(-{value}))"
    if not d.exp_fails or d.nan is None:
        return sigmoid
    # Beyond these it is 1, 0 and exp to the last bit.
    return (
        f"CASE WHEN {d.nan.format(x=value)} THEN {value} WHEN {value} > 40 THEN 1.0E0 WHEN {value} < -745 THEN 0.0E0 "
        f"WHEN {value} < -700 THEN exp({value}) ELSE {sigmoid} END"
    )


def _guarded(d: Dialect, expression: str) -> str:
    s = f"s.{_SCORE}"
    missing = f"{s} IS NULL" + ("" if d.nan is None else f" OR {d.nan.format(x=s)}")
    return f"CASE WHEN {missing} THEN NULL ELSE {expression} END"


_LINE = f"CASE WHEN l.slope = 0 THEN l.prob_lo ELSE l.prob_lo + l.slope * (s.{_SCORE} - l.anchor) END"


def _joined_ends(d: Dialect, table: LookupTable | SegmentedLookup) -> str:
    """The ends of the intervals of a table that has them, by a join: NaN may be joined to the last row."""
    if table.interval is None:
        return ""
    return "".join(f",\n  {_guarded(d, f'l.{name}')} AS {name}" for name in ("prob_lower", "prob_upper"))


def _inline_ends(d: Dialect, table: LookupTable | SegmentedLookup) -> str:
    """The ends of the intervals of a table that has them."""
    if table.interval is None:
        return ""
    columns = zip(("prob_lower", "prob_upper"), table.interval, strict=True)
    return "".join(f",\n  {_guarded(d, _end(d, table, values))} AS {name}" for name, values in columns)


def _end(d: Dialect, table: LookupTable | SegmentedLookup, values: Array) -> str:
    """A number for each row of a table's maps."""
    if isinstance(table, LookupTable):
        return _steps(d, table.map.score_lo, values)

    def steps(key: Key) -> str:
        rows = slice(*table.rows_of(key))
        return _steps(d, table.maps["score_lo"][rows], values[rows])

    return _by_segment(d, table, steps)


def _steps(d: Dialect, score_lo: Array, values: Array) -> str:
    """A number for each row of a map, as CASE expressions."""
    zero = [0.0] * values.size
    return _half(d, list(zip(score_lo.tolist(), values.tolist(), zero, zero, strict=True)))


def _join(d: Dialect, where: str, rows: str, ends: str = "") -> str:
    """Measure a table without segments. ends : of its intervals."""
    if d.asof and d.end:  # as-of joins with an equality beside the inequality
        rows, where = f"(SELECT r.*, 0 AS one FROM {rows} AS r)", f"(SELECT *, 0 AS one FROM {where})"
        condition = f"s.one = l.one AND s.{_SCORE} >= l.score_lo"
        selected = f"SELECT s.*,\n  {_guarded(d, _LINE)} AS probability{ends}\nFROM {rows} AS s"
        return f"{selected}\nASOF LEFT JOIN {where} AS l ON {condition}"
    kind = "ASOF LEFT JOIN" if d.asof else "LEFT JOIN"
    return (
        f"SELECT s.*,\n  {_guarded(d, _LINE)} AS probability{ends}\nFROM {rows} AS s\n{kind} {where} AS l\n"
        f"  ON {_within(d)}"
    )


def _within(d: Dialect) -> str:
    if d.asof:
        return f"s.{_SCORE} >= l.score_lo"
    infinite = f"CAST('Infinity' AS {d.double})"
    nan = "" if d.nan is None else f"NOT {d.nan.format(x=f's.{_SCORE}')} AND "
    return f"{nan}s.{_SCORE} >= l.score_lo AND (s.{_SCORE} < l.score_hi OR l.score_hi = {infinite})"


_MOVES = ("logit_shift", "logit_slope", "prob_min", "prob_max")


def _segmented_join(
    d: Dialect, table: SegmentedLookup, where: str, beside: str, rows: str, ends: str = ""
) -> str:
    """Write the join of a table of segments: each row takes the map of the most columns, and how that is adjusted.

    where, beside : the maps, and the segments. ends : see `_join`
    """
    columns, adjustments = table.columns, table.adjustments
    levels = range(len(columns), 0, -1)

    def kinds(level: str) -> str:
        cases = " ".join(f"WHEN {n} THEN {_key(d, columns[:n], 'p')}" for n in levels)
        return f"CASE p.{level} {cases} ELSE '0' END"

    one, zero = f"1.0E0{d.suffix}", f"0.0E0{d.suffix}"
    # What rows of segments that the table does not know go through.
    otherwise = {_MAP: "'0'"}
    known = f"SELECT DISTINCT {_MAP} AS calibration_segment, {_MAP} FROM lookup"
    sigmoids = adjustments is not None and adjustments.of is not None
    if adjustments is not None:
        otherwise |= dict(zip(_MOVES, (zero, one, zero, one), strict=True))
        # A sigmoid needs no map; the one of all rows is there for whatever.
        fitted = kinds("fitted_level")
        if sigmoids:
            otherwise["logit_from"] = "'map'"
            fitted = f"CASE WHEN p.logit_from = 'map' THEN {fitted} ELSE '0' END"
        numbers = ", ".join(f"p.{name}" for name in list(otherwise)[1:])
        known = (
            f"SELECT {kinds('segment_level')} AS calibration_segment, {fitted} AS {_MAP}, {numbers} "
            f"FROM {beside} AS p"
        )
    picked = ", ".join(
        f"coalesce({', '.join(f'm{level}.{name}' for level in levels)}, {other}) AS {name}"
        for name, other in otherwise.items()
    )
    keys = ", ".join(f"{_key(d, columns[:level], 'k')} AS key{level}" for level in levels)
    joins = "\n    ".join(
        f"LEFT JOIN known AS m{level} ON r.key{level} = m{level}.calibration_segment" for level in levels
    )
    kind = "ASOF LEFT JOIN" if d.asof else "LEFT JOIN"
    name = "probability" if adjustments is None else _MAPPED
    begin = (
        f"WITH lookup AS (SELECT p.*, {kinds('segment_level')} AS {_MAP} FROM {where} AS p),\nknown AS ({known}),\n"
        f"keyed AS (SELECT k.*, {keys} FROM {rows} AS k),\n"
        f"rows_of_maps AS (\n  SELECT r.*, {picked}\n  FROM keyed AS r\n    {joins}\n)"
    )
    applied = (
        f"SELECT s.*,\n  {_guarded(d, _LINE)} AS {name}{ends}\nFROM rows_of_maps AS s\n{kind} lookup AS l\n"
        f"  ON s.{_MAP} = l.{_MAP} AND {_within(d)}"
    )
    if adjustments is None:
        return f"{begin}\n{applied}"
    moves = [f"a.{move}" for move in _MOVES]
    of_scores = "".join(
        f"WHEN a.logit_from = '{of}' THEN {_of_score(d, of, *moves)} "
        for of in schema.LOGIT_FROM[1:]
        if sigmoids
    )
    return (
        f"{begin},\napplied AS (\n{applied}\n)\n"
        f"SELECT a.*,\n  CASE WHEN a.{_MAPPED} IS NULL THEN NULL {of_scores}WHEN a.logit_shift = 0 AND "
        f"a.logit_slope = 1 THEN a.{_MAPPED} ELSE {_adjusted(d, *moves)} END AS probability\nFROM applied AS a"
    )


def _of_score(d: Dialect, kind: str, shift: str, slope: str, low: str, high: str) -> str:
    """A sigmoid of the score. kind : of `schema.LOGIT_FROM`."""
    if kind == "log_odds":
        return _adjusted(d, shift, slope, low, high, q=f"a.{_SCORE}")
    return _sigmoid(d, f"({shift} + {slope} * a.{_SCORE})")


def _adjusted(d: Dialect, shift: str, slope: str, low: str, high: str, q: str = f"a.{_MAPPED}") -> str:
    """The probability of the map, moved."""
    one = f"1.0E0{d.suffix}"
    held = f"(CASE WHEN {q} < {low} THEN {low} WHEN {q} > {high} THEN {high} ELSE {q} END)"
    return f"{one} / ({one} + exp(-({shift} + {slope} * (ln{held} - ln({one} - {held})))))"


def _adjusted_inline(d: Dialect, table: SegmentedLookup, rows: str) -> str:
    """The same, written into the query."""
    adjustments = table.adjustments
    assert adjustments is not None
    cases = []
    for key in sorted({*table.bounds, *table.entries} - {()}, key=lambda key: (-len(key), str(key))):
        entry = table.entry_of(key)
        numbers = [] if entry is None else [float(column[entry]) for column in adjustments[1:5]]
        kind = 0 if entry is None or adjustments.of is None else int(adjustments.of[entry])
        still = not kind and (not numbers or numbers[:2] == [0.0, 1.0])
        texts = [_number(d, number) for number in numbers]
        value = f"a.{_MAPPED}"
        if kind:
            value = _of_score(d, schema.LOGIT_FROM[kind], *texts)
        elif not still:
            value = _adjusted(d, *texts)
        cases.append(f"WHEN {_matches(d, table.columns, key, 'a')} THEN {value}")
    applied = f"SELECT s.*, {_guarded(d, _expression(d, table))} AS {_MAPPED} FROM {rows} AS s"
    return (
        f"SELECT a.*,\n  CASE WHEN a.{_MAPPED} IS NULL THEN NULL {' '.join(cases)} ELSE a.{_MAPPED} END "
        f"AS probability\nFROM ({applied}) AS a"
    )


def _key(d: Dialect, columns: Sequence[str], of: str) -> str:
    """The columns' values as one text, different for different values."""
    parts = [f"'{len(columns)}'"]
    for name in columns:
        text = f"CAST({of}.{_quoted(d, name)} AS {d.text})"
        length = f"CAST(length({text}) AS {d.text})"
        parts.append(f"CASE WHEN {text} IS NULL THEN 'n' ELSE concat('v', {length}, ':', {text}) END")
    return f"concat({', '.join(parts)})"


# Inline


def _expression(d: Dialect, table: LookupTable | SegmentedLookup) -> str:
    if isinstance(table, LookupTable):
        return _tree(d, table.map)
    return _by_segment(d, table, lambda key: _tree(d, table.own_map(key)))


def _by_segment(d: Dialect, table: SegmentedLookup, expression: Callable[[Key], str]) -> str:
    """Write an expression with one value for each segment that has a map, and one for all others."""
    cases = [
        f"WHEN {_matches(d, table.columns, key)} THEN {expression(key)}"
        for key in sorted(table.bounds, key=lambda key: (-len(key), str(key)))
        if key
    ]
    whole = expression(())
    return f"CASE {' '.join(cases)} ELSE {whole} END" if cases else whole


def _matches(d: Dialect, columns: Sequence[str], key: Key, of: str = "s") -> str:
    found = []
    for name, value in zip(columns, key, strict=False):
        column = f"{of}.{_quoted(d, name)}"
        found.append(f"{column} IS NULL" if value is None else f"{column} = {_literal(d, value)}")
    return " AND ".join(found)


def _tree(d: Dialect, found: CalibrationMap) -> str:
    """The map as CASE expressions that halve what is left."""
    columns = [
        np.asarray(getattr(found, name)).tolist() for name in ("score_lo", "prob_lo", "slope", "anchor")
    ]
    return _half(d, list(zip(*columns, strict=True)))


def _half(d: Dialect, rows: list[tuple[float, float, float, float]]) -> str:
    s = f"s.{_SCORE}"
    if len(rows) == 1:
        _, prob, slope, anchor = rows[0]
        if slope == 0:
            return _number(d, prob)
        return f"{_number(d, prob)} + {_number(d, slope)} * ({s} - {_number(d, anchor)})"
    middle = len(rows) // 2
    low, high = _half(d, rows[:middle]), _half(d, rows[middle:])
    return f"CASE WHEN {s} < {_number(d, rows[middle][0])} THEN {low} ELSE {high} END"


def _number(d: Dialect, value: float) -> str:
    text = repr(float(value))
    text = text.replace("e", "E") if "e" in text else f"{text}E0"
    return f"({text}{d.suffix})" if value < 0 or text.startswith("-") else f"{text}{d.suffix}"


def _literal(d: Dialect, value: Any) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, dt.date):
        return d.date.format(value.isoformat())
    if isinstance(value, int):
        return str(value)
    text = str(value).replace("\\", "\\\\") if d.backslash else str(value)
    escaped = text.replace("'", "\\'") if d.backslash else text.replace("'", "''")
    return f"'{escaped}'"


def _quoted(d: Dialect, name: str) -> str:
    return f"{d.quote}{name.replace(d.quote, d.quote * 2)}{d.quote}"
