"""Published tables as SQL: queries that add the probability, with the table's path or the table written into them."""

from __future__ import annotations

import datetime as dt
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import resources
from typing import Any

import numpy as np

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
    exp_fails: bool = False


_DIALECTS = resources.files(__package__) / "templates" / "dialects.toml"
DIALECTS = {name: Dialect(**own) for name, own in tomllib.loads(_DIALECTS.read_text("utf-8")).items()}

_MAP = ("score_lo", "prob_lo", "slope", "anchor")


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
        log = _located(d, log)
    from jinja2 import Environment, PackageLoader, StrictUndefined

    # What it writes is no HTML.
    environment = Environment(loader=PackageLoader("pipeline.table"), undefined=StrictUndefined)  # noqa: S701
    writers: dict[str, Callable[..., str]] = {"number": _number, "literal": _literal, "quoted": _quoted}
    environment.filters |= {name: partial(write, d) for name, write in writers.items()}
    adjustments = table.adjustments if isinstance(table, SegmentedLookup) else None
    return environment.get_template("query.sql.j2").render(
        d=d,
        log=log,
        score=score,
        transform=table.facts.score_transform,
        columns=table.facts.segments,
        ends=[] if table.interval is None else ["prob_lower", "prob_upper"],
        adjusting=adjustments is not None,
        sigmoids=schema.LOGIT_FROM[1:] if adjustments is not None and adjustments.kind is not None else (),
        lookup=_located(d, path),
        segments=_located(d, storage.sibling(path, SEGMENTS_FILE)),
        maps=_maps(table) if inline else {},
        adjusted=_adjusted(d, table) if inline and isinstance(table, SegmentedLookup) else [],
    )


def _located(d: Dialect, path: str) -> str:
    return (d.parquet or "").format(path=path.replace("'", "''"))


def _maps(table: LookupTable | SegmentedLookup) -> dict[str, list[tuple[Key, list[tuple[float, ...]]]]]:
    """The maps of segments, the deepest first, that of all rows last; and so the ends of their intervals."""
    if isinstance(table, LookupTable):
        columns, bounds = vars(table.map), {(): (0, len(table.map))}
    else:
        columns, bounds = table.maps, table.bounds
    zero = np.zeros(columns["slope"].size)
    found = {"probability": [columns[name] for name in _MAP]}
    if table.interval is not None:
        ends = zip(("prob_lower", "prob_upper"), table.interval, strict=True)
        found |= {name: [columns["score_lo"], values, zero, zero] for name, values in ends}
    rows = {name: list(zip(*(column.tolist() for column in own), strict=True)) for name, own in found.items()}
    return {
        name: [(key, own[slice(*bounds[key])]) for key in _in_order(bounds)] for name, own in rows.items()
    }


def _in_order(keys: Iterable[Key]) -> list[Key]:
    return sorted(keys, key=lambda key: (-len(key), str(key)))


def _adjusted(d: Dialect, table: SegmentedLookup) -> list[tuple[Key, str | None, list[str]]]:
    """Moves of each segment's probability: the kind (of `schema.LOGIT_FROM`; None where it stays) and the numbers."""
    found: list[tuple[Key, str | None, list[str]]] = []
    for key in _in_order({*table.bounds, *table.entries} - {()}):
        entry = table.entry_of(key)
        if entry is None or table.adjustments is None:
            found.append((key, None, []))
            continue
        numbers = [float(column[entry]) for column in table.adjustments[1:5]]
        kinds = table.adjustments.kind
        kind = schema.LOGIT_FROM[0 if kinds is None else int(kinds[entry])]
        still = kind == "map" and numbers[:2] == [0.0, 1.0]
        found.append((key, None if still else kind, [_number(d, number) for number in numbers]))
    return found


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
