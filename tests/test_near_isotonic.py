"""The near-isotonic path against its optimality conditions, rational arithmetic and scikit-learn."""

import itertools
import logging
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from common import assert_same_map, cut, over, wave
from hypothesis import given
from hypothesis import strategies as st

from calibrators.core.passes import Points, collapse
from calibrators.near_isotonic import model_search
from calibrators.near_isotonic.calibrator import NearIsotonic
from calibrators.near_isotonic.enir import ENIR, penalty_of, weighted
from calibrators.near_isotonic.kernels import tree
from calibrators.near_isotonic.label_runs import join_runs, part_runs
from calibrators.near_isotonic.part_blocks import join_blocks, least_criterion, part_blocks, path_from
from calibrators.near_isotonic.path import NearIsotonicPath, near_isotonic_path
from calibrators.near_isotonic.reference import modified_pava
from pipeline.execution import InlineExecutor
from pipeline.fit.calibration import fit_log
from pipeline.log.logs import Columns, open_log
from pipeline.sort.score_table import SortedRows, SortPlan

HEAP_ONLY = 10**9
ALL_STEPS = 1


def path_of_points(points, few=ALL_STEPS):
    return NearIsotonicPath.of_runs(join_runs([part_runs(points)]), few=few)


def levels_at_points(solution, score):
    return solution.level[np.searchsorted(solution.last_score, score)]


def assert_matches(path, points, models, tolerance):
    """At lambda 0, at every breakpoint, in the middle between them, and beyond the last."""
    for model, following in zip(models, [*models[1:], None], strict=True):
        lam = model.lam
        middle = (lam + following.lam) / 2 if following else 2 * lam + 1
        solution = path.solution(float(lam))
        assert points.score[model.last].tolist() == solution.last_score.tolist()
        np.testing.assert_allclose(solution.level, [float(p) for p in model.p], rtol=0, atol=tolerance)
        between = path.solution(float(middle))
        expected = [float(p + a * (middle - lam)) for p, a in zip(model.p, model.a, strict=True)]
        assert np.array_equal(between.last_score, solution.last_score)
        np.testing.assert_allclose(between.level, expected, rtol=0, atol=tolerance)


def test_the_reference_has_the_closed_form_of_its_levels():
    """Equation 6, though it steps from breakpoint to breakpoint."""
    rng = np.random.default_rng(2)
    for _ in range(20):
        _, weight, positives = small_points(rng)
        for model in modified_pava(weight, positives):
            columns = zip(model.p, model.z, model.a, model.size, strict=True)
            assert all(p == (z + model.lam * a * size) / size for p, z, a, size in columns)
            assert all(p != q for p, q in itertools.pairwise(model.p))
        assert model.p == sorted(model.p)


def small_points(rng):
    m = int(rng.integers(1, 40))
    top = int(rng.integers(1, 8))
    weight = rng.integers(1, top + 1, m).astype(float)
    positives = np.minimum(weight, rng.integers(0, top + 1, m)).astype(float)
    if rng.random() < 0.4:
        positives = np.where(rng.random(m) < 0.5, weight, 0.0)
    return Points(np.cumsum(rng.random(m) + 0.01), weight, positives)


@pytest.mark.parametrize("few", [ALL_STEPS, HEAP_ONLY])
@pytest.mark.parametrize("scale", [1.0, 3e9])
def test_whole_weights_equal_rational_arithmetic(few, scale):
    # With a scale of 3e9 the products of weights and positives are beyond 2**53.
    rng = np.random.default_rng(1)
    for _ in range(100):
        score, weight, positives = small_points(rng)
        points = Points(score, weight * scale, positives * scale)
        models = modified_pava(points.weight, points.positives)
        path = path_of_points(points, few)
        # Distinct breakpoints, each the double nearest to the rational number.
        assert path.breakpoints.tolist() == [float(model.lam) for model in models[1:]]
        assert path.degrees_of_freedom.tolist() == [len(model.p) for model in models[1:]]
        assert_matches(path, points, models, 1e-15 if scale == 1.0 else 1e-14)


def test_tiny_and_huge_weights_scale_exactly():
    rng = np.random.default_rng(4)
    score, weight, positives = small_points(rng)
    path = path_of_points(Points(score, weight, positives))
    for unit in [2.0**-700, 2.0**700]:
        scaled = path_of_points(Points(score, weight * unit, positives * unit))
        assert np.array_equal(scaled.breakpoints, path.breakpoints * unit)
        for lam in path.breakpoints:
            assert np.array_equal(scaled.solution(lam * unit).level, path.solution(lam).level)


def assert_optimal(path, points, lam):
    """The conditions for a minimum, sufficient since the problem is convex.

    With U_j the sum of w (y - p) up to j: 0 <= U_j <= lambda, U_j is lambda where p falls, 0 where it rises, and 0
    at the end.
    """
    score, w, k = points
    p = levels_at_points(path.solution(lam), score)
    u = np.cumsum(k - w * p)
    # Rounding of the cumulative sum; U itself is exact to some 1e-16 of the total weight.
    slack = 1e-12 * w.sum() + 1e-9 * min(lam, w.sum())
    assert u.min() >= -slack
    assert u.max() <= lam + slack
    assert abs(u[-1]) <= slack
    step = np.diff(p)
    moving = np.abs(step) > 1e-12
    assert np.all(np.abs(u[:-1][moving & (step < 0)] - lam) <= slack)
    assert np.all(np.abs(u[:-1][moving & (step > 0)]) <= slack)


def data_sets(n):
    rng = np.random.default_rng(n)
    score = np.sort(rng.random(n))
    labels = rng.random(n) < wave(score)
    yield "distinct", collapse(score, labels)
    yield "ties", collapse(np.round(score, 2), labels)
    yield "some ties", collapse(np.round(score, max(3, len(str(n)))), labels)
    yield "whole weights", collapse(score, labels, rng.integers(1, 6, n))
    yield "weights", collapse(score, labels, rng.exponential(size=n))
    yield "weights and ties", collapse(np.round(score, 3), labels, rng.random(n) + 1e-3)
    yield "all positive", collapse(score, np.ones(n))
    yield "all negative", collapse(score, np.zeros(n))
    yield "sorted", collapse(score, score > 0.4)
    yield "reversed", collapse(score, score < 0.4)
    yield (
        "falling frequencies",
        Points(np.arange(n, dtype=float), np.full(n, 2.0 * n), np.arange(n, 0.0, -1.0)),
    )
    yield (
        "rising, then a fall",
        Points(
            np.arange(n + 1.0), np.append(np.full(n, 2.0 * n), n * n), np.append(np.arange(1.0, n + 1), 0.0)
        ),
    )
    yield "rare", collapse(score, rng.random(n) < 0.01 * score)
    yield "noise", collapse(score, rng.random(n) < 0.5)
    yield "one score", collapse(np.full(n, 0.3), labels)


@pytest.mark.parametrize("n", [1, 3, 300, 5000])
def test_every_solution_is_optimal(n):
    for name, points in data_sets(n):
        path = path_of_points(points, 64)
        t = path.breakpoints
        assert np.all(t > 0), name
        assert np.all(np.diff(t) > 0), name
        some = t[np.unique(np.linspace(0, t.size - 1, 40 if n < 1000 else 10).astype(int))] if t.size else t
        last = t[-1] if t.size else 0.0
        for lam in [0.0, *some, *(some * 0.999), *(some * 1.001), (last + 1) * 2, (last + 1) * 1e3, np.inf]:
            assert_optimal(path, points, float(lam))


def test_levels_that_meet_at_rest_merge_at_once():
    # After the first merge the middle block rests at exactly the level of its left neighbour, which rests as well.
    weight = np.array([4.0, 2.0, 1.0, 1.0, 4.0])
    positives = np.array([0.0, 1.0, 1.0, 0.0, 4.0])
    path = path_of_points(Points(np.arange(5.0), weight, positives))
    assert path.breakpoints.tolist() == [0.5]
    assert path.solution(0.5).level.tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("lam", [-1, np.nan, "1", None, True])
def test_lambda_is_checked(lam):
    path = near_isotonic_path([0.1, 0.2], [1, 0])
    with pytest.raises(ValueError, match="lam: expected a number >= 0, found"):
        path.solution(lam)


def test_runs_equal_a_loop():
    rng = np.random.default_rng(7)
    points = collapse(np.round(rng.random(500), 2), rng.random(500) < 0.5, rng.integers(1, 3, 500))
    runs = join_runs([part_runs(points, moments=True)])
    expected = []
    for s, w, k in zip(*points, strict=True):
        sums = np.array([Fraction(w), Fraction(k), Fraction(w) * Fraction(s)])
        if expected and sums[1] / sums[0] == expected[-1][3] / expected[-1][2]:
            first, _, *before = expected.pop()
            expected.append([first, s, *(before + sums)])
        else:
            expected.append([s, s, *sums])
    for got, column in zip(runs, zip(*expected, strict=True), strict=True):
        assert got.tolist() == [float(x) for x in column]


def test_levels_of_runs_are_compared_exactly():
    # 1e-200 / 3e-200 and 2e200 / 6e200 overflow or underflow when multiplied out.
    tiny, huge = 2.0**-700, 2.0**700
    weight, positives = np.array([[3 * tiny, 6 * huge, 6 * huge], [tiny, 2 * huge, 3 * huge]])
    points = Points(np.arange(3.0), weight, positives)
    assert part_runs(points).runs.last.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("lam", [0.0, 0.4, 1.0, 7.5, np.inf])
def test_calibrator_is_the_solution_at_its_lambda(lam):
    for name, points in data_sets(1000):
        path = path_of_points(points)
        calibrator = NearIsotonic(lam=lam, shrink=0).fit_points(points)
        expected = path.solution(lam)
        got = calibrator.predict(points.score)
        wanted = levels_at_points(expected, points.score)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-11, err_msg=name)
        middle = (points.score[:-1] + points.score[1:]) / 2
        np.testing.assert_allclose(
            calibrator.predict(middle), np.interp(middle, points.score, got), rtol=0, atol=1e-9, err_msg=name
        )
        parts = NearIsotonic(lam=lam, shrink=0).fit_passes(over(points, 5, 6, 7, 600))
        assert np.array_equal(parts.predict(points.score), got)


# Paths that begin at a lambda > 0, from parts merged apart, against paths of all runs


@st.composite
def cut_points(draw):
    """Points of one of several shapes, in parts."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    n = draw(st.integers(3, 400))
    score = generator.random(n)
    if draw(st.booleans()):
        score = np.round(score * draw(st.integers(2, n))) / n
    shape = draw(st.sampled_from(["noise", "rising", "waves", "falling"]))
    p = {"noise": np.full(n, 0.3), "rising": score, "waves": wave(score), "falling": 0.9 - 0.8 * score}[shape]
    weights = draw(st.sampled_from(["none", "whole", "real"]))
    weight = {
        "none": None,
        "whole": generator.integers(1, 9, n).astype(float),
        "real": generator.lognormal(0.0, 1.0, n),
    }[weights]
    points = collapse(score, generator.random(n) < p, weight)
    parts = cut(points, draw(st.lists(st.integers(0, points.score.size), max_size=4)))
    return points, parts, weights != "real"


def path_of(points):
    return NearIsotonicPath.of_runs(join_runs([part_runs(points)]))


def assert_same(actual, expected, exact):
    for a, b in zip(actual, expected, strict=True):
        if exact:
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


@given(cut_points(), st.integers(1, 12))
def test_a_path_from_parts_goes_on_as_the_whole_one(case, keep):
    points, parts, exact = case
    whole = path_of(points)
    blocks = join_blocks([part_blocks(part, keep=keep) for part in parts])
    path = path_from(blocks)
    late = whole.breakpoints > path.start
    assert_same([path.breakpoints], [whole.breakpoints[late]], exact)
    np.testing.assert_array_equal(path.degrees_of_freedom, whole.degrees_of_freedom[late])
    for lam in [path.start, *path.breakpoints, 2 * path.start + 1, np.inf]:
        assert_same(path.solution(lam), whole.solution(lam), exact)


@given(cut_points(), st.integers(1, 12), st.sampled_from(["bic", "aic"]))
def test_no_model_below_the_start_beats_the_bound(case, keep, criterion):
    points, parts, _ = case
    whole = path_of(points)
    blocks = join_blocks([part_blocks(part, keep=keep) for part in parts])
    penalty = penalty_of(criterion, float(points.weight.sum()))
    bound = least_criterion(blocks, penalty)
    for lam, df in zip(whole.breakpoints, whole.degrees_of_freedom, strict=True):
        if lam > blocks.start:
            break
        _, weight, positives, level = whole.blocks(lam)
        criterion_here = penalty(np.array([df]))[0] - 2 * tree.log_likelihood(level, weight, positives)
        assert criterion_here >= bound - 1e-9 * abs(criterion_here)


@given(cut_points(), st.floats(0, 50) | st.sampled_from([0.0, 0.5, np.inf]))
def test_one_solution_from_parts(case, lam):
    points, parts, exact = case
    blocks = join_blocks([part_blocks(part, lam) for part in parts])
    assert_same(path_from(blocks, limit=lam).solution(lam), path_of(points).solution(lam), exact)


@pytest.mark.parametrize("lam", [3.0, 1e20])
@pytest.mark.parametrize("seed", range(3))
def test_a_lambda_that_is_lost_beside_the_weights(lam, seed):
    """Hulls whose ends rounding makes equal do not cross: there is no segment behind their last one."""
    random = np.random.default_rng(seed)
    points = collapse(random.random(700), random.random(700) < 0.4, np.exp(random.uniform(-200, 200, 700)))
    for ends in ((), (233, 466)):
        p = NearIsotonic(lam=lam).fit_passes(over(points, *ends)).predict(points.score)
        assert ((p >= 0) & (p <= 1)).all()


def test_one_solution_gathers_few_blocks():
    points = waves(200_000)
    blocks = part_blocks(points, 20.0)
    whole = path_of(points).solution(20.0)
    assert whole.level.size <= blocks.falls.size < 1.1 * whole.level.size + 50
    # In memory the calibrator goes the same way.
    fitted = NearIsotonic(lam=20.0, shrink=0).fit(points.score, points.positives)
    assert_same_map(fitted.calibration_map_, whole.calibration_map())


def waves(n, seed=1):
    generator = np.random.default_rng(seed)
    score = np.sort(generator.random(n))
    label = generator.random(n) < wave(score)
    return Points(score, np.ones(n), label.astype(float))


def test_enir_keeps_the_models_that_it_keeps_of_the_whole_path(caplog):
    points = waves(300_000)
    whole = weighted(model_search.score(path_of(points), penalty_of("bic", 300_000.0)), model_search.DROP)
    with caplog.at_level(logging.INFO, "logcal"):
        fitted = ENIR(shrink=0).fit(points.score, points.positives)
    assert "the path begins at lambda" in caplog.text
    for name in whole._fields:
        np.testing.assert_array_equal(getattr(fitted.models_, name), getattr(whole, name))


def test_enir_starts_again_with_more_blocks_where_the_path_began_too_late(tmp_path, monkeypatch, caplog):
    points = waves(20_000)
    whole = ENIR(shrink=0).fit(points.score, points.positives)
    pq.write_table(pa.table({"score": points.score, "label": points.positives}), tmp_path / "log.parquet")
    monkeypatch.setattr(model_search, "KEEP", 16)
    passes = []
    original = model_search.blocks_pass
    monkeypatch.setattr(model_search, "blocks_pass", lambda keep: passes.append(keep) or original(keep=keep))
    log = open_log([str(tmp_path / "log.parquet")], Columns("score", "label", None))
    plan = SortPlan(tmp_path, run_rows=3000, bucket_bytes=50_000)
    with caplog.at_level(logging.INFO, "logcal"):
        fit = fit_log(ENIR(shrink=0), SortedRows(log, plan, None), InlineExecutor())
    # The first pass is asked for before the fit, too: it goes with the merge.
    assert passes[:3] == [16, 16, 256]
    assert "times less likely" in caplog.text
    for name in whole.models_._fields:
        np.testing.assert_array_equal(getattr(fit.calibrator.models_, name), getattr(whole.models_, name))
    assert_same_map(fit.calibrator.calibration_map_, whole.calibration_map_)


def test_a_path_knows_nothing_below_its_start():
    path = path_from(part_start(waves(5000)))
    assert path.start > 0
    with pytest.raises(ValueError, match=r"lam: expected a number >= .* where this path begins"):
        path.solution(path.start / 2)


def part_start(points):
    return join_blocks([part_blocks(points, keep=8)])
