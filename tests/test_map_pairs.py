"""How far the maps of two tables are apart, against a loop over pieces in Python, one pair after the other."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from calibrators.core.map import CalibrationMap
from logcal.adjustments import Adjustments
from logcal.lookup_table import LookupTable
from pipeline.table import map_change as map_pairs
from pipeline.table.map_change import MapChange, TwoTables

TINY = 5e-324


def one_map(rng: np.random.Generator, scores: np.ndarray) -> CalibrationMap:
    """Steps, lines between knots, or blocks, at some of these scores; a single row, too."""
    kind, edges = rng.integers(4), np.unique(rng.choice(scores, rng.integers(1, 9)))
    levels = rng.choice([0.0, 1e-300, 0.2, 0.5, 0.999, 1.0], edges.size + 1)
    weight = rng.choice([0.0, 0.0, 1.0, 3.0], edges.size + 1)
    if kind == 0:
        return CalibrationMap.from_bins(edges[:0], levels[:1], np.ones(1), np.ones(1))
    if kind == 1:
        return CalibrationMap.from_bins(edges, levels, weight, weight)
    if kind == 2:
        return CalibrationMap.from_knots(edges, np.sort(levels[1:]), weight, weight)
    return CalibrationMap.from_blocks(edges, edges, np.sort(levels[1:]), weight[1:], weight[1:])


def some_maps(rng: np.random.Generator, scores: np.ndarray, moved: bool) -> LookupTable:
    """Maps one after the other, and where they are moved twice as many entries."""
    found = [one_map(rng, scores) for _ in range(5)]
    rows = {
        name: np.concatenate([getattr(one, name) for one in found])
        for name in CalibrationMap.__dataclass_fields__
    }
    starts = np.concatenate([[0], np.cumsum([len(one) for one in found])])
    if not moved:
        return LookupTable(None, rows, starts, [], np.zeros(5, np.int64), None, None)
    n = 2 * len(found)
    low = rng.choice([1e-310, 1e-3, 0.3], n)
    adjustments = Adjustments(
        rng.integers(0, len(found), n).astype(np.int32),
        rng.choice([0.0, 0.0, -1.5, 3.0], n),
        rng.choice([1.0, 1.0, 0.0, 0.7], n),
        low,
        np.maximum(low, rng.choice([0.4, 0.99], n)),
        rng.integers(0, 3, n).astype(np.int8) if rng.integers(2) else None,
    )
    return LookupTable(None, rows, starts, [], np.zeros(5, np.int64), None, None, adjustments)


class Brute:
    """A table's maps, one score at a time."""

    def __init__(self, maps: LookupTable) -> None:
        self.maps, self.adjustments = maps, maps.adjustments
        names = CalibrationMap.__dataclass_fields__
        self.own = [
            CalibrationMap(**{name: maps.maps[name][a:b] for name in names})
            for a, b in zip(maps.starts[:-1], maps.starts[1:], strict=True)
        ]

    def map_of(self, place: int) -> CalibrationMap:
        return self.own[place if self.adjustments is None else self.adjustments.map[place]]

    def predict(self, score: float, place: int) -> float:
        p = float(self.map_of(place).predict(score))
        return p if self.adjustments is None else self.adjustments.apply_one(p, place, score)


def divided(masses: list[float], groups: list[int], otherwise: list[float]) -> list[float]:
    """Shares of the groups' sums."""
    whole = dict.fromkeys(groups, 0.0)
    for mass, group in zip(masses, groups, strict=True):
        whole[group] += mass
    rows = zip(masses, groups, otherwise, strict=True)
    return [mass / whole[group] if whole[group] > 0 else other for mass, group, other in rows]


def brute(old: Brute, new: Brute, a: int, b: int, finer: Brute, lowest: float, highest: float) -> list[float]:
    """As `TwoTables.changes`, of the maps at two places."""
    inner = {*old.map_of(a).score_hi.tolist(), *new.map_of(b).score_hi.tolist()}
    edges = sorted({lowest, highest} | {x for x in inner if lowest <= x <= highest})
    maps = [old.map_of(a), new.map_of(b)]
    pieces = [(edges[0], edges[0])] if lowest == highest else list(itertools.pairwise(edges))
    middles = [low / 2 + high / 2 for low, high in pieces]
    widths = shares = [high - low for low, high in pieces]
    # Rows lie evenly in an interval of the coarser map, and in one of the finer map as in the coarser.
    for weighing in maps[::-1] if finer is old else maps:
        rows = [int(np.searchsorted(weighing.score_hi[:-1], middle, side="right")) for middle in middles]
        parts = divided(shares, rows, divided(widths, rows, [1 / rows.count(row) for row in rows]))
        shares = [float(weighing.weight[row]) * part for row, part in zip(rows, parts, strict=True)]
    shares = divided(shares, [0] * len(pieces), [1 / len(pieces)] * len(pieces))
    mean, mean_old, mean_new, largest, at = 0.0, 0.0, 0.0, 0.0, edges[0]
    for (low, high), middle, share in zip(pieces, middles, shares, strict=True):
        p, q = old.predict(middle, a), new.predict(middle, b)
        mean, mean_old, mean_new = mean + share * abs(p - q), mean_old + share * p, mean_new + share * q
        for end in (low, middle, max(low, math.nextafter(high, -math.inf))):
            apart = abs(new.predict(end, b) - old.predict(end, a)) if share != 0 else 0.0
            if apart > largest:
                largest, at = apart, end
    return [mean, largest, at, mean_old, mean_new]


GRIDS = {
    "few": np.array([0.1, 0.25, 0.5, 0.75, 0.9]),
    "many": np.linspace(0, 1, 40),
    "neighbours": 0.3 + np.arange(8) * np.spacing(0.3),
    "tiny": np.arange(9) * TINY,
    "signed": np.array([-1e300, -2.0, -0.0, 3.0, 1e300]),
}


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("seed", range(4))
def test_equals_a_loop_over_pieces(grid, seed, monkeypatch):
    monkeypatch.setattr(map_pairs, "_BLOCK", 7)
    rng = np.random.default_rng(seed)
    scores = GRIDS[grid]
    old, new = some_maps(rng, scores, bool(seed & 1)), some_maps(rng, scores, bool(seed & 2))
    places = [5 if one.adjustments is None else 10 for one in (old, new)]
    a, b = (rng.integers(0, count, 30) for count in places)
    lowest, highest = np.sort(rng.choice(scores, 2)).tolist()
    beside = [(lowest, highest), (lowest, lowest), (lowest - 1, highest + 1), (lowest, lowest + 1)]
    for low, high in beside:
        for old_weighs in (False, True):
            found = TwoTables(old, new, low, high, old_weighs).changes(a, b)
            one, other = Brute(old), Brute(new)
            finer = one if old_weighs else other
            wanted = [brute(one, other, i, j, finer, low, high) for i, j in zip(a, b, strict=True)]
            np.testing.assert_array_equal(found.T, wanted)


def steps(edges, weight, prob):
    low, high, none = np.append(-np.inf, edges), np.append(edges, np.inf), np.zeros(weight.size)
    return CalibrationMap(low, high, prob, none, none, weight, weight * prob)


def test_rows_lie_in_a_coarse_map_as_in_the_fine_one_beside_it():
    """Most scores are low, which a map of two intervals does not tell."""
    score = np.random.default_rng(0).beta(0.3, 3.0, 20_000)
    edges = np.linspace(0, score.max(), 400)
    counts = np.histogram(score, edges)[0].astype(float)
    fine = steps(edges[1:-1], counts, edges[1:] ** 0.5)
    coarse = steps(np.array([0.9]), np.array([19_990.0, 10.0]), np.array([0.8, 0.9]))
    [found] = (
        TwoTables(*(LookupTable.of_map(one, None) for one in (fine, coarse)), 0.0, score.max())
        .changes(*np.zeros((2, 1), int))
        .T
    )
    old, new = fine.predict(score), coarse.predict(score)
    np.testing.assert_allclose(
        found[[0, 3, 4]], [np.abs(new - old).mean(), old.mean(), new.mean()], rtol=0.002
    )


def test_of_no_pairs_nothing_is_found():
    maps = some_maps(np.random.default_rng(0), GRIDS["few"], moved=True)
    none = np.empty(0, np.int64)
    assert TwoTables(maps, maps, 0.0, 1.0).changes(none, none).shape == (5, 0)


@pytest.mark.parametrize(("old", "new"), [(0.1, 0.4), (0.4, 0.1)])
def test_the_relative_change_does_not_depend_on_which_map_is_new(old, new):
    assert MapChange(
        mean=0.3, largest=0.5, at_score=0.2, mean_old=old, mean_new=new
    ).relative == pytest.approx(0.75)
