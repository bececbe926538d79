"""Measures against scikit-learn and brute force; and the same however the points are cut."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from common import over
from hypothesis import example, given, settings
from hypothesis import strategies as st

from calibrators import CalibrationMap
from calibrators.core.kernels.sums import expansion_of
from calibrators.core.passes import Pass, Points, collapse, run_passes
from calibrators.measures.assessment import MEASURES, best_threshold, wilson_interval
from calibrators.measures.decomposition import chance_error, debiased_squared_error
from calibrators.measures.in_memory import (
    assess,
    assess_points,
    certainty_points,
    error_bars_points,
    measure,
    measure_points,
)
from calibrators.measures.predictions import assessment_passes
from pipeline.evaluate import segment_numbers
from pipeline.evaluate.evaluation import Sizes
from pipeline.sort.segments import Slices

PROBABILITY = st.one_of(
    st.sampled_from([0.0, 0.1, 0.3, 0.5, np.nextafter(0.5, 0), 0.7, 1.0, 1e-300, 1e-12, 1 - 2**-53]),
    st.floats(0, 1),
)
WEIGHT = st.one_of(st.just(1.0), st.integers(1, 5).map(float), st.floats(1e-6, 1e6))


@st.composite
def observations(draw, *, weights=WEIGHT, min_size=1):
    n = draw(st.integers(min_size, 25))
    p = np.array(draw(st.lists(PROBABILITY, min_size=n, max_size=n)))
    z = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)), dtype=float)
    w = np.array(draw(st.lists(weights, min_size=n, max_size=n)))
    return p, w, z


def sample(n=2000, *, seed=0, digits=None, weighted=False):
    rng = np.random.default_rng(seed)
    p = rng.beta(0.5, 1.5, n)
    if digits is not None:
        p = p.round(digits)
    z = (rng.random(n) < p**1.4).astype(float)
    w = rng.gamma(2.0, size=n) if weighted else np.ones(n)
    return p, w, z


def brute_force_errors(p, z, w, bins, how):
    """ECE and MCE over rows, whole weights being repetitions; a tie's rows all get its mean label."""
    p, z = np.repeat(p, w.astype(int)), np.repeat(z, w.astype(int))
    order = np.argsort(p)
    p, z = p[order], z[order]
    z = np.array([z[p == value].mean() for value in p])
    if how == "frequency":
        groups = np.array_split(np.arange(p.size), bins)
    else:
        index = np.array([sum(value >= i / bins for i in range(1, bins)) for value in p])
        groups = [np.flatnonzero(index == i) for i in range(bins)]
    gaps = [(g.size, abs(z[g].mean() - p[g].mean())) for g in groups if g.size]
    return sum(n * gap for n, gap in gaps) / p.size, max(gap for _, gap in gaps)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("digits", [None, 2])
def test_measures_agree_with_scikit_learn(digits, weighted):
    p, w, z = sample(digits=digits, weighted=weighted)
    inside = (p > 0) & (p < 1)
    p, w, z = p[inside], w[inside], z[inside]
    found = measure_points(Points(p, w, z * w))
    close = {"rel": 1e-11}
    assert found.auc == pytest.approx(sklearn.metrics.roc_auc_score(z, p, sample_weight=w), **close)
    assert found.brier == pytest.approx(sklearn.metrics.brier_score_loss(z, p, sample_weight=w), **close)
    assert found.rmse == pytest.approx(math.sqrt(found.brier), **close)
    assert found.log_loss == pytest.approx(sklearn.metrics.log_loss(z, p, sample_weight=w), **close)
    assert found.accuracy == pytest.approx(
        sklearn.metrics.accuracy_score(z, p >= 0.5, sample_weight=w), **close
    )
    assert found.reasons == {}


@given(observations(weights=st.integers(1, 4).map(float)), st.integers(1, 12))
def test_calibration_errors_agree_with_brute_force(data, bins):
    p, w, z = data
    found = measure_points(Points(p, w, z * w), bins=bins)
    for how in ("frequency", "width"):
        ece, mce = brute_force_errors(p, z, w, bins, how)
        assert getattr(found, f"ece_{how}") == pytest.approx(ece, rel=1e-11, abs=1e-15)
        assert getattr(found, f"mce_{how}") == pytest.approx(mce, rel=1e-11, abs=1e-15)


@given(observations(weights=st.integers(1, 4).map(float)), st.randoms(use_true_random=False))
def test_weight_equals_repetition_and_order_does_not_matter(data, random):
    p, w, z = data
    times = w.astype(int)
    order = list(range(int(times.sum())))
    random.shuffle(order)
    rows = np.repeat(p, times)[order], np.ones(len(order)), np.repeat(z, times)[order]
    assert assess_points(Points(*rows)) == assess_points(Points(p, w, z * w))


@given(observations(), st.lists(st.integers(1, 24)), st.integers(0, 3), st.integers(1, 12))
@example((np.array([0.1, 0.2, 0.3, 0.4]), np.ones(4), np.array([0.0, 1, 0, 1])), [1, 2, 3], 0, 4)
def test_ties_made_by_a_map_are_ties_across_parts(data, cuts, levels, bins):
    p, w, z = data
    points = collapse(p, z, w)
    edges = np.arange(1, levels + 1) / (levels + 2)
    level = np.linspace(0.0, 0.7, levels + 1)
    steps = CalibrationMap.from_bins(edges, level, np.ones(levels + 1), np.zeros(levels + 1))
    whole = assess_points(
        Points(steps.predict(points.score), points.weight, points.positives), bins=bins, rows=None
    )
    found = run_passes(assessment_passes(steps.predict, bins=bins), over(points, *cuts))
    assert found == whole
    # The same from rows that were never added up: sums of whole numbers are exact there too.
    if np.all(w == w.round()):
        assert found == assess_points(Points(steps.predict(p), w, z * w), bins=bins)


@given(observations(), st.lists(st.integers(1, 24)), st.integers(1, 12))
def test_known_weights_save_a_pass_and_change_nothing(data, cuts, bins):
    p, w, z = data
    points = collapse(p, z, w)
    run = over(points, *cuts)
    parts = run(Pass(chunk=_beginning, combine=list))
    passes = []
    found = run_passes(assessment_passes(bins=bins, parts=parts), lambda one: passes.append(one) or run(one))
    assert found == run_passes(assessment_passes(bins=bins), run)
    if np.all(w == w.round()):
        assert len(passes) == 1


def _beginning(points):
    return float(points.score[0]), expansion_of(points.weight)


def test_log_losses_are_those_of_the_library():
    rng = np.random.default_rng(0)
    p = np.concatenate([rng.random(9), 10.0 ** -rng.uniform(0, 320, 9), 1 - 10.0 ** -rng.uniform(0, 15, 9)])
    for x in p[(p > 0) & (p < 1)].tolist():
        for label, expected in ((1.0, -math.log(x)), (0.0, -math.log1p(-x))):
            assert measure([label], [x]).log_loss == pytest.approx(expected, rel=1e-11)


def test_scores_outside_zero_to_one_have_a_ranking_only():
    p, w, z = sample()
    scores = np.log(p / (1 - p))
    found = assess_points(Points(scores, w, z))
    assert found.measures.auc == measure_points(Points(p, w, z)).auc
    assert all(getattr(found.measures, name) is None for name in MEASURES if name != "auc")
    assert set(found.measures.reasons) == set(MEASURES) - {"auc"}
    assert "scores from -" in found.measures.reasons["brier"]
    assert not found.probabilities
    assert found.by_width == found.by_frequency == ()
    count, edges = np.histogram(scores, bins=50)
    assert found.histogram.weight == pytest.approx(count)
    assert found.histogram.edges == pytest.approx(edges)
    assert sum(found.histogram.positives) == z.sum()
    cut = run_passes(assessment_passes(), over(collapse(scores, z, w), 3, 700))
    assert cut == found


def test_one_class_has_no_auc():
    found = measure([1, 1], [0.2, 0.4])
    assert found.auc is None
    assert "label 1" in found.reasons["auc"]
    assert found.brier == pytest.approx((0.64 + 0.36) / 2)


@pytest.mark.parametrize(("p", "z"), [(0.0, 1), (1.0, 0)])
def test_certainty_that_was_wrong_costs_infinitely(p, z):
    found = measure_points(Points([p, 0.5], [2.0, 1.0], [2.0 * z, 1.0]))
    assert found.log_loss == math.inf
    assert "weight 2 " in found.reasons["log_loss"]
    assert found.as_dict()["log_loss"] == "Infinity"
    assert found.brier == pytest.approx(2.25 / 3)


def test_half_predicts_one():
    assert measure([1], [0.5]).accuracy == 1.0
    assert measure([1], [np.nextafter(0.5, 0)]).accuracy == 0.0


def test_width_bins_are_closed_below_and_the_last_above():
    found = assess([0, 0, 0, 0], [0.1, 0.3, 0.7, 1.0], bins=10)
    assert [i for i, group in enumerate(found.by_width) if group.weight] == [1, 3, 7, 9]
    assert found.by_width[0].frequency is None
    assert (found.by_width[3].lower, found.by_width[3].upper) == (0.3, 0.4)
    tied = assess_points(Points([0.2, 0.5, 0.9], [1, 6, 1], [0, 3, 1]), bins=2)
    assert [(g.lower, g.upper) for g in tied.by_frequency] == [(0.2, 0.5), (0.5, 0.9)]


def test_histogram_counts_weight_and_positives():
    p, w, z = sample(weighted=True)
    found = assess_points(Points(p, w, z * w), histogram_bins=20).histogram
    for column, weights in ((found.weight, w), (found.positives, z * w)):
        assert column == pytest.approx(np.histogram(p, bins=20, range=(0, 1), weights=weights)[0], rel=1e-11)


@given(st.integers(0, 40), st.integers(1, 40))
def test_wilson_interval_is_scipys(positives, more):
    n = positives + more - 1 or 1
    positives = min(positives, n)
    low, high = wilson_interval(positives / n, n)
    expected = scipy.stats.binomtest(positives, n).proportion_ci(0.95, method="wilson")
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert 0 <= low <= positives / n <= high <= 1


def test_intervals_count_rows_or_kishs_effective_size():
    p, w, z = sample(1000)
    counts = assess_points(Points(p, w, z))
    assert not counts.weighted
    assert [g.effective_size for g in counts.by_frequency] == [100] * 10
    scaled = assess_points(Points(p, 3 * w, 3 * z), rows=1000)
    assert scaled.weighted
    assert [g.effective_size for g in scaled.by_frequency] == pytest.approx([100] * 10)
    repeated = assess_points(Points(p, 3 * w, 3 * z))
    assert [g.effective_size for g in repeated.by_frequency] == [300] * 10
    w = np.random.default_rng(1).gamma(2.0, size=1000)
    found = assess_points(Points(p, w, z * w)).by_width[0]
    inside = w[p < 0.1]
    assert found.effective_size == pytest.approx(inside.sum() ** 2 / (inside**2).sum())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [], []), "n >= 1"),
        (([0.1, np.nan], [1, 1], [0, 1]), "score: expected finite numbers, found 1 others, the first at"),
        (([0.1], [0.0], [0]), "weight: expected finite numbers > 0"),
        (([0.1], [1.0], [2.0]), r"positives: expected numbers in \[0, weight\]"),
        (([0.1], [1.0, 1.0], [0]), r"weight: expected shape \(1,\)"),
    ],
)
def test_bad_points_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        measure_points(Points(*arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], []), "n >= 1"),
        (([0, 1], [0.1, np.nan]), "y_prob: expected finite numbers, found nan"),
        (
            ([0.1, 0.8], [0, 1]),
            "y_true: expected labels 0 and 1, found 0.1 at index 0; the order is y_true, y_prob",
        ),
        (([0], [0.1], [0.0]), "sample_weight: expected finite numbers >= 0, not all 0"),
        (([0], [0.1], [-1.0]), "sample_weight: expected finite numbers >= 0"),
        (
            ([0, 1], [0.1, 0.2], [1.0]),
            r"sample_weight: expected arrays of one shape .* sample_weight: \(1,\)",
        ),
    ],
)
def test_bad_labels_and_predictions_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        measure(*arguments)
    with pytest.raises(ValueError, match="bins: expected a whole number >= 1, found 0"):
        measure([0], [0.1], bins=0)


def test_arguments_have_scikit_learn_s_order():
    rng = np.random.default_rng(0)
    p, w = rng.random(500), rng.integers(0, 4, 500).astype(float)
    y = rng.random(500) < p
    found = measure(y, p, w)
    assert found.auc == pytest.approx(sklearn.metrics.roc_auc_score(y, p, sample_weight=w), rel=1e-11)
    assert found.brier == pytest.approx(sklearn.metrics.brier_score_loss(y, p, sample_weight=w), rel=1e-11)
    assert found.log_loss == pytest.approx(sklearn.metrics.log_loss(y, p, sample_weight=w), rel=1e-11)
    assert found == measure_points(Points(p[w > 0], w[w > 0], (y * w)[w > 0]))


@pytest.mark.parametrize("cuts", [[], [1], [1, 2]])
def test_map_that_decreases_is_refused(cuts):
    falling = CalibrationMap.from_bins(np.array([0.5]), np.array([0.8, 0.2]), np.ones(2), np.ones(2))
    points = collapse([0.1, 0.6, 0.7], [0, 1, 0])
    with pytest.raises(ValueError, match="do not decrease with the score"):
        run_passes(assessment_passes(falling.predict), over(points, *cuts))


def test_weights_beyond_counts_are_measured_as_counts():
    p, _, z = sample(300, digits=2)
    few = assess_points(Points(p, np.full(300, 4.0), 4 * z))
    many = assess_points(Points(p, np.full(300, 2.0**32), 2.0**32 * z))
    assert many.measures == few.measures
    assert many.weight == few.weight * 2**30


# Measures of many columns at once

EDGES = np.array([0.0, 1.0, 0.5, 0.1, 0.2, 0.3, 1e-70, 1e-300, 5e-324, 1 - 2**-53, np.nextafter(0.3, 1)])


def column(rng: np.random.Generator, weighted: bool = False) -> Points:
    """Rows of any kind: one alone, ties, many rows a prediction, one label, predictions at edges, scores."""
    rows = int(rng.integers(1, rng.choice([3, 12, 60, 900])))
    few = rng.random(rng.integers(1, 6))
    values = (EDGES, few, rng.random(400), rng.random(400).round(2), 4 * rng.random(50) - 2)[rng.integers(5)]
    score = rng.choice(values, rows)
    label = rng.random(rows) < rng.choice([0.0, 0.05, 0.5, 1.0])
    weight = rng.integers(1, 10 ** rng.integers(1, 6), rows).astype(float) if rng.integers(2) else None
    if weighted:
        weight = rng.gamma(2.0, size=rows) * 10.0 ** rng.integers(-3, 4)
    return collapse(score, label, weight)


def together(columns: list[Points]) -> Slices:
    starts = np.concatenate([[0], np.cumsum([one.score.size for one in columns])])
    return Slices([np.concatenate(each) for each in zip(*columns, strict=True)], starts)


def columns_of(seed: int, *, proper: bool, weighted: bool = False) -> list[Points]:
    rng = np.random.default_rng(seed)
    found = [column(rng, weighted) for _ in range(150)]
    return [one for one in found if not proper or (one.score[0] >= 0 and one.score[-1] <= 1)]


@pytest.mark.parametrize("weighted", [False, True])
def test_measures_are_those_of_each_column(weighted, monkeypatch):
    monkeypatch.setattr(segment_numbers, "ENOUGH", 10)
    columns = columns_of(3, proper=True, weighted=weighted)
    found = segment_numbers.segment_task_of(Sizes(), weighted, tests=True).small(together(columns))
    lines = 0
    for own, numbers in zip(columns, found, strict=True):
        row = dict(zip(segment_numbers.FIELDS, numbers.tolist(), strict=True))
        wanted, bars = (
            assess_points(Points(*own), rows=0 if weighted else None),
            error_bars_points(Points(*own)),
        )
        values = {name: getattr(wanted.measures, name) for name in MEASURES}
        values |= {name: getattr(wanted, name) for name in ("mean_prediction", "weight", "positives")}
        values |= {name: getattr(bars, name) for name in ("auc_error", "spiegelhalter_z", "score_test_p")}
        values["chance_error"] = chance_error(wanted.by_frequency)
        values["debiased_squared_error"] = debiased_squared_error(wanted.by_frequency)
        if min(wanted.positives, wanted.weight - wanted.positives) >= 10:
            sure = certainty_points(Points(*own))
            for loss in ("brier", "log_loss"):
                for part in ("miscalibration", "discrimination"):
                    values[f"{loss}_{part}"] = getattr(getattr(sure.decomposition, loss), part)
            for name in ("intercept", "intercept_error", "slope", "slope_error", "ici"):
                values[name] = getattr(sure.agreement, name)
            lines += sure.agreement.slope is not None
        for name, value in values.items():
            if name in row:
                # Of groups whose numbers have been rounded before.
                rtol = 1e-9 if name in ("chance_error", "debiased_squared_error") else 1e-11
                np.testing.assert_allclose(
                    row[name], np.nan if value is None else value, rtol=rtol, atol=1e-13, err_msg=name
                )
    assert lines > 10


@pytest.mark.parametrize(
    ("tests", "weighted", "rate"), [(False, False, 1.0), (True, False, 0.2), (True, True, 1.0)]
)
def test_a_segment_in_several_parts_is_measured_as_in_one(tests, weighted, rate, monkeypatch):
    monkeypatch.setattr(segment_numbers, "ENOUGH", 10)
    columns = columns_of(7, proper=tests, weighted=weighted)[:60]
    segment_task = segment_numbers.segment_task_of(Sizes(sampling_rate=rate), weighted, tests=tests)
    found = segment_task.small(together(columns))
    rng = np.random.default_rng(1)
    for own, numbers in zip(columns, found, strict=True):
        run = over(own, *rng.integers(0, own.score.size, 3))
        again = segment_task.large(own.score.size, run)[0]
        np.testing.assert_allclose(again, numbers, rtol=1e-11, atol=1e-13)


def test_no_segments_have_no_rows():
    none = Slices([np.empty(0)] * 3, np.array([0]))
    assert segment_numbers.segment_task_of(Sizes(), False, tests=True).small(none).shape == (
        0,
        len(segment_numbers.FIELDS),
    )


# The decision threshold against trying all of them

CASES = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.5 + 2**-53, 0.7, 1.0]), st.booleans(), st.integers(1, 3)
    ),
    min_size=1,
    max_size=12,
)


def rate(p, z, w, threshold):
    return w[(p >= threshold) == z].sum() / w.sum()


@settings(derandomize=True)
@given(cases=CASES)
def test_no_threshold_is_better(cases):
    p, z, w = (np.array(column) for column in zip(*cases, strict=True))
    found = best_threshold(p, z, w)
    tried = [rate(p, z, w, t) for t in [*p, np.nextafter(p.max(), 2)]]
    assert found.rate == pytest.approx(max(tried))
    assert rate(p, z, w, found.value) == pytest.approx(found.rate)


def test_half_is_preferred_and_gaps_are_halved():
    assert best_threshold([0.2, 0.9], [0, 1]).value == 0.5
    assert best_threshold([0.1, 0.2], [0, 1]).value == pytest.approx(0.15)
    assert best_threshold([0.2, 0.4], [0, 0]).value == 0.5
    assert best_threshold([0.6, 0.8], [1, 1]).value == 0.5


def test_probabilities_outside_their_range_are_refused():
    with pytest.raises(ValueError, match=r"^probabilities: expected numbers in \[0, 1\], found -1 to 2"):
        best_threshold([-1, 2], [0, 1])
