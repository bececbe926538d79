"""How far the maps of two tables are apart, against a loop over pieces in Python, one pair after the other."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pyarrow as pa
import pytest
from common import FACTS, write_log

from calibrators.arithmetic.calibration_map import CalibrationMap
from logcal.adjustments import Adjustments
from logcal.lookup_table import SegmentedLookup
from pipeline.fit.calibration import Recipe
from pipeline.fit.segment_fit import fit_segments
from pipeline.log.logs import Columns, open_log
from pipeline.sort.score_table import SortPlan
from pipeline.table import map_change as map_pairs
from pipeline.table.lookup_table import cached_segmented_lookup, segmented_files
from pipeline.table.map_change import TableMaps, TwoTables, change_of_tables
from pipeline.table.segment_maps import SegmentRules
from tests.test_segments import Shuffled, sorted_rows

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


def some_maps(rng: np.random.Generator, scores: np.ndarray, moved: bool) -> TableMaps:
    """Maps one after the other, and where they are moved twice as many entries."""
    found = [one_map(rng, scores) for _ in range(5)]
    rows = {
        name: np.concatenate([getattr(one, name) for one in found])
        for name in CalibrationMap.__dataclass_fields__
    }
    starts = np.concatenate([[0], np.cumsum([len(one) for one in found])])
    if not moved:
        return TableMaps(SegmentedLookup(None, rows, starts, [], np.zeros(5, np.int64), None, None), ("s",))
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
    lookup = SegmentedLookup(None, rows, starts, [], np.zeros(5, np.int64), None, None, adjustments)
    return TableMaps(lookup, ("s",))


class Brute:
    """A table's maps, one score at a time."""

    def __init__(self, maps: TableMaps) -> None:
        self.maps, self.adjustments = maps, getattr(maps.table, "adjustments", None)
        names = CalibrationMap.__dataclass_fields__
        self.own = [
            CalibrationMap(**{name: maps.rows(name)[a:b] for name in names})
            for a, b in zip(maps.starts[:-1], maps.starts[1:], strict=True)
        ]

    def map_of(self, place: int) -> CalibrationMap:
        return self.own[place if self.adjustments is None else self.adjustments.map[place]]

    def predict(self, score: float, place: int) -> float:
        p = float(self.map_of(place).predict(score))
        return p if self.adjustments is None else self.adjustments.apply_one(p, place, score)


def brute(old: Brute, new: Brute, a: int, b: int, finer: Brute, lowest: float, highest: float) -> list[float]:
    """As `TwoTables.changes`, of the maps at two places."""
    inner = {*old.map_of(a).score_hi.tolist(), *new.map_of(b).score_hi.tolist()}
    edges = sorted({lowest, highest} | {x for x in inner if lowest <= x <= highest})
    weighing = finer.map_of(a if finer is old else b)
    pieces = [(edges[0], edges[0])] if lowest == highest else list(itertools.pairwise(edges))
    middles = [low / 2 + high / 2 for low, high in pieces]
    rows = [int(np.searchsorted(weighing.score_hi[:-1], middle, side="right")) for middle in middles]
    width = dict.fromkeys(rows, 0.0)
    for row, (low, high) in zip(rows, pieces, strict=True):
        width[row] += high - low
    weights = [
        float(weighing.weight[row]) * ((high - low) / width[row] if width[row] > 0 else 1 / rows.count(row))
        for row, (low, high) in zip(rows, pieces, strict=True)
    ]
    whole = 0.0
    for weight in weights:
        whole += weight
    shares = [weight / whole if whole > 0 else 1 / len(pieces) for weight in weights]
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
    places = [5 if one.table.adjustments is None else 10 for one in (old, new)]
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


def test_of_no_pairs_nothing_is_found():
    maps = some_maps(np.random.default_rng(0), GRIDS["few"], moved=True)
    none = np.empty(0, np.int64)
    assert TwoTables(maps, maps, 0.0, 1.0).changes(none, none).shape == (5, 0)


def table_of(folder, seed, columns, method, *, lean):
    """A published table of a log with ties and of segments that another log may not have."""
    rng = np.random.default_rng(seed)
    rows = 3000
    score = rng.integers(0, 100, rows) / 100
    a, b = rng.integers(seed, 9 + seed, rows), rng.integers(0, 3, rows)
    score[a == 5] = 0.5  # a map of one point
    log = pa.table(
        {
            "score": score,
            "label": (rng.random(rows) < (a / 30 + score) / 2).astype(np.int8),
            "a": pa.array(a, mask=a == 7),
            "b": pa.array(np.array(["", "x", "y"])[b]),
        }
    )
    (folder / "scratch").mkdir(parents=True)
    opened = open_log(write_log(folder / "log", log, 1, 1 << 20), Columns("score", "label", None, columns))
    params = {"max_error": 1e-3} if method == "platt" else {}  # hundreds of rows a map, not thousands
    recipe = Recipe(method, params, columns=columns, rules=SegmentRules(50, 5, lean=lean))
    rows = sorted_rows(opened, SortPlan(folder / "scratch"), Shuffled())
    fit = fit_segments(recipe, rows, Shuffled())[0]
    files = segmented_files(fit, columns, FACTS)
    (folder / "lookup.parquet").write_bytes(files.lookup_bytes("000001-x"))
    (folder / "segments.parquet").write_bytes(files.segments)
    return str(folder / "lookup.parquet"), columns


@pytest.mark.parametrize(
    ("methods", "lean", "columns"),
    [
        (("isotonic", "isotonic"), (True, True), (("a", "b"), ("a", "b"))),
        (("isotonic", "isotonic"), (True, False), (("a",), ("a", "b"))),
        (("platt", "platt"), (False, False), (("a", "b"), ("a",))),
        (("histogram", "platt"), (False, False), (("b", "a"), ("a",))),
    ],
)
def test_tables_are_compared_segment_by_segment(tmp_path, methods, lean, columns):
    old, new = (
        table_of(tmp_path / name, seed, names, method, lean=own)
        for name, seed, names, method, own in zip(("old", "new"), (0, 1), columns, methods, lean, strict=True)
    )
    finer = old if set(new[1]) < set(old[1]) else new
    change = change_of_tables(old, new, 0.01, 0.99)
    lookups = [cached_segmented_lookup(path) for path, _ in (old, new)]
    whole = lookups[(old, new).index(finer)]
    assert change.keys == whole.keys
    tables = [Brute(TableMaps.at(*place)) for place in (old, new)]
    found = np.array(
        [
            [one.mean, one.largest, one.at, one.mean_old, one.mean_new]
            for one in map(change.of, range(len(whole.keys)))
        ]
    )
    for i, key in enumerate(whole.keys):
        named = dict(zip(finer[1], key, strict=True))
        places = [
            int(
                lookup.index.find(
                    [
                        pa.array([named[name]], column.type)
                        for name, column in zip(place[1], lookup.owners, strict=True)
                    ]
                )[0][0]
            )
            for lookup, place in zip(lookups, (old, new), strict=True)
        ]
        wanted = brute(*tables, *places, tables[(old, new).index(finer)], 0.01, 0.99)
        np.testing.assert_array_equal(found[i], wanted, err_msg=str(key))
    share = change.rows / change.rows.sum()
    assert change.whole.mean == pytest.approx(share @ found[:, 0], rel=1e-12)
    assert change.whole.largest == found[:, 1].max() > 0
    assert change.rows.sum() == 3000
