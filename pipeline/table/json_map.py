"""A published table as strict JSON, for programs that read no Parquet."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from logcal import schema
from logcal.lookup_table import Key, LookupTable
from logcal.segment_types import kind_of

FORMAT = "logcal-map"
"""Name of the format, which docs/recipes.md describes."""

_NOT_HERE = (schema.INTERVAL, schema.BENT)
"""Features that a reader of the format does not meet: segments have the numbers of bent maps as of others."""

_ROW = ("score_lo", "prob_lo", "slope", "anchor")


def json_map(table: LookupTable, name: str, grid: str | None = None) -> dict[str, Any]:
    """Return a table as JSON values; doubles keep their bits when they are written with `repr`.

    Parameters
    ----------
    table : the lookup table
    name : the table's name
    grid : the grid to which the fit rounded scores; None without one

    Returns
    -------
    dict
        The facts; without segments `rows`, the map. With segments instead `columns`, `maps`, and `segments`: each known
        key of any level, beginning with that of all rows, with the number of its map and its adjustment. The key of a
        row is the longest of its prefixes that is among them.

    Notes
    -----
    Keys are text (whole numbers, too: many JSON readers round those above 2**53), or null. -inf, the first score_lo of
    each map, is null.
    """
    facts = {
        "format": FORMAT,
        "format_version": schema.FORMAT_VERSION,
        "features": [name for name in table.facts.features if name not in _NOT_HERE],
        "table": name,
        "version": table.facts.version,
        "method": table.facts.method,
        "score_transform": table.facts.score_transform,
        "monotone": table.facts.monotone,
        "grid": grid,
    }
    if not table.columns:
        return {**facts, "rows": _rows(table.maps, *table.bounds[()])}
    number_of = {key: number for number, key in enumerate(table.bounds)}
    types = [kind_of(str(column.type)) for column in table.owners]
    return {
        **facts,
        "columns": [
            {"name": column, "type": type_} for column, type_ in zip(table.columns, types, strict=True)
        ],
        "maps": [_rows(table.maps, *bounds) for bounds in pairwise(table.starts.tolist())],
        "segments": [_segment(table, key, number_of) for key in _in_order({*table.bounds, *table.entries})],
    }


def _rows(columns: dict[str, Any], start: int, stop: int) -> list[dict[str, float | None]]:
    values = zip(*(np.asarray(columns[name][start:stop]).tolist() for name in _ROW), strict=True)
    return [dict(zip(_ROW, (None if v == -math.inf else v for v in row), strict=True)) for row in values]


def _in_order(keys: set[Key]) -> list[Key]:
    """Sort keys by level, then by text, null first."""
    return sorted(keys, key=lambda key: (len(key), [(v is not None, _text(v) or "") for v in key]))


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


def _segment(table: LookupTable, key: Key, number_of: dict[Key, int]) -> dict[str, Any]:
    entry = table.entries.get(key)
    number = (
        number_of[key] if entry is None or table.adjustments is None else int(table.adjustments.map[entry])
    )
    adjustment = table.adjustment_of(entry)
    return {"key": [_text(value) for value in key], "adjustment": adjustment, "map": number}
