"""Maps of a lookup table with as few rows as a largest error allows, for queries that contain the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from calibrators.core.arrays import Array
from calibrators.core.map import CalibrationMap
from calibrators.core.simplify import knots_of, simplify
from calibrators.core.tabulate import largest_error
from logcal import schema
from logcal.adjustments import Adjustments
from logcal.lookup_table import Key, LookupTable

Rows = list[tuple[float, ...]]
"""Rows of a map: score_lo, prob_lo, slope, anchor."""

_MAP = ("score_lo", "prob_lo", "slope", "anchor")

_SHARE, _LEAST_SHARE = 0.999, 1e-9
"""Share of the largest error that a map may use; where segments adjust it, smaller ones are tried down to the least."""


def inline_maps(table: LookupTable, max_error: float) -> dict[str, list[tuple[list[Key], Rows]]]:
    """Return the maps, and the ends of their intervals, with the keys that use them: longest first, all rows last.

    Keys that begin with a longer one's, which use another map, come first.

    max_error : see `pipeline.table.sql.query`
    """
    columns = table.maps
    users = sorted(_users(table), key=lambda entry: _place(entry[1][0]))
    zero = np.zeros(columns["slope"].size)
    results = {"probability": columns}
    if table.interval is not None:
        for name, values in zip(("prob_lower", "prob_upper"), table.interval, strict=True):
            results[name] = {**columns, "prob_lo": values, "slope": zero, "anchor": zero}
    found: dict[str, list[tuple[list[Key], Rows]]] = {}
    for name, of_maps in results.items():
        of_number: dict[int, Rows] = {}
        for number in {number for number, _ in users}:
            rows = slice(*table.starts[number : number + 2].tolist())
            map_ = CalibrationMap(**{column: of_maps[column][rows] for column in schema.LOOKUP_TABLE.names})
            entries = _adjusting(table, number) if name == "probability" else []
            map_ = _simplified(map_, max_error, entries)
            of_number[number] = list(zip(*(getattr(map_, c).tolist() for c in _MAP), strict=True))
        found[name] = [(keys, of_number[number]) for number, keys in users]
    return found


def _users(table: LookupTable) -> list[tuple[int, list[Key]]]:
    """Return numbers of maps, and keys of one length that use them: those with a map, and those that adjust another
    map than the next shorter key's.
    """
    own = {key: number for number, key in enumerate(table.bounds)}
    users = [(number, [key]) for key, number in own.items()]
    if table.adjustments is None:
        return users
    number_of = {key: int(table.adjustments.map[entry]) for key, entry in table.entries.items()} | own
    others: dict[tuple[int, int], list[Key]] = {}
    for key in in_order(number_of.keys() - own.keys()):
        shorter = next(key[:n] for n in range(len(key) - 1, -1, -1) if key[:n] in number_of)
        if number_of[key] != number_of[shorter]:
            others.setdefault((number_of[key], len(key)), []).append(key)
    return users + [(number, keys) for (number, _), keys in others.items()]


def _adjusting(table: LookupTable, number: int) -> list[Callable[[Array], Array]]:
    """Return the functions by which segments adjust the probabilities of a map."""
    if table.adjustments is None:
        return []
    all_ = table.adjustments
    used = all_.map == number
    if all_.kind is not None:
        used &= all_.kind == schema.LOGIT_FROM.index("map")
    entries = np.flatnonzero(used & ((all_.shift != 0) | (all_.slope != 1))).astype(np.int32)
    return [partial(_adjust, all_, entry) for entry in entries]


def _adjust(adjustments: Adjustments, entry: np.int32, probability: Array) -> Array:
    return adjustments.apply(probability, np.full(probability.size, entry), probability)


def _simplified(
    map_: CalibrationMap, max_error: float, adjusting: list[Callable[[Array], Array]]
) -> CalibrationMap:
    """Return a map with as few rows as the largest error of its probabilities, and of the adjusted ones, allows."""
    if max_error == 0:
        return map_
    scores, levels = knots_of(map_)
    adjusted = [(adjust, adjust(levels)) for adjust in adjusting]
    share = _SHARE
    while share > _LEAST_SHARE:
        simple = simplify(map_, share * largest_error(levels, max_error))
        found = simple.predict_ascending(scores)
        errors = [np.abs(adjust(found) - p) / largest_error(p, max_error) for adjust, p in adjusted]
        worst = max((float(error.max(initial=0.0)) for error in errors), default=0.0)
        if worst <= 1:
            return simple
        share /= max(worst, 2.0)
    return map_


def in_order(keys: Iterable[Key]) -> list[Key]:
    """Sort keys, the longest first."""
    return sorted(keys, key=_place)


def _place(key: Key) -> tuple[int, str]:
    return -len(key), str(key)
