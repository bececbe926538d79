"""SQL queries that add the probabilities of a published table, which they read from its path or contain."""

from __future__ import annotations

import datetime as dt
import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from importlib import resources
from typing import Any

from calibrators.core.tabulate import check_max_error
from logcal import schema, storage
from logcal.errors import ConfigError
from logcal.lookup_table import Key, LookupTable
from logcal.reading import SEGMENTS_FILE
from pipeline.table.inline_maps import Rows, in_order, inline_maps


@dataclass(frozen=True)
class Dialect:
    """SQL dialect of an engine.

    Attributes
    ----------
    double, text : names of types
    nan : format of the test whether {x} is NaN; None if the engine has no NaN
    parquet : format of the table in a Parquet file at {path}; None if the engine cannot read one
    asof : whether the engine has as-of joins
    quote : quotation mark of names
    suffix : suffix of doubles
    date : format of a date
    end : end of a query with joins
    backslash : whether backslashes escape in texts
    fence : end of a subquery that is not merged into the outer query, which would repeat its long expressions; empty if
        the engine does not merge them
    coarse : whether numbers are read with less than double precision to spare, so that a decimal near the middle of two
        doubles may be read as the wrong one
    exp_fails : whether exp fails instead of returning infinity for large numbers and 0 for small ones
    most_bytes : longest query that the engine takes without other settings; None if it documents no limit
    """

    double: str
    text: str
    nan: str | None = None
    parquet: str | None = None
    asof: bool = False
    quote: str = '"'
    suffix: str = ""
    date: str = "DATE '{}'"
    end: str = ""
    backslash: bool = False
    fence: str = ""
    coarse: bool = False
    exp_fails: bool = False
    most_bytes: int | None = None


_DIALECTS = resources.files(__package__) / "templates" / "dialects.toml"
DIALECTS = {name: Dialect(**facts) for name, facts in tomllib.loads(_DIALECTS.read_text("utf-8")).items()}

_NEAR = 1e-200
"""Numbers below it, and above its inverse, are written as products in a coarse dialect, where large powers of ten are
inexact."""

_FACTOR = 2**62

_SURE = Decimal("0.45")
"""Most distance of a decimal from its double, as a share of the spacing of doubles, in a coarse dialect."""

MAX_ERROR = 1e-6
"""Largest error of an inline query, if none is given."""


def query(
    table: LookupTable,
    path: str,
    dialect: str,
    *,
    inline: bool,
    log: str,
    score: str,
    max_error: float = MAX_ERROR,
) -> str:
    """Write a query that returns a log's rows with their probabilities.

    Parameters
    ----------
    table : the lookup table
    path : its file, for engines that read Parquet
    dialect : one of DIALECTS
    inline : write the table into the query, as a CASE expression that bisects it
    log : name of the log's table, or its path if the engine reads Parquet
    score : name of the score column
    max_error : largest difference of the probabilities from the table's with `inline`, in [1e-12, 0.1], as the
        calibrators' parameter of that name: also at most 1e5 times as much relative to p and to 1 - p. The query has
        as few rows as that allows; with 0 it has all rows

    Raises
    ------
    ConfigError
        The dialect is unknown, or reads no Parquet and `inline` is not set; or `max_error` is out of range.

    Notes
    -----
    Null and NaN have no probability. The result also has `calibration_score`, the score as a double after the table's
    transform; with segments and a path, `calibration_map`, the key of the used map; and if segments adjust maps,
    `calibration_mapped`, the map's probability, and the numbers of the adjustment.
    """
    if dialect not in DIALECTS:
        raise ConfigError(f"--dialect: expected one of {', '.join(DIALECTS)}, found {dialect!r}")
    d = DIALECTS[dialect]
    if not inline and d.parquet is None:
        raise ConfigError(f"--dialect {dialect}: it reads no Parquet by its path: give --inline")
    maps = inline_maps(table, _checked(max_error)) if inline else {}
    if d.parquet is not None and "/" in log and log.endswith(".parquet"):
        log = _located(d, log)
    from jinja2 import Environment, PackageLoader, StrictUndefined

    # The output is SQL, not HTML, so nothing is escaped.
    environment = Environment(loader=PackageLoader("pipeline.table"), undefined=StrictUndefined)  # noqa: S701
    writers: dict[str, Callable[..., str]] = {"number": _number, "literal": _literal, "quoted": _quoted}
    environment.filters |= {name: partial(write, d) for name, write in writers.items()}
    environment.filters["groupby_shorter"] = _by_shorter
    adjustments = table.adjustments
    text = environment.get_template("query.sql.j2").render(
        d=d,
        log=log,
        score=score,
        transform=table.facts.score_transform,
        columns=table.facts.segments,
        ends=[] if table.interval is None else ["prob_lower", "prob_upper"],
        adjusting=adjustments is not None,
        bent=sorted({level for level in table.levels.tolist() if level < 0}),
        sigmoids=schema.LOGIT_FROM[1:] if adjustments is not None and adjustments.kind is not None else (),
        lookup=_located(d, path),
        segments=_located(d, storage.sibling(path, SEGMENTS_FILE)),
        maps=maps,
        adjusted=_adjusted(d, table) if inline else [],
    )
    return f"{_comment(table, maps, max_error)}{text}" if inline else text


def _by_shorter(keys: list[Key]) -> list[tuple[Key, list[Any]]]:
    """Return the keys' last values by the values before them."""
    groups: dict[Key, list[Any]] = {}
    for key in keys:
        groups.setdefault(key[:-1], []).append(key[-1])
    return list(groups.items())


def _checked(max_error: float) -> float:
    try:
        if max_error != 0:
            check_max_error(max_error)
    except ValueError:
        raise ConfigError(
            f"--max-error: expected 0, or a number in [1e-12, 0.1], found {max_error}"
        ) from None
    return max_error


def _located(d: Dialect, path: str) -> str:
    return (d.parquet or "").format(path=path.replace("'", "''"))


def _comment(table: LookupTable, maps: dict[str, list[tuple[list[Key], Rows]]], max_error: float) -> str:
    """Return the query's first line, which says how exact it is."""
    if max_error == 0:
        return "-- All rows of the lookup table (--max-error 0).\n"
    rows = sum(len(rows) for _, rows in maps["probability"])
    return (
        f"-- Probabilities within {max_error:g} of the lookup table's (--max-error), with {rows:,} of its "
        f"{table.facts.rows:,} rows.\n"
    )


def _adjusted(d: Dialect, table: LookupTable) -> list[tuple[Key, str | None, list[str]]]:
    """Return each segment's adjustment: its kind (of `schema.LOGIT_FROM`; None if there is none) and its numbers."""
    adjustments: list[tuple[Key, str | None, list[str]]] = []
    for key in in_order({*table.bounds, *table.entries} - {()}):
        kind, *numbers = (table.adjustment_of(table.entry_of(key)) or {"logit_from": None}).values()
        adjustments.append((key, kind, [_number(d, number) for number in numbers]))
    return adjustments


def _number(d: Dialect, value: float) -> str:
    value = float(value)
    if d.coarse and not _NEAR < abs(value) < 1 / _NEAR and value != 0 and math.isfinite(value):
        # Powers of two are exact.
        near, operator = (value / _FACTOR, "*") if abs(value) > 1 else (value * _FACTOR, "/")
        return f"({_number(d, near)}{operator}{_FACTOR})"
    text = _sure(value) if d.coarse else repr(value)
    text = text.replace("e", "E") if "e" in text else f"{text}E0"
    return f"({text}{d.suffix})" if value < 0 or text.startswith("-") else f"{text}{d.suffix}"


def _sure(value: float) -> str:
    """Return the shortest decimal that is not near the middle of two doubles; it has at most 18 digits."""
    text = repr(value)
    spacing = Decimal(abs(value - math.nextafter(value, 0.0)))
    for digits in (17, 18):
        if abs(Decimal(text) - Decimal(value)) <= _SURE * spacing:
            break
        text = f"{value:.{digits - 1}e}"
    return text


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
