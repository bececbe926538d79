"""Segments that borrow strength: equal to doing it in memory with scipy and scikit-learn, however the work is cut."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from common import FACTS, fit_segments, write_log
from scipy import optimize, special
from scipy.special import expit, logit
from sklearn.isotonic import IsotonicRegression, isotonic_regression

import logcal
from calibrators import Isotonic, collapse
from calibrators.auto.calibrator import Auto
from calibrators.core.fine_cells import fine_cells_pass
from calibrators.core.map import MapBlockRanges
from calibrators.segments import adjusting, crossing
from calibrators.segments.adjusting import SHIFTS, SLOPES, UNLIKELY, BlockCells, adjust
from calibrators.segments.bends import STRENGTH
from calibrators.segments.curves import curve_of
from calibrators.segments.kernels import adjusting as kernel
from calibrators.segments.own import choose_maps, least_evidence
from calibrators.segments.partial_pooling import BlockRanges, cells_within, own_maps
from calibrators.segments.totals import large, shifts_by_size
from calibrators.segments.wide_ranges import cell_begins, divide
from jobs import tables
from logcal.adjustments import Adjustments, adjust_map
from logcal.errors import InputRejectedError
from logcal.reading import read_table
from logcal.table import Table
from pipeline.fit import pooled_cells, pooled_segments
from pipeline.fit.calibration import Recipe
from pipeline.fit.self_check import check_all_rows
from pipeline.log.logs import Columns, open_log
from pipeline.log.segment_values import KeyColumns
from pipeline.sort import run_files, segment_tasks
from pipeline.sort.score_table import SortPlan
from pipeline.table.lookup_table import segmented_files
from pipeline.table.segment_maps import SegmentRules
from tests.sorted_logs import Shuffled, run, sorted_rows

RULES = SegmentRules(1, 60, partial_pooling=True)


def some_log(
    seed: int, rows: int = 4000, differ: float = 1.0, ties: bool = False, wave: float = 0.0
) -> pa.Table:
    """Two segment columns; each segment has a shift and a slope of its own, as far as `differ` says, and a wave."""
    rng = np.random.default_rng(seed)
    score = rng.integers(0, 60, rows) / 60 if ties else rng.random(rows)
    a, b = np.minimum(rng.zipf(1.5, rows), 9), rng.integers(0, 3, rows)
    shift, slope = differ * rng.normal(0, 0.8, (10, 3)), np.exp(differ * rng.normal(0, 0.3, (10, 3)))
    bent = wave * np.sin(9 * score + np.random.default_rng(seed).uniform(0, 6, (10, 3))[a, b])
    p = expit(-2 + shift[a, b] + slope[a, b] * 4 * (score - 0.5) + bent)
    return pa.table(
        {
            "score": score,
            "label": (rng.random(rows) < p).astype(np.int8),
            "w": rng.choice([0.25, 1.0, 3.0], rows),
            "a": pa.array(a, mask=a == 8),
            "b": pa.array(np.array(["", "x", "y"])[b], mask=rng.random(rows) < 0.05),
        }
    )


def fit(
    folder,
    table,
    columns=("a", "b"),
    weighted=False,
    cut=(1, 1 << 20),
    rate=1.0,
    params=None,
    method="isotonic",
    **sizes,
):
    path = write_log(folder / "log", table, *cut)
    log = open_log(path, Columns("score", "label", "w" if weighted else None, columns))
    (folder / "scratch").mkdir()
    plan = SortPlan(folder / "scratch", **sizes)
    recipe = Recipe(method, params or {}, sampling_rate=rate, columns=columns, rules=RULES)
    return fit_segments(recipe, sorted_rows(log, plan, Shuffled()), Shuffled())[0]


def published(folder, found, columns=("a", "b")):
    files = segmented_files(found, columns, FACTS)
    for name, content in files.files("000001-x").items():
        (folder / name).write_bytes(content)
    return files, str(folder / "lookup.parquet")


def logit_of_finite(score, weight, p):
    """Log-odds with the rule for levels of 0 and 1."""
    p = p.copy()
    if p.min() == 0:
        low = p == 0
        p[low] = min(0.5 / (weight[low].sum() + 1), p[~low].min())
    if p.max() == 1:
        high = p == 1
        p[high] = 1 - min(0.5 / (weight[high].sum() + 1), 1 - p[~high].max())
    return logit(p)


def moved_by(base, x, label, weight, variances, floor):
    """The most likely shift and slope, by scipy."""
    a_variance, d_variance = variances

    def loss(theta):
        a, d = theta[0] * (a_variance > 0), theta[1] * (d_variance > 0)
        eta = base + a + d * x
        likelihood = (weight * (label * eta - np.logaddexp(0, eta))).sum()
        return (
            -likelihood
            + (a**2 / (2 * a_variance) if a_variance else theta[0] ** 2)
            + (d**2 / (2 * d_variance) if d_variance else theta[1] ** 2)
        )

    bounds = [(None, None), (floor, None)]
    best = optimize.minimize(loss, [0, max(floor, 0)], bounds=bounds, method="L-BFGS-B", tol=1e-15)
    if best.x[1] > floor:
        finer = {"xatol": 1e-9, "fatol": 1e-13}
        best = optimize.minimize(loss, best.x, bounds=bounds, method="Nelder-Mead", options=finer)
    return np.array([best.x[0] * (a_variance > 0), best.x[1] * (d_variance > 0)]), -best.fun


def information_of(eta, x, weight):
    q = expit(eta)
    design = np.stack([np.ones(x.size), x])
    return (design * (weight * q * (1 - q))) @ design.T


def grown(v):
    """The variance that stands for v in expected probabilities."""
    return 4 * (np.sqrt(1 + v / 2) - 1)


def line_of(at, x, weight):
    """The lines nearest to (1 - 2 p) x**k by information, k = 0, 1, 2."""
    p = expit(at)
    by = np.sqrt(weight * p * (1 - p))
    return np.array([np.polyfit(x, (1 - 2 * p) * x**k, 1, w=by)[::-1] for k in range(3)])


def adjusted(at, x, label, weight, groups, variances, typical):
    """Shift and slope - 1 of each group's expected probabilities, and how many groups are outliers; weight counts."""
    wide, line, floor = (16.0, 1.0), line_of(at, x, weight), -1 - typical[1]
    curves, outliers = np.empty((len(groups), 2)), 0
    for g, rows in enumerate(groups):
        own = (label[rows], weight[rows])
        base = at[rows] + typical[0] + typical[1] * x[rows]
        found = []
        for prior in (variances, wide):
            (a, d), value = moved_by(base, x[rows], *own, prior, floor)
            h = information_of(base + a + d * x[rows], x[rows], own[1])
            inner = np.eye(2) + np.diag(prior) @ h
            found.append((value - np.log(np.linalg.det(inner)) / 2, np.array([a, d]), prior, inner))
        outlier = found[1][0] - found[0][0] > np.log(1000)
        outliers += outlier
        _, theta, prior, inner = found[int(outlier)]
        curves[g] = typical + theta
        if theta[1] > floor:
            v = np.linalg.inv(inner) @ np.diag(prior)
            cross = v[0, 1] / np.sqrt(1 + abs(v[0, 1]) / 2)
            terms = np.array([grown(v[0, 0]) / 2, cross, grown(v[1, 1]) / 2])
            curves[g] += terms @ line
            curves[g, 1] = max(curves[g, 1], -1.0)
    if not curves.any():
        return curves, outliers
    labels = (weight * label).sum(), (weight * (1 - label)).sum()
    for _ in range(30):
        eta = np.concatenate(
            [at[rows] + a + d * x[rows] for rows, (a, d) in zip(groups, curves, strict=True)]
        )
        own, hits = (np.concatenate([v[rows] for rows in groups]) for v in (weight, label))
        missing = (own * (hits - expit(eta))).sum()
        if abs(missing) <= 1e-3 * min(labels):
            break
        curves[:, 0] += missing / (own * expit(eta) * (1 - expit(eta))).sum()
    return curves, outliers


def bent(eta, cell, label, weight, sigma):
    """Log-odds with cosines of the information below, each cell in the middle of its own; found from 64 of them."""
    q = expit(eta)
    own = np.bincount(cell, weight * q * (1 - q))
    rank = ((np.cumsum(own) - own / 2) / own.sum())[cell]
    place = np.unique(np.floor(64 * rank), return_inverse=True)[1]
    mass, expected, positives, ranks = (
        np.bincount(place, weight * x) for x in (np.ones(rank.size), q, label, rank)
    )
    middle, j = logit(expected / mass), np.arange(1, 9)
    cosines, every = (np.cos(np.pi * np.outer(j, u)) for u in (ranks / mass, rank))

    def loss(theta):
        f = middle + theta @ cosines
        return ((theta * j / sigma) ** 2).sum() / 2 - (positives * f - mass * np.logaddexp(0, f)).sum()

    def gradient(theta):
        return theta * (j / sigma) ** 2 - cosines @ (positives - mass * expit(middle + theta @ cosines))

    best = optimize.minimize(loss, np.zeros(8), jac=gradient, method="BFGS", options={"gtol": 1e-9})
    return eta + best.x @ every


def in_memory(table, columns, weighted, found, method, across):
    """Every row's probability by levels, row by row and not by cells; what the evidence chose is given.

    across : what it chose for effects across parents
    """
    score, label = np.asarray(table["score"]), np.asarray(table["label"], float)
    weight = np.asarray(table["w"]) if weighted else np.ones(score.size)
    keys = list(zip(*(table[name].to_pylist() for name in columns), strict=True))
    if method == "auto":  # rows see the curve through its mean in isotonic blocks
        p = Auto().fit(score, label, weight).predict(score)
        levels = IsotonicRegression().fit(score, label, sample_weight=weight).predict(score)
        ranges = np.stack(
            [levels, np.searchsorted(lower_ends(method, score, label, weight), score, side="right")]
        )
        blocks = np.unique(ranges, axis=1, return_inverse=True)[1].ravel()
        at, exact = logit((np.bincount(blocks, weight * p) / np.bincount(blocks, weight))[blocks]), logit(p)
    else:
        extra = [np.append(score, [score.min() - 1, score.max() + 1]), np.append(label, [1, 0])]
        whole = IsotonicRegression().fit(*extra, sample_weight=np.append(weight, [1, 1]))
        at = logit_of_finite(score, weight, whole.predict(score))
        exact = at.copy()
    part = np.searchsorted(lower_ends(method, score, label, weight), score, side="right")
    identity = np.array([[0.0], [1.0]])
    lines, before = (np.repeat(identity, score.size, axis=1) for _ in range(2))
    for level, variances in enumerate(found.variances, 1):
        facts, centre = found.levels[level].bend_facts, np.empty(score.size)
        assert facts["common_bend"] == 0
        count, curve = weight / facts["dispersion"], at.copy()
        for rows in groups_of([key[: level - 1] for key in keys]):
            p = expit(lines[0, rows] + lines[1, rows] * at[rows])
            centre[rows] = np.average(at[rows], weights=weight[rows] * p * (1 - p))
        if level > 1:
            parents = groups_of([key[: level - 1] for key in keys])
            values = groups_of([key[level - 1] for key in keys])
            values = [v for v in values if len({keys[i][: level - 1] for i in v}) > 1]
            before = crossed(at, lines, before, parents, values, (label, count), across)
            assert not np.array_equal(before, lines)
        groups = groups_of([key[:level] for key in keys])
        typical = np.array([facts["typical_shift"], facts["typical_slope"]])
        x = at - centre - facts["pivot"]
        curves, outliers = adjusted(before[0] + before[1] * at, x, label, count, groups, variances, typical)
        assert outliers == 0
        lines = before.copy()
        for rows, (a, d) in zip(groups, curves, strict=True):
            lines[:, rows] += np.stack([a - d * (centre[rows] + facts["pivot"]), np.full(rows.size, d)])
            own, ends = at.copy(), exact.copy()
            own[rows] = lines[0, rows] + lines[1, rows] * at[rows]
            if own_map(rows, curve, part, own, ends, score, label, weight, facts["bend"]):
                lines[:, rows] = before[:, rows] = identity
                at[rows], exact[rows] = own[rows], ends[rows]
    assert not across
    return expit(lines[0] + lines[1] * exact)


def crossed(base, lines, before, parents, values, counts, chosen):
    """Shift and slope of base for each row, from effects of values and of parents that add up, in turns.

    chosen : what the evidence chose each time, in this order; used up
    """

    def effects(line, groups):
        at, evidence = line[0] + line[1] * base, chosen.pop(0)
        shared = np.concatenate(groups)
        own = counts[1] * expit(at) * (1 - expit(at))
        middle = np.average(base[shared], weights=own[shared]) + evidence.pivot
        starts = np.cumsum([0, *map(len, groups)])
        within = [np.arange(*ends) for ends in pairwise(starts)]
        rows = (at[shared], base[shared] - middle, *(x[shared] for x in counts))
        curves, _ = adjusted(*rows, within, evidence.variances, evidence.typical)
        added = np.zeros((2, base.size))
        for rows, (a, d) in zip(groups, curves, strict=True):
            added[:, rows] = np.array([[a - d * middle], [d]])
        return added

    information = counts[1] * expit(lines[0] + lines[1] * base) * (1 - expit(lines[0] + lines[1] * base))
    middle = np.average(base, weights=information)
    of_parent = first = lines - before
    of_value = effects(of_parent + before, values)
    for _ in range(2):
        new = effects(of_value + before, parents)
        new[1] += np.average(first[1] - new[1], weights=information)
        new[0] += np.average(([1, middle] @ (first - new)), weights=information)
        moved, of_parent = new - of_parent, new
        if np.average(np.hypot([1, middle] @ moved, moved[1]), weights=information) <= 0.01:
            break
        of_value = effects(of_parent + before, values)
    shift, slope = of_parent + of_value + before
    assert slope.min() > 0
    return np.array([shift, slope])


def lower_ends(method, score, label, weight):
    """Where the ranges of all rows begin that segments' rows are added up in."""
    fine, points = fine_cells_pass(), collapse(score, label, weight)
    whole = (Auto() if method == "auto" else Isotonic()).fit(score, label, weight)
    return divide(whole.block_ranges(), whole.fine_cells_ or fine.combine([fine.chunk(points)]), None).edges


def own_map(rows, before, part, at, exact, score, label, weight, sigma):
    """Replace the log-odds of a segment with enough rows by those of its own map, if segments bend; say if so."""
    if sigma == 0 or min(label[rows].sum(), (1 - label[rows]).sum()) < RULES.min_positives:
        return False
    ranges, own = np.stack([before[rows].round(9), part[rows]]), weight[rows]
    cell = np.unique(ranges, axis=1, return_inverse=True)[1].ravel()
    curve = bent(at[rows], cell, label[rows], own, sigma)
    total = (own * label[rows]).sum()
    shift = optimize.brentq(lambda s: (own * expit(curve + s)).sum() - total, -20, 20, xtol=1e-14)
    q = expit(curve + shift)
    information = own * q * (1 - q)
    penalty = 1 - 0.5 * np.bincount(cell, information).max() / information.sum()
    tried = []
    for strength in (3000, 1000, 300, 100):
        c = strength / information.sum()
        target = (label[rows] + c * q) / (1 + c)
        p = IsotonicRegression().fit(score[rows], target, sample_weight=own).predict(score[rows])
        gain = (own * np.where(label[rows] > 0, np.log(p), np.log1p(-p))).sum()
        tried.append((gain - penalty * np.unique(p).size / (1 + c) - (strength < 3000), p))
    at[rows] = exact[rows] = logit(max(tried, key=lambda entry: entry[0])[1])
    part[rows] = 0  # its own map's blocks count from now on
    return True


def groups_of(keys):
    """The rows of each key."""
    found = {}
    for i, key in enumerate(keys):
        found.setdefault(key, []).append(i)
    return list(map(np.array, found.values()))


@pytest.mark.parametrize(
    ("seed", "columns", "weighted", "wave", "method"),
    [
        (0, ("a", "b"), False, 1.5, "auto"),
        (1, ("b", "a"), True, 0.0, "auto"),
        (2, ("a",), False, 2.0, "auto"),
        (0, ("a", "b"), False, 1.5, "isotonic"),
        (3, ("b", "a"), True, 0.0, "isotonic"),
    ],
)
def test_equals_doing_it_in_memory(tmp_path, monkeypatch, seed, columns, weighted, wave, method):
    # no own maps of segments that contradict their curve
    monkeypatch.setattr(pooled_cells, "least_evidence", lambda segments: np.inf)
    across = []

    def recorded(*arguments):
        across.append(adjust(*arguments))
        return across[-1]

    monkeypatch.setattr(crossing, "adjust", recorded)
    table = some_log(seed, rows=2500, ties=seed == 1, wave=wave)
    sizes = {"cut": (3, 100), "run_rows": 500, "bucket_bytes": 2000}
    found = fit(tmp_path, table, columns, weighted, method=method, **sizes)
    assert max(found.variances[0]) > 0
    for level in found.levels[1:]:
        assert any(level.maps.sizes) == (level.bend_facts["bend"] > 0)
    assert any(level.bend_facts["bend"] > 0 for level in found.levels[1:]) == (wave > 0)
    assert (len(across) > 1) == (len(columns) > 1)
    assert len(columns) == 1 or any(level.bend_facts["pivot"] != 0 for level in found.levels[1:])
    weight = np.asarray(table["w"])
    effect = (weight**2).sum() / weight.sum() if weighted and seed != 1 else 1.0
    assert all(level.bend_facts["dispersion"] == pytest.approx(effect, rel=0.1) for level in found.levels[1:])
    _, path = published(tmp_path, found, columns)
    got = Table(read_table(path)).predict(np.asarray(table["score"]), table)
    expected = logit_of_all(in_memory(table, columns, weighted, found, method, across))
    np.testing.assert_allclose(logit(got), expected, atol=2e-5)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_large_country_without_positives_does_not_flatten_another(tmp_path, seed):
    rng = np.random.default_rng(seed)
    large = rng.random(20_000) < 0.9
    x = rng.normal(size=large.size) - 2.0 * ~large
    truth = np.where(large, 0.0, expit(1.2 * x + 0.3))
    label = rng.random(large.size) < truth
    device = np.minimum(rng.geometric(0.1, large.size) - 1, 29)
    table = pa.table({"score": expit(x), "label": label.astype(np.int8)})
    for name, codes in (("a", large), ("b", device)):
        table = table.append_column(name, pa.array([f"{name}{code:d}" for code in codes]))
    found = fit(tmp_path, table, ("a", "b"))
    _, path = published(tmp_path, found, ("a", "b"))
    score, small = expit(x), ~large
    p = Table(read_table(path)).predict(score, table)[small]
    alone = Isotonic().fit(score[small], label[small]).predict(score[small])

    def divergence(q):
        t, q = truth[small], np.clip(q, 1e-9, 1 - 1e-9)
        return np.mean(t * np.log(t / q) + (1 - t) * np.log((1 - t) / (1 - q)))

    assert divergence(p) < 3 * divergence(alone)


def logit_of_all(p):
    assert p.min() > 0
    assert p.max() < 1
    return logit(p)


def lines_log(rows=150_000, segments=12, rate=1.0):
    """Segments whose log odds are lines of the score: the mean of their probabilities bends."""
    rng = np.random.default_rng(5)
    segment = rng.integers(0, segments, rows)
    shift, slope = np.linspace(-3, 3, segments), 1 + 0.2 * rng.normal(size=segments)
    x = rng.normal(size=rows).round(2)
    p = expit(-1.5 + shift[segment] + slope[segment] * x)
    label = rng.random(rows) < p
    kept = label | (rng.random(rows) < rate)
    table = pa.table({"score": x, "label": label.astype(np.int8), "a": [f"s{i}" for i in segment]})
    return table.filter(pa.array(kept)), p[kept]


@pytest.mark.parametrize(
    ("method", "rate", "share"), [("auto", 1.0, 0.5), ("isotonic", 1.0, 0.85), ("auto", 0.5, 0.8)]
)
def test_lines_of_segments_are_found_though_their_mean_bends(tmp_path, monkeypatch, method, rate, share):
    table, truth = lines_log(rate=rate)
    score, segment = np.asarray(table["score"]), np.asarray(table["a"])

    def fitted(name):
        (tmp_path / name).mkdir()
        found = fit(tmp_path / name, table, ("a",), method=method, rate=rate)
        _, path = published(tmp_path / name, found, ("a",))
        return found, Table(read_table(path)).predict(score, table)

    found, p = fitted("bent")
    monkeypatch.setattr(pooled_segments, "bend_in_common", lambda cells, adjusted, *_: (None, adjusted))
    _, before = fitted("adjusted")

    def divergence(q):
        return np.mean(truth * np.log(truth / q) + (1 - truth) * np.log((1 - truth) / (1 - q)))

    assert divergence(p) < share * divergence(before)
    level = found.levels[1]
    assert level.bend_facts["common_bend"] > 0
    assert max(level.maps.sizes) == 0
    assert set(level.bent) == {-4}
    weights = np.asarray(table["label"]) + (1 - np.asarray(table["label"])) / rate
    for name in np.unique(segment):
        rows = segment == name
        assert (weights * p)[rows].sum() == pytest.approx(np.asarray(table["label"])[rows].sum(), rel=0.01)
        order = np.argsort(score[rows], kind="stable")
        assert (np.diff(p[rows][order]) >= 0).all()
    assert level.bent[-4].weight.sum() == table.num_rows
    assert level.bent[-4].positives.sum() == np.asarray(table["label"]).sum()
    assert np.abs(logit(p)).max() < 28


def test_the_mean_of_effects_of_two_columns_bends(tmp_path, monkeypatch):
    rng = np.random.default_rng(6)
    a, b = rng.integers(0, 60, 200_000), rng.integers(0, 5, 200_000)
    x = 1.2 * rng.normal(size=a.size)
    truth = expit(x + rng.normal(0, 0.7, 60)[a] + np.linspace(-3, 3, 5)[b])
    score, label = expit(x), rng.random(a.size) < truth
    table = pa.table({"score": score, "label": label.astype(np.int8), "a": a, "b": b})

    def fitted(name):
        (tmp_path / name).mkdir()
        found = fit(tmp_path / name, table, ("a", "b"))
        _, path = published(tmp_path / name, found, ("a", "b"))
        p = Table(read_table(path)).predict(score, table)
        return found, np.mean(truth * np.log(truth / p) + (1 - truth) * np.log((1 - truth) / (1 - p))), p

    found, divergence, p = fitted("bent")
    assert set(found.levels[2].bent) <= {-5, -6, -7, -8}
    assert found.levels[2].bent
    for rows in np.array_split(np.argsort(score), 10):
        assert abs((label - p)[rows].sum()) < 3 * np.sqrt((p * (1 - p))[rows].sum())
    monkeypatch.setattr(pooled_segments, "bend_in_common", lambda cells, adjusted, *_: (None, adjusted))
    _, before, _ = fitted("adjusted")
    assert divergence < 0.8 * before


@pytest.mark.parametrize("method", ["isotonic", "auto"])
def test_the_table_depends_on_rows_alone(tmp_path, method, monkeypatch):
    rng = np.random.default_rng(1)
    table, weighted, columns = some_log(1, ties=True, wave=1.5 * (method == "auto")), True, ("b", "a")
    if method == "isotonic":
        table, columns = with_inverted(some_log(5, differ=0.3)), ("a", "b")
    made = []
    for layout in range(3):
        monkeypatch.setattr(run_files, "SAMPLE_STRIDE", int(rng.choice([1, 16, 1024])))
        monkeypatch.setattr(segment_tasks, "MOST_POOLED", int(rng.choice([1, 7, 2048])))
        monkeypatch.setattr(adjusting, "_PIECE", int(rng.choice([1, 5, 1 << 16])))
        monkeypatch.setattr(adjusting, "_MOST_PIECES", int(rng.choice([3, 64, 500])))
        # Cells in memory, or read where they are looked at.
        monkeypatch.setattr(pooled_cells, "MOST_IN_MEMORY", int(rng.choice([0, 1 << 22])))
        (tmp_path / str(layout)).mkdir()
        own = table.take(rng.permutation(table.num_rows)) if layout else table
        cut = (int(rng.integers(1, 7)), int(rng.integers(20, 5000)))
        sizes = {
            "run_rows": int(rng.integers(40, 5000)),
            "bucket_bytes": int(rng.choice([900, 9000, 1 << 24])),
        }
        found = fit(tmp_path / str(layout), own, columns, weighted, cut=cut, method=method, **sizes)
        assert method == "auto" or found.levels[0].maps.first().weight.sum() < np.asarray(table["w"]).sum()
        files = segmented_files(found, columns, FACTS)
        made.append(files.files("000001-x"))
    assert made[0] == made[1] == made[2]


def with_inverted(table):
    """The log, and three quarters of its rows inverted in one more segment."""
    size = 3 * len(table) // 4
    odd = {"label": 1 - np.asarray(table["label"]), "a": np.full(size, 100), "b": np.full(size, "z")}
    columns = {name: odd.get(name, np.asarray(table[name]))[:size] for name in table.column_names}
    return pa.concat_tables([table, pa.table(columns).cast(table.schema)])


@pytest.mark.parametrize("method", ["auto", "isotonic"])
@pytest.mark.parametrize("weighted", [False, True])
def test_outlying_segments_are_left_out_of_the_map_of_all_rows(tmp_path, method, weighted):
    table = some_log(5, differ=0.3)
    found, alone = (
        fit(tmp_path / name, log, weighted=weighted, method=method)
        for name, log in (("both", with_inverted(table)), ("alone", table))
    )
    first, expected = (fitted.levels[0].maps.first() for fitted in (found, alone))
    assert_equal_maps(first, expected)
    assert [found.levels[1].keys[i] for i in found.levels[1].outlying] == [(100,)]
    p, q = (
        Table(read_table(published(tmp_path / name, fitted)[1])).predict(np.asarray(table["score"]), table)
        for name, fitted in (("both", found), ("alone", alone))
    )
    # The outlier is left to the evidence and to the effects across parents.
    assert (q * np.log(q / p) + (1 - q) * np.log((1 - q) / (1 - p))).mean() < 2e-3


def assert_equal_maps(first, second):
    for name in ("score_lo", "score_hi", "prob_lo", "slope", "weight", "positives"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


def test_few_outlying_rows_are_not_left_out(tmp_path):
    table = some_log(5, rows=40_000)
    odd = with_inverted(some_log(5, rows=40)).slice(40)
    found = fit(tmp_path, pa.concat_tables([table, odd]))
    assert found.levels[0].maps.first().weight.sum() == 40_030


def test_segments_that_do_not_differ_have_their_parents_map_exactly(tmp_path):
    table = some_log(10, differ=0.0)
    few = pa.table({**{name: table[name] for name in table.column_names}, "a": np.arange(4000) % 50})
    found = fit(tmp_path, few, ("a",))
    assert found.variances == ((0.0, 0.0),)
    files, path = published(tmp_path, found, ("a",))
    assert files.sources == {"global": 50}
    score = np.asarray(few["score"])
    read = read_table(path)
    np.testing.assert_array_equal(Table(read).predict(score, few), read.map.predict(score))


@pytest.mark.parametrize("method", ["isotonic", "auto"])
@pytest.mark.parametrize("scores", [2, 4000])
def test_segments_of_a_map_with_one_value(tmp_path, method, scores):
    rng = np.random.default_rng(0)
    score = rng.integers(0, scores, 4000) / scores
    label = (rng.random(4000) < 0.8 - 0.6 * score).astype(np.int8)
    table = pa.table({"score": score, "label": label, "a": rng.integers(0, 4, 4000)})
    found = fit(tmp_path, table, ("a",), method=method)
    _, path = published(tmp_path, found, ("a",))
    p = Table(read_table(path)).predict(score, table)
    assert np.ptp(p) < 0.2
    assert p.sum() == pytest.approx(label.sum(), rel=0.01)


def test_maps_never_decrease_and_never_answer_0_or_1(tmp_path):
    table = some_log(6)
    _, path = published(tmp_path, fit(tmp_path, table, params={"ends": 0}))
    loaded = read_table(path)
    assert loaded.map.predict(-1.0) == 0
    score = np.sort(np.concatenate([np.random.default_rng(0).random(3000) * 1.2 - 0.1, [-np.inf, np.inf]]))
    adjusted = 0
    for key in [*loaded.keys, (None, "never seen"), (77, "x")]:
        found = Table(loaded).predict(score, dict(zip(loaded.columns, key, strict=True)))
        assert np.diff(found).min() >= 0
        if loaded.entry_of(key) is not None:
            adjusted += 1
            assert 0 < found[0] <= found[-1] < 1
    assert adjusted > 10


@pytest.mark.parametrize("weight", [1e16, 1e100])
def test_rows_as_heavy_as_can_be_have_probabilities(tmp_path, weight):
    table = some_log(3, rows=1000, wave=2.0)
    table = table.set_column(2, "w", pa.array(np.full(1000, weight)))
    _, path = published(tmp_path, fit(tmp_path, table, weighted=True, method="auto"))
    got = Table(read_table(path)).predict(np.asarray(table["score"]), table)
    assert 0 <= got.min() <= got.max() <= 1


def test_crossed_segments_of_unequal_huge_weights_have_probabilities(tmp_path):
    """Evidence is below rounding there: estimates in turns ended at log odds of 1e170."""
    table = some_log(7, rows=3000)
    weight = np.exp(np.random.default_rng(7).normal(size=3000)) * 1e90
    table = table.set_column(2, "w", pa.array(weight))
    _, path = published(tmp_path, fit(tmp_path, table, weighted=True, method="auto"))
    got = Table(read_table(path)).predict(np.asarray(table["score"]), table)
    assert 0 <= got.min() <= got.max() <= 1


@pytest.mark.parametrize("method", ["isotonic", "auto"])
def test_sampled_negatives_multiply_all_odds(tmp_path, method):
    """Fitted to the same rows, the map of all rows has the odds of the log's times the rate."""
    table, rate = some_log(7), 0.05
    # What the curve takes for the odds to begin with are those of all rows.
    score = np.asarray(table["score"]) if method == "isotonic" else np.asarray(table["score"]) * 9 + 2
    table = table.set_column(0, "score", pa.array(score))
    both = []
    for i, own in enumerate((1.0, rate)):
        (tmp_path / str(i)).mkdir()
        _, path = published(tmp_path / str(i), fit(tmp_path / str(i), table, rate=own, method=method))
        both.append(Table(read_table(path)).predict(np.asarray(table["score"]), table))
    tabulated = 1e-9 if method == "isotonic" else 2e-4
    np.testing.assert_allclose(logit(both[1]), logit(both[0]) + np.log(rate), atol=tabulated)


def test_unseen_segments_go_through_the_nearest_known_one(tmp_path):
    table = some_log(8)
    _, path = published(tmp_path, fit(tmp_path, table))
    loaded = read_table(path)
    one, score = Table(loaded), np.linspace(0, 1, 200)
    expected = np.array([
        loaded.adjustments.apply_one(loaded.unadjusted_map((1,)).predict(float(s)), e, float(s))
        if (e := loaded.entry_of((1,))) is not None else loaded.unadjusted_map((1,)).predict(float(s)) for s in score
    ])  # fmt: skip
    np.testing.assert_array_equal(one.predict(score, {"a": 1, "b": "unseen"}), expected)
    np.testing.assert_array_equal(one.predict(score, {"a": 1000, "b": "x"}), loaded.map.predict(score))


def test_counts_within_block_ranges_are_sums_and_isotonic_regressions():
    """Of pooled segments and others, with items of several rows; each range against scikit-learn."""
    rng = np.random.default_rng(3)
    sizes = np.array([40, 0, 1, 7, 300])
    starts, parent = np.cumsum([0, *sizes]), np.array([0, 0, 1, 1, 1], np.int32)
    pooled = np.array([True, True, False, True, True])
    edges = BlockRanges(np.array([0.0, 0.3, 0.6, 0.0, 0.5, 0.55, 0.9]), np.array([0, 3, 7]))
    score = np.concatenate([np.sort(rng.random(n)) for n in sizes])
    weight = rng.integers(1, 4, score.size).astype(np.float64)
    positives = rng.binomial(weight.astype(int), 0.5).astype(np.float64)
    items = (score, score, weight, positives)
    block_range, sums, numbers, kept, counts = cells_within(items, starts, edges, parent, pooled)
    found = iter(zip(block_range.tolist(), *sums.tolist(), strict=True))
    ends, piece, item = iter(np.cumsum(counts).tolist()), 0, 0
    for g, of in enumerate(parent.tolist()):
        begin, own = edges.starts[of], slice(starts[g], starts[g + 1])
        place = np.searchsorted(edges.edges[begin : edges.starts[of + 1]], score[own], side="right") - 1
        assert numbers[0, g] == np.unique(place).size
        before = item
        for i in np.unique(place).tolist():
            s, w, k = (column[own][place == i] for column in (score, weight, positives))
            assert next(found) == (begin + i, w.sum(), k.sum(), s[0])
            if not pooled[g]:
                continue
            level = isotonic_regression(k / w, sample_weight=w)
            # Blocks of one level, up to the rounding of scikit-learn.
            first = np.flatnonzero(np.diff(level, prepend=-1) > 1e-12)
            sizes_of_blocks = [np.add.reduceat(column, first) for column in (w, k)]
            last = np.append(first[1:], s.size) - 1
            item, piece = next(ends), piece + 1
            np.testing.assert_array_equal(
                kept[:, item - counts[piece - 1] : item], [s[first], s[last], *sizes_of_blocks]
            )
        assert numbers[1, g] == item - before
    assert next(found, None) is None
    assert kept.shape[1] == item


def test_keys_in_columns_are_those_in_tuples():
    rows = [(1, "a"), (None, "b"), (3, None)]
    keys = KeyColumns([pa.array(column) for column in zip(*rows, strict=True)])
    assert [keys[i] for i in (0, 1, np.int64(2), -1)] == [*rows, rows[-1]]
    assert keys[1:] == rows[1:]
    assert list(keys) == rows


def test_compiled_or_not_and_one_by_one_give_the_same_bits(monkeypatch):
    rng = np.random.default_rng(9)
    p = np.concatenate([[0.0, 1.0, 1e-300, 1 - 2**-53, 5e-324, np.nan], rng.random(3000) ** 8])
    n = 40
    adjustments = Adjustments(
        np.zeros(n, np.int32),
        rng.normal(0, 8, n) * (np.arange(n) > 2),
        np.where(np.arange(n) > 1, rng.exponential(1, n), 1.0),
        np.full(n, 1e-200),
        np.full(n, 1 - 1e-12),
    )
    entry = rng.integers(0, n, p.size).astype(np.int32)
    monkeypatch.setattr("logcal.adjustments.compiled", lambda _: True)
    compiled = adjustments.apply(p, entry, p)
    monkeypatch.setattr("logcal.adjustments.compiled", lambda _: False)
    np.testing.assert_array_equal(adjustments.apply(p, entry, p), compiled)
    np.testing.assert_array_equal(
        [adjustments.apply_one(v, e, v) for v, e in zip(p.tolist(), entry.tolist(), strict=True)], compiled
    )
    held = np.clip(p, 1e-200, 1 - 1e-12)
    still = (adjustments.shift == 0) & (adjustments.slope == 1)
    moved = expit(adjustments.shift[entry] + adjustments.slope[entry] * logit(held))
    expected = np.where(still[entry], p, moved)
    np.testing.assert_allclose(compiled, expected, rtol=1e-12)


def test_a_flat_sigmoid_has_one_value_at_infinite_scores_too(monkeypatch):
    own = Adjustments(
        np.zeros(1, np.int32),
        np.array([0.25]),
        np.zeros(1),
        np.array([1e-9]),
        np.array([1 - 1e-9]),
        np.ones(1, np.int8),
    )
    score = np.array([-np.inf, 0.0, np.inf])
    for is_compiled in (True, False):
        monkeypatch.setattr("logcal.adjustments.compiled", lambda _, value=is_compiled: value)
        found = own.apply(score.clip(0, 1), np.zeros(3, np.int32), score)
        np.testing.assert_allclose(found, expit(0.25), rtol=1e-12)
        np.testing.assert_array_equal([own.apply_one(0.5, 0, float(s)) for s in score], found)


def test_segments_are_found_by_columns_as_by_their_keys(tmp_path):
    """What their maps were fitted to, and the maps: of a table's own segments, of others, in any order."""
    _, path = published(tmp_path, fit(tmp_path, some_log(10)))
    loaded = read_table(path)
    names = loaded.columns
    kinds = [loaded.finest_segments.schema.field(name).type for name in names]
    others = [(78, None), (77, "x"), (loaded.keys[0][0], "never seen")]
    assert not set(others) & set(loaded.keys)
    for keys in (loaded.keys, loaded.keys[::-1], [*loaded.keys[:3], *others, *loaded.keys[5:]], others):
        columns = [pa.array([key[i] for key in keys], kind) for i, kind in enumerate(kinds)]
        found = loaded.sources_of(columns, "unseen").to_pylist()
        assert found == [loaded.fitted_on.get(key, "unseen") for key in keys]
        for key, one in zip(keys, loaded.maps_of(columns), strict=True):
            expected = loaded.map_of(key)
            for name in ("score_lo", "score_hi", "prob_lo", "slope", "anchor"):
                np.testing.assert_array_equal(getattr(one, name), getattr(expected, name))


def test_an_adjusted_map_is_drawn_within_its_error(tmp_path):
    table = some_log(10)
    _, path = published(tmp_path, fit(tmp_path, table))
    loaded = read_table(path)
    key = next(key for key in loaded.keys if loaded.entry_of(key) is not None)
    one = loaded.map_of(key)
    assert one.monotone
    assert one.problem() is None
    score = np.random.default_rng(0).random(5000) * 1.1 - 0.05
    exact = loaded.adjustments.apply(
        loaded.unadjusted_map(key).predict(score), np.full(score.size, loaded.entry_of(key), np.int32), score
    )
    np.testing.assert_allclose(one.predict(score), exact, rtol=2e-5)
    assert one.weight.sum() == loaded.unadjusted_map(key).weight.sum()
    assert len(adjust_map(one, loaded.adjustments, 0)) >= len(one)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("logit_slope", -0.5),
        ("logit_shift", np.inf),
        ("prob_min", 0.0),
        ("fitted_level", 2),
        ("segment_level", 7),
    ],
)
def test_tables_of_segments_that_cannot_be(tmp_path, column, value):
    _, path = published(tmp_path, fit(tmp_path, some_log(11)))
    beside = tmp_path / "segments.parquet"
    table = pq.read_table(beside)
    values = table[column].to_pylist()
    values[-1] = value
    at = table.schema.get_field_index(column)
    field = table.schema.field(column)
    pq.write_table(table.set_column(at, field, pa.array(values, field.type)), beside)
    with pytest.raises(InputRejectedError, match="fingerprint"):
        read_table(path)


def test_from_a_log_to_its_report(tmp_path):
    table = some_log(13, wave=1.5)
    write_log(tmp_path / "log", table)
    made = run("fit", tmp_path)
    segments = made["segments"]
    assert segments["min_positives"] == 100
    assert set(segments["fitted_on"]) == {"segment", "adjusted"}
    assert [row["level"] for row in segments["variances"]] == [1, 2]
    manifest = json.loads(next((tmp_path / "store").glob("t/versions/*/manifest.json")).read_text())
    assert (manifest["format_version"], manifest["features"]) == ("1", ["segments", "adjustments"])
    run("score", tmp_path, output={"path": str(tmp_path / "scored")})
    scored = pq.read_table(tmp_path / "scored")
    loaded = logcal.load(str(tmp_path / "store"), "t")
    np.testing.assert_array_equal(
        scored["probability"], loaded.predict(scored["score"].to_numpy(), scored.select(["a", "b"]))
    )
    in_sample = {"allow_in_sample": True}
    report = {"path": str(tmp_path / "report")}
    measured = run("evaluate", tmp_path, evaluate=in_sample, report=report)
    assert set(measured["segments"]["fitted_on"]) == {"segment", "adjusted"}
    # Isotonic regression keeps totals, and nearly so do pooled maps.
    mean = np.average(scored["probability"])
    assert mean == pytest.approx(np.mean(scored["label"]), rel=0.01)
    run("fit", tmp_path, segments={"shrinkage": "none", "min_rows": 300})
    found = tables.diff(str(tmp_path / "store"), "t", "000001", "000002", str(tmp_path / "diff.html"))
    assert found.summary["segments"]
    query = tables.sql(str(tmp_path / "store"), "t", "000001", "duckdb", False, None, "log", "score")
    assert "logit_shift" in query.lines[0]


def test_what_a_value_does_everywhere_is_learned_once(tmp_path):
    """Crossed columns: many pairs of few rows, whose second value says all."""
    rng = np.random.default_rng(8)
    rows = 6000
    a, b, x = rng.integers(0, 60, rows), rng.integers(0, 5, rows), rng.normal(size=rows)
    shift = np.array([-1.5, -0.7, 0.0, 0.7, 1.5])
    p = expit(-2 + x + shift[b])
    table = pa.table({"score": x, "label": (rng.random(rows) < p).astype(np.int8), "a": a, "b": b})
    found = fit(tmp_path, table)
    assert found.levels[2].variances_across[0] > 0.25
    assert max(found.variances[0]) < 0.05
    assert max(found.variances[1]) < 0.02
    _, path = published(tmp_path, found)
    got = Table(read_table(path)).predict(x, table)
    assert np.abs(logit(got) - logit(p)).mean() < 0.3


def test_values_of_one_parent_are_no_main_effect(tmp_path):
    table = some_log(5, rows=1500)
    pairs = [f"{x}/{y}" for x, y in zip(table["a"].to_pylist(), table["b"].to_pylist(), strict=True)]
    nested = table.set_column(table.schema.get_field_index("b"), "b", pa.array(pairs))
    assert fit(tmp_path, nested).levels[2].variances_across == (0.0, 0.0)


# Segments that borrow strength


def cells_of(rng, groups=30, shift=0.5, block_range=0.3, rows=200):
    """Groups whose truth is a adjusted curve."""
    level = np.sort(rng.random(12)) * 0.6 + 0.02
    curve = curve_of(level, np.full(12, 100.0))
    parts = []
    for _ in range(groups):
        a, d = rng.normal(0, shift), max(rng.normal(0, block_range), -1)
        blocks = np.flatnonzero(rng.random(12) < 0.7)
        n = rng.integers(1, rows, blocks.size).astype(float)
        x = curve.logit[blocks] - curve.centre
        k = rng.binomial(n.astype(int), expit(curve.logit[blocks] + a + d * x)).astype(float)
        parts.append((curve.logit[blocks], n, k))
    starts = np.concatenate([[0], np.cumsum([len(part[0]) for part in parts])])
    return BlockCells(
        starts,
        np.full(groups, curve.centre),
        *(np.concatenate(column) for column in zip(*parts, strict=True)),
    )


@pytest.mark.parametrize("scale", [1.0, 1e12, 1e70])
def test_the_evidence_is_that_of_its_formula(scale):
    """With determinants beyond what a product of a few can hold, too, and each pair's own mean."""
    rng = np.random.default_rng(5)
    theta, derivatives = rng.normal(0, 0.5, (40, 2)), np.empty((40, 5))
    typical = rng.normal(0, 0.3, (SHIFTS.size, SLOPES.size, 2))
    kind = rng.choice(np.array([kernel.USUAL, kernel.FAR], np.int8), 40)
    expected = np.zeros((SHIFTS.size, SLOPES.size))
    for g in range(40):
        root = rng.normal(0, 1, (2, 2)) * np.sqrt(scale)
        h, gradient = root @ root.T, rng.normal(0, 1, 2)
        derivatives[g] = *gradient, h[0, 0], h[0, 1], h[1, 1]
        estimate = theta[g] + np.linalg.solve(h, gradient)

        def distance(shift, slope, mean, h=h, estimate=estimate):
            inner = np.eye(2) + np.diag([shift, slope]) @ h
            size = inner[0, 0] * inner[1, 1] - inner[0, 1] * inner[1, 0]
            off = estimate - mean
            return off @ h @ np.linalg.solve(inner, off) + np.log(size)

        least = distance(SHIFTS[-1], SLOPES[-1], 0.0) - 2 * np.log(UNLIKELY)
        for i, j in np.ndindex(expected.shape):
            own = distance(SHIFTS[i], SLOPES[j], typical[i, j])
            expected[i, j] -= 0.5 * (min(own, least) if kind[g] == kernel.FAR else own)
    found = np.empty_like(expected)
    kernel.evidence(theta, derivatives, kind, SHIFTS, SLOPES, typical, UNLIKELY, found)
    np.testing.assert_allclose(found, expected, rtol=1e-7)


def test_groups_of_one_class_and_without_rows():
    cells = cells_of(np.random.default_rng(1))
    cells.positives[: cells.starts[1]] = 0
    cells.positives[cells.starts[1] : cells.starts[2]] = cells.weight[cells.starts[1] : cells.starts[2]]
    starts = np.append(cells.starts, cells.starts[-1])
    adjusted = adjust(cells._replace(starts=starts, centre=np.append(cells.centre, 0.3)))
    assert np.isfinite(adjusted.shift).all()
    assert (adjusted.slope >= 0).all()
    # Without rows, a segment has the mean over all curves, moved to the segments' totals.
    assert abs(adjusted.shift[-1]) < 0.5
    assert abs(adjusted.slope[-1] - 1) < 0.1


NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(60)


def test_the_chosen_variances_are_those_of_quadrature():
    """Two-dimensional, with a typical curve for each pair of variances, where the mean is fitted to all segments."""
    cells = cells_of(np.random.default_rng(2), groups=25, shift=0.7, block_range=0.3)
    found = adjust(cells)
    centre = cells.centre + found.pivot
    line = line_of(cells.logit, cells.logit - centre[0], cells.weight)

    def log_evidence(s, t):
        typical = found.centred - grown(s) / 2 * line[0] - grown(t) / 2 * line[2]
        a, d = np.meshgrid(np.sqrt(s) * NODES, np.sqrt(t) * NODES, indexing="ij")
        w = np.log(np.outer(WEIGHTS, WEIGHTS) / (2 * np.pi))
        total = 0.0
        for g in range(25):
            rows = slice(cells.starts[g], cells.starts[g + 1])
            at, k, n = cells.logit[rows], cells.positives[rows], cells.weight[rows]
            x = at - centre[g]
            eta = at + typical[0] + typical[1] * x + a[..., None] + d[..., None] * x
            total += special.logsumexp(w + (k * eta - n * np.logaddexp(0, eta)).sum(axis=2))
        return total

    near = [
        (s, t)
        for s in found.variances[0] * np.array([0.25, 0.5, 1, 2, 4])
        for t in found.variances[1] * np.array([0.125, 0.5, 1, 2, 8])
    ]
    values = {pair: log_evidence(*pair) for pair in near}
    assert values[found.variances] >= max(values.values()) - 1.5


@pytest.mark.parametrize("variances", [(0.25, 0.0625), (1.0, 0.25), (4.0, 0.0)])
def test_the_mean_over_the_typical_segments_is_the_parents_curve(variances):
    """Of thin segments, which have no say themselves, by quadrature; to 4 % where shifts have a deviation of 2."""
    at = np.linspace(-5, -1, 9)
    x = at - at.mean()
    cells = BlockCells(np.array([0, 9]), np.array([at.mean()]), at, np.full(9, 1e-9), 1e-9 * expit(at))
    search = adjusting._Search(cells)
    typical = search._typical_curves(np.array([variances]), 0.0)[0]
    a, d = np.meshgrid(np.sqrt(variances[0]) * NODES, np.sqrt(variances[1]) * NODES, indexing="ij")
    eta = at + typical[0] + typical[1] * x + a[..., None] + d[..., None] * x
    mean = (np.outer(WEIGHTS, WEIGHTS)[..., None] * expit(eta)).sum(axis=(0, 1)) / WEIGHTS.sum() ** 2
    ratio = (mean * (1 - expit(at))).sum() / (expit(at) * (1 - expit(at))).sum()
    assert ratio == pytest.approx(1, abs=0.25 if max(variances) > 1 else 0.1)


@pytest.mark.parametrize("centre", [-4.0, -6.0])
@pytest.mark.parametrize("mixed", [False, True])
def test_thin_segments_expect_as_many_positives_as_they_have(centre, mixed):
    """Many segments of twenty rows and rare events; one big segment with a lower rate beside them, too."""
    rng = np.random.default_rng(3)
    groups, blocks = 4000, 10
    at = np.sort(rng.normal(centre, 1.2, blocks))
    n = np.full((groups, blocks), 2.0)
    shift = rng.normal(0, 0.5, groups)
    if mixed:
        n[0], shift[1:] = 8000.0, shift[1:] + 1.5
    k = rng.binomial(n.astype(int), expit(at + shift[:, None])).astype(float)
    curve = curve_of(np.sort(k.sum(axis=0) / n.sum(axis=0)), n.sum(axis=0))
    starts, logits = np.arange(0, groups * blocks + 1, blocks), np.tile(curve.logit, groups)
    found = adjust(BlockCells(starts, np.full(groups, curve.centre), logits, n.ravel(), k.ravel()))
    p = expit(found.shift[:, None] + found.slope[:, None] * curve.logit)
    assert (n * p).sum() == pytest.approx(k.sum(), rel=0.002)
    assert not found.outlying.any()


@pytest.mark.parametrize("method", ["auto", "isotonic"])
def test_random_weights_do_not_make_segments_differ(tmp_path, method):
    rng = np.random.default_rng(4)
    x, segment, weight = rng.normal(-1, 1.2, 9000), rng.integers(0, 60, 9000), rng.choice([1.0, 2, 5], 9000)
    label = (rng.random(9000) < expit(x)).astype(np.int8)
    table = pa.table({"score": expit(x), "label": label, "w": weight, "a": segment})
    found = fit(tmp_path, table, ("a",), weighted=True, method=method)
    assert max(found.variances[0]) <= 2**-7
    _, path = published(tmp_path, found, ("a",))
    p = Table(read_table(path)).predict(expit(x), table)
    # As far from the truth as one map of so many rows, and not as a map for each segment.
    alone = IsotonicRegression(y_min=1e-4, y_max=1 - 1e-4).fit(x, label, sample_weight=weight).predict(x)
    loss = [
        (expit(x) * np.log(expit(x) / q) + expit(-x) * np.log(expit(-x) / (1 - q))).mean() for q in (p, alone)
    ]
    assert loss[0] < 1.5 * loss[1]


ODD = {
    "no positives": lambda x, rng: np.zeros(x.size),
    "no negatives": lambda x, rng: np.ones(x.size),
    "inverted": lambda x, rng: rng.random(x.size) < expit(-x),
    "separated": lambda x, rng: x > 0.3,
    "shifted": lambda x, rng: rng.random(x.size) < expit(x - 5),
    "three positives": lambda x, rng: np.arange(x.size) < 3,
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("groups", [3, 60])
def test_one_odd_segment_leaves_the_others_alone(kind, groups):
    rng = np.random.default_rng(11)
    at = np.linspace(-3, 3, 13)
    shift = rng.normal(0, 0.3, groups)
    n = np.full((groups, 13), 1200.0 / groups)
    k = rng.binomial(n.astype(int), expit(at + shift[:, None])).astype(float)

    def loss(odd_rows):
        x = np.repeat(at, odd_rows // 13 + 1)[:odd_rows]
        y = ODD[kind](x, np.random.default_rng(1))
        block = np.searchsorted(at, x)
        extra = [np.bincount(block, v, 13)[None] for v in (np.ones(odd_rows), y)]
        w, hits = (np.concatenate([v, e]) if odd_rows else v for v, e in zip((n, k), extra, strict=True))
        rates = isotonic_regression(hits.sum(axis=0) / w.sum(axis=0), sample_weight=w.sum(axis=0))
        curve = curve_of(rates, w.sum(axis=0))
        filled = w.ravel() > 0
        starts = np.append(0, np.cumsum((w > 0).sum(axis=1)))
        found = adjust(
            BlockCells(
                starts,
                np.full(w.shape[0], curve.centre),
                np.tile(curve.logit, w.shape[0])[filled],
                w.ravel()[filled],
                hits.ravel()[filled],
            )
        )
        p = expit(found.shift[:groups, None] + found.slope[:groups, None] * curve.logit)
        truth = expit(at + shift[:, None])
        kl = truth * np.log(truth / p) + (1 - truth) * np.log((1 - truth) / (1 - p))
        return kl.mean(), found

    without = loss(0)[0]
    for rows in (20, 400):
        with_odd, found = loss(rows)
        assert with_odd < 2 * without
        assert not found.outlying[:groups].any()
        assert found.outlying[groups] or rows == 20


def test_small_segments_keep_their_total_where_rates_go_with_sizes(monkeypatch):
    """A few large segments of 80 % positives, and 600 of a few rows with 5 %."""
    rng = np.random.default_rng(0)
    sizes = np.append(np.full(3, 12_000), rng.integers(1, 9, 600))
    rate = np.append(logit([0.75, 0.8, 0.85]), rng.normal(-3, 0.5, 600))
    curve = np.linspace(-1, 1, 4)
    weight = np.stack([rng.multinomial(n, np.full(4, 0.25)) for n in sizes]).astype(float)
    p = expit(rate[:, np.newaxis] + curve)
    positives = rng.binomial(weight.astype(int), p).astype(float)
    starts, logits = np.arange(sizes.size + 1) * 4, np.tile(curve + logit(0.78), sizes.size)
    centre = np.full(sizes.size, logit(0.78))
    cells = BlockCells(starts, centre, logits, weight.ravel(), positives.ravel())

    def missing():
        found = adjust(cells)
        eta = np.repeat(found.shift, 4) + np.repeat(found.slope, 4) * logits
        expected = (cells.weight * expit(eta)).reshape(-1, 4)[3:].sum()
        return (positives[3:].sum() - expected) / np.sqrt((weight * p * (1 - p))[3:].sum())

    assert abs(missing()) < 3
    monkeypatch.setattr(adjusting, "_MOST_SHIFTS", 0)
    assert abs(missing()) > 6


def test_sizes_within_a_factor_of_three_go_with_rates_where_negatives_are_sampled():
    """Of 4,000 segments with 200 rows each a tenth of the negatives is kept: more rows mean more positives."""
    rng = np.random.default_rng(1)
    curve, kept = np.linspace(-1, 1, 4) - 3.5, 0.1
    p = expit(rng.normal(0, 0.7, 4000)[:, np.newaxis] + curve)
    positives = rng.binomial(50, p).astype(float)
    weight = positives + rng.binomial(50 - positives.astype(int), kept)
    parent = curve_of(positives.sum(axis=0) / weight.sum(axis=0), weight.sum(axis=0))
    logits = np.tile(parent.logit, 4000)
    starts, centre = np.arange(4001) * 4, np.full(4000, parent.centre)
    found = adjust(BlockCells(starts, centre, logits, weight.ravel(), positives.ravel()))
    q = expit(np.repeat(found.shift, 4) + np.repeat(found.slope, 4) * logits).reshape(-1, 4)
    missing, variance = (positives - weight * q).sum(axis=1), (weight * q * (1 - q)).sum(axis=1)
    rows = weight.sum(axis=1)
    for first in range(int(rows.mean()), int(rows.max())):
        inside = rows >= first
        assert abs(missing[inside].sum()) < 3 * np.sqrt(variance[inside].sum())


def test_sizes_whose_totals_differ_by_chance_have_one_typical_curve():
    rng = np.random.default_rng(1)
    totals = np.stack(
        [rng.integers(1, 5000, 400).astype(float), rng.normal(0, 2, 400), np.full(400, 4.0), np.ones(400)]
    )
    assert not shifts_by_size(totals).any()
    totals[1, totals[0] < 16] += 20.0
    shifts = shifts_by_size(totals)
    assert (shifts[totals[0] < 16] > 0.9).all()
    totals[1:] *= 1e200
    assert np.abs(shifts_by_size(totals)).max() <= 1


def test_large_segments_keep_their_totals_where_the_others_do_not_differ():
    rng = np.random.default_rng(4)
    at, groups = np.linspace(-2, 2, 9), 200
    n = np.full((groups, 9), 640.0)
    k = rng.binomial(640, expit(at), (groups, 9)).astype(float)
    curve = curve_of(k.sum(axis=0) / n.sum(axis=0), n.sum(axis=0))
    cells = BlockCells(
        np.arange(0, 9 * groups + 1, 9),
        np.full(groups, curve.centre),
        np.tile(curve.logit, groups),
        n.ravel(),
        k.ravel(),
    )
    found = adjust(cells)
    assert max(found.variances) < 0.001
    p = expit(found.shift[:, None] + found.slope[:, None] * curve.logit)
    ratio = (n * p).sum(axis=1) / k.sum(axis=1)
    rarer = np.minimum(k.sum(axis=1), (n - k).sum(axis=1)) >= 2500
    assert rarer.all()
    assert np.abs(ratio[rarer] - 1).max() < 0.02
    assert np.abs(k.sum(axis=1) / (n @ expit(curve.logit)) - 1)[rarer].max() > 0.02


def test_segments_that_do_not_differ_are_hardly_moved_and_often_not_at_all():
    """The parent's map is fitted to the same rows, which vary less about it than about the truth."""
    exactly = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        n = rng.integers(1, 200, (300, 12)).astype(float)
        k = rng.binomial(n.astype(int), np.linspace(0.05, 0.6, 12)).astype(float)
        curve = curve_of(k.sum(axis=0) / n.sum(axis=0), n.sum(axis=0))
        logits = np.tile(curve.logit, 300)
        cells = BlockCells(np.arange(0, 3601, 12), np.full(300, curve.centre), logits, n.ravel(), k.ravel())
        adjusted = adjust(cells)
        assert max(adjusted.variances) <= 2.0**-9
        if adjusted.variances == (0.0, 0.0):
            exactly += 1
            assert (adjusted.shift == 0).all()
            assert (adjusted.slope == 1).all()
    assert exactly >= 3


def test_the_ends_of_a_curve_are_finite():
    curve = curve_of([0.0, 0.2, 1.0], [9.0, 10.0, 4.0])
    np.testing.assert_allclose(curve.logit, logit([0.05, 0.2, 0.9]))
    assert curve_of([0.0, 0.01, 0.9], [9.0, 1.0, 1.0]).logit[0] == curve_of([0.01, 0.9], [1.0, 1.0]).logit[0]
    assert np.isfinite(curve_of([0.0, 1.0], [1.0, 1.0]).logit).all()
    with pytest.raises(ValueError, match="one shape"):
        curve_of([], [])


def test_a_segment_that_contradicts_the_others_is_named(tmp_path):
    rng = np.random.default_rng(5)
    x, a = rng.normal(size=3000), rng.integers(0, 4, 3000)
    label = (rng.random(3000) < expit(x)) & (a != 3)
    write_log(tmp_path / "log", pa.table({"score": x, "label": label.astype(np.int8), "a": a}))
    made = run("fit", tmp_path, log={"segment": ["a"]})
    assert made["segments"]["outlying"] == [{"level": 1, "count": 1, "names": [["3"]]}]
    shown = tables.show(str(tmp_path / "store"), "t", None)
    assert any(line.endswith("; 1 segment of a contradicts the others: 3") for line in shown.lines)
    assert any(line.startswith("4 segments of a: ") for line in shown.lines)


def test_a_segment_has_its_own_map_if_its_rows_contradict_the_curve():
    """Of a flat curve, as where others have inverted labels; segments that follow their curve hardly ever have one."""
    rng = np.random.default_rng(2)
    groups, rows = 300, 700
    score = np.sort(rng.normal(-1, 1.2, (groups, rows)), axis=1)
    truth = expit(score)
    label = (rng.random(truth.shape) < truth).astype(float)
    starts = np.arange(0, groups * rows + 1, rows)
    columns = (score.ravel(), score.ravel(), np.ones(score.size), label.ravel())
    assert choose_maps(columns, starts, truth.ravel(), False, 10.0).own.sum() <= 3
    flat = np.repeat(label.mean(axis=1), rows)
    chosen = choose_maps(columns, starts, flat, False, 10.0)
    assert chosen.own.mean() > 0.99
    for bending in (False, True):
        maps = choose_maps(columns, starts, flat, bending, 10.0).maps
        level = np.repeat(maps.level, maps.weight.astype(int))
        assert level.sum() == pytest.approx(label.sum(), rel=0.01)
        assert np.mean((level - truth.ravel()[: level.size]) ** 2) < 0.2 * truth.var()


@pytest.mark.parametrize("flat", [False, True])
def test_few_segments_need_less_evidence_against_their_curve(flat):
    """Of levels whose segments follow their curves fewer than one in five has a segment that contradicts it."""
    rng = np.random.default_rng(3)
    rows, levels = 300, 200
    for segments in (1, 3, 10, 40):
        groups = segments * levels
        score = np.sort(rng.normal(0, 1.2, (groups, rows)), axis=1)
        truth = np.full(score.shape, 0.5) if flat else expit(score)
        label = (rng.random(score.shape) < truth).astype(float)
        columns = (score.ravel(), score.ravel(), np.ones(score.size), label.ravel())
        starts = np.arange(0, score.size + 1, rows)
        found = choose_maps(columns, starts, truth.ravel(), False, least_evidence(segments)).own.sum()
        assert found < 0.2 * levels
        assert found < choose_maps(columns, starts, truth.ravel(), False, 0.0).own.sum()
    assert least_evidence(2) < least_evidence(40) < least_evidence(50) == least_evidence(1_000_000) == 10


def test_a_bent_curve_is_weaker_where_the_rows_have_steps():
    """A curve of 3,000 rows' information hides a step in 10,000 rows; segments that follow it keep it."""
    rng = np.random.default_rng(4)
    groups, rows = 20, 10_000
    score = np.sort(rng.normal(0, 1.2, (groups, rows)), axis=1)
    curve = expit(score - 1)
    truth = curve.copy()
    truth[::2] = expit(score[::2] - 1 + np.where(score[::2] > 0.3, 0.5, -0.4))
    label = (rng.random(truth.shape) < truth).astype(float)
    columns = (score.ravel(), score.ravel(), np.ones(score.size), label.ravel())
    starts = np.arange(0, score.size + 1, rows)
    chosen = choose_maps(columns, starts, curve.ravel(), True, np.inf).maps
    errors = [
        ((np.repeat(maps.level, maps.weight.astype(int)).reshape(truth.shape) - truth) ** 2).mean(axis=1)
        for maps in (chosen, own_maps(*columns, starts, curve.ravel(), STRENGTH))
    ]
    assert errors[0][::2].mean() < 0.5 * errors[1][::2].mean()
    assert (errors[0] < errors[1] + 1e-15).all()
    np.testing.assert_array_equal(errors[0][1::2], errors[1][1::2])


def test_many_segments_are_adjusted_by_a_samples_variances():
    rng = np.random.default_rng(6)
    groups, blocks = 70_000, 4
    at = np.array([-5.0, -4.0, -3.0, -2.0])
    n = np.full((groups, blocks), 5.0)
    k = rng.binomial(5, expit(at + rng.normal(0, 0.7, groups)[:, None])).astype(float)
    curve = curve_of(k.sum(axis=0) / n.sum(axis=0), n.sum(axis=0))
    starts, logits = np.arange(0, groups * blocks + 1, blocks), np.tile(curve.logit, groups)
    found = adjust(BlockCells(starts, np.full(groups, curve.centre), logits, n.ravel(), k.ravel()))
    p = expit(found.shift[:, None] + found.slope[:, None] * curve.logit)
    assert (n * p).sum() == pytest.approx(k.sum(), rel=0.002)
    assert 0.25 <= found.variances[0] <= 1.0


def test_segments_with_many_of_both_labels_keep_their_totals():
    weight = np.array([5000.0, 5000.0, 1e6, 1e6])
    positives = np.array([2500.0, 2499.0, 1e6 - 2500, 1e6 - 2499])
    assert large(weight, positives).tolist() == [True, False, True, False]


def mostly_odd_log(seed):
    """Most rows have one label, whatever their score: the map of all rows is flat. Segment 1 is ordinary."""
    rng = np.random.default_rng(seed)
    a = np.repeat([0, 1, 2, 3], [1200, 400, 1200, 300])
    x = rng.normal(-2, 1.2, a.size).round(3)
    truth = np.choose(a, [1.0, expit(x - 1 + 4 * (x > -2)), 1.0, 0.0])
    label = rng.random(a.size) < truth
    return pa.table({"score": x, "label": label.astype(np.int8), "a": a}), truth


@pytest.mark.parametrize("method", ["auto", "isotonic"])
def test_a_small_segment_does_not_get_the_flat_map_of_odd_ones(tmp_path, method):
    """Where the map of all rows is flat, a segment's rows were added up: they could neither rise nor contradict it."""
    table, truth = mostly_odd_log(0)
    predictions = []
    for i, sizes in enumerate(({}, {"cut": (3, 100), "run_rows": 300, "bucket_bytes": 2000})):
        (tmp_path / str(i)).mkdir()
        found = fit(tmp_path / str(i), table, ("a",), method=method, **sizes)
        assert found.levels[1].reasons[1] is None
        _, path = published(tmp_path / str(i), found, ("a",))
        predictions.append(Table(read_table(path)).predict(np.asarray(table["score"]), table))
    np.testing.assert_array_equal(*predictions)
    of = np.asarray(table["a"]) == 1
    score, label = np.asarray(table["score"])[of], np.asarray(table["label"])[of]
    alone = Isotonic().fit(score, label).predict(score)
    error = [np.mean((p - truth[of]) ** 2) for p in (predictions[0][of], alone)]
    assert error[0] < 4 * error[1] < 0.2 * truth[of].var()


@pytest.mark.parametrize("method", ["auto", "isotonic"])
@pytest.mark.parametrize("having", [20, 10])
def test_default_scores_spoil_no_other_score(tmp_path, method, having):
    """Segments' bends followed the fall at a default score; segments without it had the mean with its rows below it."""
    rng = np.random.default_rng(4)
    country, x = rng.integers(0, 20, 100_000), rng.normal(-2, 1.3, 100_000)
    default = (rng.random(country.size) < 0.1) & (country < having)
    truth, score = np.where(default, 0.02, expit(x)), np.where(default, 0.5, expit(x))
    label = (rng.random(country.size) < truth).astype(np.int8)
    log = {"path": write_log(tmp_path / "log", pa.table({"score": score, "label": label, "a": country}))}
    config = {
        "log": log | {"segment": ["a"]},
        "store": {"path": str(tmp_path / "store"), "table": "t"},
        "calibrator": {"method": method},
        "cluster": {"kind": "inline"},
    }
    logcal.run("fit", config)  # the gate passes: the map agrees with its rows
    p = logcal.load(tmp_path / "store", "t").predict(score, segments={"a": country})
    assert np.mean((p - truth)[score > 0.505] ** 2) < 0.002
    order = np.lexsort((score, country))
    assert (np.diff(p[order])[np.diff(country[order]) == 0] >= 0).all()


def test_a_segment_of_one_score_expects_the_positives_that_it_has(tmp_path):
    """A slope tells nothing there; its bound at 0 kept the segment's probability away from its rate."""
    rng = np.random.default_rng(2)
    country, x = rng.integers(0, 3, 100_000), rng.normal(-2, 1.3, 100_000)
    default = rng.random(country.size) < 0.3
    truth = np.where(default, 0.02, expit(x + np.array([-0.4, 0.12, -0.83])[country]))
    kind = np.where(default, "default", "scored")
    label = (rng.random(country.size) < truth).astype(np.int8)
    columns = {"score": np.where(default, 0.5, expit(x)), "label": label, "a": kind, "b": country}
    table = pa.table(columns)
    found = fit(tmp_path, table, ("a", "b"), method="auto")
    _, path = published(tmp_path, found, ("a", "b"))
    p = Table(read_table(path)).predict(columns["score"], table)
    for value in range(3):
        rows = default & (country == value)
        assert p[rows].sum() == pytest.approx(label[rows].sum(), abs=1.5 * np.sqrt(label[rows].sum()))


def test_wide_ranges_are_divided_where_tasks_could_know():
    rng = np.random.default_rng(4)
    scores = np.unique(np.concatenate([rng.normal(0, 3, 5000).round(3), [0.0, -1e-300, 1e-300, 1e6]]))
    points, fine = collapse(scores, rng.random(scores.size) < 0.3), fine_cells_pass()
    cells = fine.combine([fine.chunk(points)])
    blocks = MapBlockRanges(
        np.array([-np.inf, -2.0, 5.0]),
        np.array([0.1, 0.3, 0.999]),
        np.diff(np.searchsorted(scores, [-np.inf, -2.0, 5.0, np.inf])) * 1.0,
    )
    middles = cells.first / 2 + cells.last / 2
    edges, level, weight = divide(blocks, cells, expit(middles))
    assert weight.sum() == scores.size
    assert (np.diff(edges) > 0).all()
    assert (np.diff(level) > 0).all()
    of = np.searchsorted(blocks.edges, edges, side="right") - 1
    assert np.bincount(of).tolist() == [16, 16, 1]
    np.testing.assert_array_equal(edges[np.searchsorted(of, [0, 1, 2])], blocks.edges)
    assert set(divide(blocks, cells, None).level) == set(blocks.level)
    begins = scores[cell_begins(scores)]
    inside = edges[1:-1][np.isin(of[1:-1], [1])][1:]
    # Each new edge is the end of a cell: no score lies between it and the first score of a cell.
    following = scores[np.searchsorted(scores, inside)]
    assert np.isin(following, begins).all()
    counts = np.diff(np.searchsorted(scores, edges[of == 1]))
    assert counts.max() < 2 * counts.mean()


def test_a_constant_map_of_all_rows_has_no_knots():
    """Evidence for a bend in common may remain where the map of all rows is constant but for some millionths."""
    scores = np.arange(100.0)
    whole = Isotonic().fit(scores, scores < 50)
    fine, points = fine_cells_pass(), collapse(scores, scores < 50)
    checked = check_all_rows(whole, None, lambda fitted: (fitted, 0.0))
    all_rows = pooled_segments._AllRows(whole, checked, fine.combine([fine.chunk(points)]), falls=False)
    knots = pooled_segments._knots(all_rows, pooled_segments._curve_of_all_rows(all_rows, 1.0), 1.0)
    assert [knot.size for knot in knots] == [0, 0]


# Effects across parents


def crossed_cells(rng, rows, grid=61):
    """Cells of 4 x 6 segments; which values a parent has differs by parent, and so do rates by value."""
    parent, value = np.repeat(np.arange(4), 6), np.tile(np.arange(6), 4)
    a, b = np.array([0.8, -0.6, 0.3, -0.5]), rng.normal(0, 0.7, 6)
    x = np.linspace(-3, 3, grid)
    share = rng.dirichlet(np.full(6, 1.0), 4)[parent, value] + 0.002
    weight = np.round(rows * share[:, None] * np.exp(-(x**2) / 2)) + 1
    p = expit(-2 + x + (a[parent] + b[value])[:, None])
    positives = rng.binomial(weight.astype(int), p).astype(float)
    return parent, value, x, weight, positives


def test_effects_across_parents_are_those_of_a_logistic_regression(monkeypatch):
    """With many rows: main effects of both columns, each with intercepts and slopes, by scipy."""
    parent, value, x, weight, positives = crossed_cells(np.random.default_rng(3), 20_000)
    design = np.concatenate([np.eye(4)[parent], np.eye(6)[value]], axis=1)

    def eta_of(theta):
        shift, slope = design @ theta[:10], design @ theta[10:]
        return shift[:, None] + slope[:, None] * x

    def loss(theta):
        eta = eta_of(theta)
        return (weight * np.logaddexp(0, eta) - positives * eta).sum() / weight.sum() + 1e-9 * theta @ theta

    best = eta_of(optimize.minimize(loss, np.zeros(20), method="BFGS", options={"gtol": 1e-7}).x)
    curve = -2 + x
    starts = np.arange(5) * 6 * x.size
    parents = BlockCells(starts, np.full(4, -2.0), np.tile(curve, 24), weight.ravel(), positives.ravel())
    first = adjust(parents)
    lines, before = (first.shift[parent], first.slope[parent]), (np.zeros(24), np.ones(24))
    columns = np.tile(curve, 24), weight.ravel(), positives.ravel()
    cells = BlockCells(np.arange(25) * x.size, np.full(24, -2.0), *columns)

    def error(found):
        eta = found.shift[:, None] + found.slope[:, None] * curve
        information = weight * expit(best) * (1 - expit(best))
        return np.sqrt(np.average((eta - best) ** 2, weights=information))

    joint = error(crossing.cross(cells, value, parent, lines, before)[0])
    monkeypatch.setattr(crossing, "_ROUNDS", 0)
    assert error(crossing.cross(cells, value, parent, lines, before)[0]) > 0.1
    assert joint < 0.03


def test_merging_cells_hardly_changes_effects_across_parents(monkeypatch):
    parent, value, x, weight, positives = crossed_cells(np.random.default_rng(4), 300, grid=6001)
    columns = np.tile(-2 + x, 24), weight.ravel(), positives.ravel()
    cells = BlockCells(np.arange(25) * x.size, np.full(24, -2.0), *columns)
    lines = before = np.zeros(24), np.ones(24)
    merged = crossing.cross(cells, value, parent, lines, before)[0]
    monkeypatch.setattr(crossing._Groups, "_merged", lambda *_: None)
    exact = crossing.cross(cells, value, parent, lines, before)[0]
    assert not np.array_equal(merged.shift, exact.shift)
    np.testing.assert_allclose(merged.shift, exact.shift, atol=2e-3)
    np.testing.assert_allclose(merged.slope, exact.slope, atol=1e-3)
