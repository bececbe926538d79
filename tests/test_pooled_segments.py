"""Segments that borrow strength: equal to doing it in memory with scipy and scikit-learn, however the work is cut."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from common import ANY_TABLE, FACTS, fit_segments, run_job, write_log
from scipy import integrate, optimize
from scipy.special import expit, logit
from sklearn.isotonic import IsotonicRegression

import logcal
from calibrators._kernels import partial_pooling as kernel
from calibrators.methods.auto import Auto
from calibrators.segments import adjusting
from calibrators.segments.adjusting import VARIANCES, Cells, adjust, curve_of
from calibrators.segments.bends import STRENGTH
from calibrators.segments.partial_pooling import OWN_STRENGTH
from jobs import tables
from logcal.adjustments import Adjustments, adjust_map
from logcal.errors import InputRejectedError
from logcal.reading import read_table
from logcal.table import Table
from pipeline.fit import pooled_cells
from pipeline.fit.calibration import Recipe
from pipeline.log.logs import Columns, open_log
from pipeline.sort import run_files, segment_tasks
from pipeline.sort.score_table import SortPlan
from pipeline.table.lookup_table import segmented_files
from pipeline.table.segment_maps import SegmentRules
from tests.test_segments import Shuffled, sorted_rows

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
    (folder / "lookup.parquet").write_bytes(files.lookup_bytes("000001-x"))
    (folder / "segments.parquet").write_bytes(files.segments)
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


def in_memory(table, columns, weighted, found, ends):
    """Every row's probability by levels, row by row and not by cells; variances are those that were found."""
    score, label = np.asarray(table["score"]), np.asarray(table["label"], float)
    weight = np.asarray(table["w"]) if weighted else np.ones(score.size)
    keys = list(zip(*(table[name].to_pylist() for name in columns), strict=True))
    extra = [np.append(score, [score.min() - 1, score.max() + 1]), np.append(label, [1, 0])]
    whole = IsotonicRegression().fit(*extra, sample_weight=np.append(weight, [ends, ends]))
    p = whole.predict(score)
    for level, (a_variance, d_variance) in enumerate(found.variances, 1):
        finished, full, x = np.empty((3, score.size))
        for parent in groups_of([key[: level - 1] for key in keys]):
            full[parent] = at = logit_of_finite(score[parent], weight[parent], p[parent])
            information = weight[parent] * expit(at) * (1 - expit(at))
            x[parent] = at - (information * at).sum() / information.sum()
        if level > 1:
            values = groups_of([key[level - 1] for key in keys])
            several = [rows for rows in values if len({keys[i][: level - 1] for i in rows}) > 1]
            shared = np.sort(np.concatenate(several))
            information = (weight * expit(full) * (1 - expit(full)))[shared]
            centre = (information * full[shared]).sum() / information.sum()
            before = full.copy()
            for own in several:
                offset = before[own] - centre
                a, d = moved_by(
                    before[own], offset, label[own], weight[own], *found.levels[level].variances_across
                )
                full[own] = before[own] + a + d * offset
                x[own] *= 1 + d
        for rows in groups_of([key[:level] for key in keys]):
            own = (full[rows], x[rows], score[rows], label[rows], weight[rows])
            finished[rows] = one_segment(*own, a_variance, d_variance)
        p = finished
    return p


def moved_by(at, x, label, weight, a_variance, d_variance):
    def loss(theta):
        a, d = theta[0] * (a_variance > 0), theta[1] * (d_variance > 0)
        eta = at + a + d * x
        likelihood = (weight * (label * eta - np.logaddexp(0, eta))).sum()
        return (
            -likelihood
            + (a**2 / (2 * a_variance) if a_variance else theta[0] ** 2)
            + (d**2 / (2 * d_variance) if d_variance else theta[1] ** 2)
        )

    bounds = [(None, None), (-1, None)]
    best = optimize.minimize(loss, [0, 0], bounds=bounds, method="L-BFGS-B", tol=1e-15)
    if best.x[1] > -1:
        finer = {"xatol": 1e-9, "fatol": 1e-13}
        best = optimize.minimize(loss, best.x, bounds=bounds, method="Nelder-Mead", options=finer)
    return best.x[0] * (a_variance > 0), best.x[1] * (d_variance > 0)


def one_segment(at, x, score, label, weight, a_variance, d_variance):
    a, d = moved_by(at, x, label, weight, a_variance, d_variance)
    p = expit(at + a + d * x)
    positive = int((label == 1).sum())
    if min(positive, label.size - positive) < RULES.min_positives or np.unique(score).size == 1:
        return p
    c = OWN_STRENGTH / (weight * p * (1 - p)).sum()
    target = (label + c * p) / (1 + c)
    return IsotonicRegression().fit(score, target, sample_weight=weight).predict(score)


@pytest.mark.parametrize(
    ("seed", "columns", "weighted", "ends"),
    [(0, ("a", "b"), False, 1), (1, ("b", "a"), True, 1), (2, ("a",), False, 0)],
)
def test_equals_doing_it_in_memory(tmp_path, seed, columns, weighted, ends):
    table = some_log(seed, rows=1500, ties=seed == 1)
    sizes = {"cut": (3, 100), "run_rows": 500, "bucket_bytes": 2000}
    found = fit(tmp_path, table, columns, weighted, params={"ends": ends}, **sizes)
    assert any(size for level in found.levels[1:] for size in level.maps.sizes)
    assert max(found.variances[0]) > 0
    _, path = published(tmp_path, found, columns)
    got = Table(read_table(path)).predict(np.asarray(table["score"]), table)
    expected = in_memory(table, columns, weighted, found, ends)
    np.testing.assert_allclose(logit(got), logit_of_all(expected), atol=2e-5)


def line_of(at, x, weight):
    """The lines nearest to (1 - 2 p) x**k by information, k = 0, 1, 2."""
    p = expit(at)
    by = np.sqrt(weight * p * (1 - p))
    return [np.polyfit(x, (1 - 2 * p) * x**k, 1, w=by)[::-1] for k in range(3)]


def mean_adjusted(at, x, label, weight, variances, line):
    """The most likely move of the most likely curve, and from there to expected probabilities."""
    p, prior = expit(at), np.diag(variances)
    base = at - (1 - 2 * p) / 2 * (variances[0] + variances[1] * x**2)
    a, d = moved_by(base, x, label, weight, *variances)
    q = expit(base + a + d * x)
    design = np.stack([np.ones(x.size), x])
    information = (design * (weight * q * (1 - q))) @ design.T
    more = (prior @ np.linalg.inv(np.eye(2) + information @ prior) - prior) / 2
    terms = (more[0, 0], 2 * more[0, 1], more[1, 1])
    a += sum(e * one[0] for e, one in zip(terms, line, strict=True))
    return a, max(d + sum(e * one[1] for e, one in zip(terms, line, strict=True)), -1.0)


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


def on_a_curve(table, columns, weighted, found):
    """As `in_memory`, of maps pooled with that of `Auto`: rows see it through its mean in isotonic blocks."""
    score, label = np.asarray(table["score"]), np.asarray(table["label"], float)
    weight = np.asarray(table["w"]) if weighted else np.ones(score.size)
    keys = list(zip(*(table[name].to_pylist() for name in columns), strict=True))
    p = Auto().fit(score, label, weight).predict(score)
    levels = IsotonicRegression().fit(score, label, sample_weight=weight).predict(score)
    blocks = np.unique(levels, return_inverse=True)[1]
    at, exact = logit((np.bincount(blocks, weight * p) / np.bincount(blocks, weight))[blocks]), logit(p)
    for level, variances in enumerate(found.variances, 1):
        places, centre = found.levels[level].bend_facts, np.empty(score.size)
        above = groups_of([key[: level - 1] for key in keys])
        for rows in above:
            information = (weight * expit(at) * (1 - expit(at)))[rows]
            centre[rows] = (information * at[rows]).sum() / information.sum()
        if level > 1:
            values = groups_of([key[level - 1] for key in keys])
            values = [v for v in values if len({keys[i][: level - 1] for i in v}) > 1]
            shared = np.concatenate(values)
            information = (weight * expit(at) * (1 - expit(at)))[shared]
            middle = (information * at[shared]).sum() / information.sum() + places["place_across"]
            line = line_of(at[shared], at[shared] - middle, weight[shared])
            for rows in values:
                own = (label[rows], weight[rows], found.levels[level].variances_across, line)
                a, d = mean_adjusted(at[rows], at[rows] - middle, *own)
                for column in (at, exact, centre):
                    column[rows] += a + d * (column[rows] - middle)
        x = at - centre - places["place"]
        line, before = line_of(at, x, weight), at.copy()
        for rows in groups_of([key[:level] for key in keys]):
            a, d = mean_adjusted(before[rows], x[rows], label[rows], weight[rows], variances, line)
            exact[rows] += a + d * (exact[rows] - centre[rows] - places["place"])
            at[rows] = before[rows] + a + d * x[rows]
            enough = min(label[rows].sum(), (1 - label[rows]).sum()) >= RULES.min_positives
            if enough and places["bend"] > 0:
                cell = np.unique(before[rows].round(9), return_inverse=True)[1]
                q = expit(bent(at[rows], cell, label[rows], weight[rows], places["bend"]))
                c = STRENGTH / (weight[rows] * q * (1 - q)).sum()
                target = (label[rows] + c * q) / (1 + c)
                q = (
                    IsotonicRegression()
                    .fit(score[rows], target, sample_weight=weight[rows])
                    .predict(score[rows])
                )
                at[rows] = exact[rows] = logit(q)
    return expit(exact)


def groups_of(keys):
    """The rows of each key."""
    found = {}
    for i, key in enumerate(keys):
        found.setdefault(key, []).append(i)
    return list(map(np.array, found.values()))


@pytest.mark.parametrize(
    ("seed", "columns", "weighted", "wave"),
    [(0, ("a", "b"), False, 1.5), (1, ("b", "a"), True, 0.0), (2, ("a",), False, 2.0)],
)
def test_pooling_with_a_curve_equals_doing_it_in_memory(tmp_path, seed, columns, weighted, wave):
    table = some_log(seed, rows=2500, ties=seed == 1, wave=wave)
    sizes = {"cut": (3, 100), "run_rows": 500, "bucket_bytes": 2000}
    found = fit(tmp_path, table, columns, weighted, method="auto", **sizes)
    assert max(found.variances[0]) > 0
    for level in found.levels[1:]:
        assert any(level.maps.sizes) == (level.bend_facts["bend"] > 0)
    assert any(level.bend_facts["bend"] > 0 for level in found.levels[1:]) == (wave > 0)
    assert any(level.bend_facts["place"] != 0 for level in found.levels[1:])
    _, path = published(tmp_path, found, columns)
    got = Table(read_table(path)).predict(np.asarray(table["score"]), table)
    expected = logit_of_all(on_a_curve(table, columns, weighted, found))
    np.testing.assert_allclose(logit(got), expected, atol=2e-5)


def logit_of_all(p):
    assert p.min() > 0
    assert p.max() < 1
    return logit(p)


@pytest.mark.parametrize("method", ["isotonic", "auto"])
def test_the_table_depends_on_rows_alone(tmp_path, method, monkeypatch):
    rng = np.random.default_rng(1)
    table, weighted, columns = some_log(1, ties=True, wave=1.5 * (method == "auto")), True, ("b", "a")
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
        files = segmented_files(found, columns, FACTS)
        made.append((files.lookup_bytes("000001-x"), files.segments))
    assert made[0] == made[1] == made[2]


def test_segments_that_do_not_differ_have_their_parents_map_exactly(tmp_path):
    table = some_log(6, differ=0.0)
    few = pa.table({**{name: table[name] for name in table.column_names}, "a": np.arange(4000) % 50})
    found = fit(tmp_path, few, ("a",))
    assert found.variances == ((0.0, 0.0),)
    files, path = published(tmp_path, found, ("a",))
    assert files.sources == {"global": 50}
    score = np.asarray(few["score"])
    read = read_table(path)
    np.testing.assert_array_equal(Table(read).predict(score, few), read.global_map.predict(score))


def test_maps_never_decrease_and_never_answer_0_or_1(tmp_path):
    table = some_log(6)
    _, path = published(tmp_path, fit(tmp_path, table, params={"ends": 0}))
    loaded = read_table(path)
    assert loaded.global_map.predict(-1.0) == 0
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
        loaded.adjustments.apply_one(loaded.unadjusted_map((1,)).predict(float(s)), e)
        if (e := loaded.entry_of((1,))) is not None else loaded.unadjusted_map((1,)).predict(float(s)) for s in score
    ])  # fmt: skip
    np.testing.assert_array_equal(one.predict(score, {"a": 1, "b": "unseen"}), expected)
    np.testing.assert_array_equal(one.predict(score, {"a": 1000, "b": "x"}), loaded.global_map.predict(score))


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


def run(job, root, **sections):
    """Run a job in this process; returns its summary."""
    content = {
        "log": {"path": root / "log", "segment": ["a", "b"]},
        "store": {"path": root / "store", "table": "t"},
    }
    if job == "fit":
        content |= {"gate": ANY_TABLE, "scratch": root}
    return run_job(
        job, **content | {name: {**content.get(name, {}), **own} for name, own in sections.items()}
    )


def test_from_a_log_to_its_report(tmp_path):
    table = some_log(13, wave=1.5)
    write_log(tmp_path / "log", table)
    made = run("fit", tmp_path)
    segments = made["segments"]
    assert segments["min_positives"] == 100
    assert set(segments["fitted_on"]) == {"segment", "moved"}
    assert [row["level"] for row in segments["variances"]] == [1, 2]
    manifest = json.loads(next((tmp_path / "store").glob("t/versions/*/manifest.json")).read_text())
    assert manifest["format_version"] == "2"
    run("score", tmp_path, output={"path": str(tmp_path / "scored")})
    scored = pq.read_table(tmp_path / "scored")
    loaded = logcal.load(str(tmp_path / "store"), "t")
    np.testing.assert_array_equal(
        scored["probability"], loaded.predict(scored["score"].to_numpy(), scored.select(["a", "b"]))
    )
    in_sample = {"allow_in_sample": True}
    report = {"path": str(tmp_path / "report")}
    measured = run("evaluate", tmp_path, evaluate=in_sample, report=report)
    assert set(measured["segments"]["fitted_on"]) == {"segment", "moved"}
    # Isotonic regression keeps totals, and nearly so do pooled maps.
    mean = np.average(scored["probability"])
    assert mean == pytest.approx(np.mean(scored["label"]), rel=0.01)
    run("fit", tmp_path, segments={"shrinkage": "none", "min_rows": 300})
    found = tables.diff(str(tmp_path / "store"), "t", "000001", "000002", str(tmp_path / "diff.html"))
    assert found.summary["segments"]
    query = tables.sql(str(tmp_path / "store"), "t", "000001", "duckdb", False, "log", "score")
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
    assert found.variances[1] == (0.0, 0.0)
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
    return Cells(
        starts,
        np.full(groups, curve.centre),
        *(np.concatenate(column) for column in zip(*parts, strict=True)),
    )


def penalised(theta, cells, g, a, d):
    rows = slice(cells.starts[g], cells.starts[g + 1])
    eta = cells.logit[rows] + theta[0] + theta[1] * (cells.logit[rows] - cells.centre[g])
    n, k = cells.weight[rows], cells.positives[rows]
    likelihood = (-k * np.logaddexp(0, -eta) - (n - k) * np.logaddexp(0, eta)).sum()
    return -(likelihood - theta[0] ** 2 / (2 * a) - theta[1] ** 2 / (2 * d))


@pytest.mark.parametrize("scale", [1.0, 1e12, 1e70])
def test_the_evidence_is_that_of_its_formula(scale):
    """With determinants beyond what a product of a few can hold, too."""
    rng = np.random.default_rng(5)
    theta, derivatives = rng.normal(0, 0.5, (40, 2)), np.empty((40, 5))
    expected = np.zeros((VARIANCES.size, VARIANCES.size))
    for g in range(40):
        root = rng.normal(0, 1, (2, 2)) * np.sqrt(scale)
        h, gradient = root @ root.T, rng.normal(0, 1, 2)
        derivatives[g] = *gradient, h[0, 0], h[0, 1], h[1, 1]
        b = gradient + h @ theta[g]
        for i, j in np.ndindex(expected.shape):
            t = np.diag([VARIANCES[i], VARIANCES[j]])
            inner = np.eye(2) + t @ h
            size = inner[0, 0] * inner[1, 1] - inner[0, 1] * inner[1, 0]
            expected[i, j] += 0.5 * b @ np.linalg.solve(inner, t @ b) - 0.5 * np.log(size)
    found = np.empty_like(expected)
    kernel.evidence(theta, derivatives, VARIANCES, found)
    np.testing.assert_allclose(found, expected, rtol=1e-7)


def test_groups_of_one_class_and_without_rows():
    cells = cells_of(np.random.default_rng(1))
    cells.positives[: cells.starts[1]] = 0
    cells.positives[cells.starts[1] : cells.starts[2]] = cells.weight[cells.starts[1] : cells.starts[2]]
    starts = np.append(cells.starts, cells.starts[-1])
    adjusted = adjust(cells._replace(starts=starts, centre=np.append(cells.centre, 0.3)))
    assert np.isfinite(adjusted.shift).all()
    assert (adjusted.slope >= 0).all()
    assert adjusted.shift[-1] == 0
    assert adjusted.slope[-1] == 1


def test_the_chosen_variances_are_those_of_quadrature():
    cells = cells_of(np.random.default_rng(2), groups=15, shift=0.7, block_range=0.0)
    adjusted = adjust(cells)

    def group_evidence(g, a):
        def loss(shift):
            return penalised([shift, 0.0], cells, g, a, 1.0)

        at = optimize.minimize_scalar(loss)
        value, _ = integrate.quad(lambda t: np.exp(at.fun - loss(at.x + t)), -8, 8, limit=200, points=[0.0])
        return np.log(value) - at.fun - 0.5 * np.log(a)

    def log_evidence(a):
        return sum(group_evidence(g, a) for g in range(15))

    candidates = VARIANCES[1:]
    best = candidates[np.argmax([log_evidence(a) for a in candidates])]
    assert adjusted.variances[0] == best
    assert adjusted.variances[1] <= 2.0**-6


def test_segments_that_do_not_differ_are_hardly_moved_and_often_not_at_all():
    """The parent's map is fitted to the same rows, which vary less about it than about the truth."""
    exactly = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        n = rng.integers(1, 200, (300, 12)).astype(float)
        k = rng.binomial(n.astype(int), np.linspace(0.05, 0.6, 12)).astype(float)
        curve = curve_of(k.sum(axis=0) / n.sum(axis=0), n.sum(axis=0))
        logits = np.tile(curve.logit, 300)
        cells = Cells(np.arange(0, 3601, 12), np.full(300, curve.centre), logits, n.ravel(), k.ravel())
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
