"""Measures of many columns at once: the same doubles as of each alone, which are taken with fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrators._kernels import expansions, few_error_bars, few_measures
from calibrators._kernels.fixed_point import FEW, pair_of, parts_of
from calibrators._kernels.sums import expansion_of
from calibrators.arithmetic.passes import Points, collapse, run_in_memory
from calibrators.measures.decomposition import chance_error, debiased_squared_error, decompose
from calibrators.measures.error_bars import assurance_passes
from calibrators.measures.many import (
    agreements_of_columns,
    all_counts,
    assess_columns,
    chances_of_columns,
    error_bars_of_columns,
)
from calibrators.measures.predictions import MEASURES, assess, error_bars
from calibrators.measures.spread import cox, mean_distance
from pipeline.evaluate import segment_numbers
from pipeline.sort.exchange import Slices

EDGES = np.array([0.0, 1.0, 0.5, 0.1, 0.2, 0.3, 1e-70, 1e-300, 5e-324, 1 - 2**-53, np.nextafter(0.3, 1)])


def column(rng: np.random.Generator) -> Points:
    """Rows of any kind: one alone, ties, many rows a prediction, one label, predictions at edges, scores."""
    rows = int(rng.integers(1, rng.choice([3, 12, 60, 900])))
    few = rng.random(rng.integers(1, 6))
    values = (EDGES, few, rng.random(400), np.round(rng.random(400), 2), 4 * rng.random(50) - 2)[
        rng.integers(5)
    ]
    score = rng.choice(values, rows)
    label = rng.random(rows) < rng.choice([0.0, 0.05, 0.5, 1.0])
    weight = rng.integers(1, 10 ** rng.integers(1, 6), rows).astype(float) if rng.integers(2) else None
    return collapse(score, label, weight)


def together(columns: list[Points]) -> tuple[Points, np.ndarray]:
    starts = np.concatenate([[0], np.cumsum([one.score.size for one in columns])])
    return Points(*(np.concatenate(each) for each in zip(*columns, strict=True))), starts


@pytest.mark.parametrize("bins", [1, 3, 10])
def test_measures_are_those_of_each_column(bins):
    rng = np.random.default_rng(bins)
    columns = [column(rng) for _ in range(300)]
    numbers, groups = assess_columns(*together(columns), bins)
    for own, row, some in zip(columns, numbers, groups, strict=True):
        wanted = assess(*own, bins=bins, histogram_bins=1)
        values = [getattr(wanted.measures, name) for name in MEASURES]
        values += [wanted.mean_prediction, wanted.weight, wanted.positives]
        np.testing.assert_array_equal(row[:12], np.array(values, float))
        filled = [group for group in wanted.by_frequency if group.weight > 0]
        assert filled or own.score[0] < 0 or own.score[-1] > 1
        for one, group in zip(some[some[:, 0] > 0].tolist(), filled, strict=True):
            assert one == [group.weight, group.mean_prediction, group.frequency]
            assert group.effective_size == group.weight


def test_error_bars_are_those_of_each_column():
    rng = np.random.default_rng(1)
    columns = [one for _ in range(500) if (one := column(rng)).score[0] >= 0 and one.score[-1] <= 1]
    found = error_bars_of_columns(*together(columns))
    for own, row in zip(columns, found, strict=True):
        wanted = error_bars(*own)
        values = [wanted.auc_error, wanted.spiegelhalter_z, wanted.score_test_p]
        np.testing.assert_array_equal(row, np.array(values, float))


@pytest.mark.parametrize("bins", [1, 10])
def test_what_chance_does_is_that_of_each_column(bins):
    rng = np.random.default_rng(bins)
    columns = [one for _ in range(500) if (one := column(rng)).score[0] >= 0 and one.score[-1] <= 1]
    found = chances_of_columns(assess_columns(*together(columns), bins)[1])
    for own, row in zip(columns, found, strict=True):
        groups = assess(*own, bins=bins).by_frequency
        values = [chance_error(groups), debiased_squared_error(groups)]
        np.testing.assert_array_equal(row, np.array(values, float))


def test_lines_and_parts_of_losses_are_those_of_each_column():
    rng = np.random.default_rng(3)
    columns = [one for _ in range(500) if (one := column(rng)).score[0] >= 0 and one.score[-1] <= 1]
    for score, weight, positives in columns[-50:]:
        # So many rows that pooling takes more than a double for their products.
        times = 2.0 ** (30 - int(weight.sum()).bit_length())
        columns.append(Points(score, weight * times, positives * times))
    points, starts = together(columns)
    losses = np.ascontiguousarray(assess_columns(points, starts, 10)[0][:, [2, 4]])
    enough, lines = 0, 0
    for own, row in zip(columns, agreements_of_columns(points, starts, losses, 5), strict=True):
        hits = own.positives.sum()
        if min(hits, own.weight.sum() - hits) < 5:
            assert np.isnan(row).all()
            continue
        _, corp, cells = run_in_memory(assurance_passes(), own)
        parts = decompose(*corp, assess(*own))
        values = [
            value
            for loss in (parts.brier, parts.log_loss)
            for value in (loss.miscalibration, loss.discrimination)
        ]
        line = cox(cells)
        values += [None] * 4 if line is None else np.array(line).T.ravel().tolist()
        np.testing.assert_array_equal(row, np.array([*values, mean_distance(cells)], float))
        enough, lines = enough + 1, lines + (line is not None)
    assert enough > lines > 50


def small(rng: np.random.Generator) -> Points:
    """A column as segments have them: few rows, probabilities of models and of calibrated ones, and counts."""
    rows = int(rng.integers(1, rng.choice([4, 25, 300])))
    p = (
        rng.random(rows),
        rng.beta(0.3, 5, rows),
        rng.beta(1, 200, rows),
        np.round(rng.random(rows), 1),
        rng.choice([1 / 3, 2 / 3, 0.1, 0.25, 0.5], rows),
        10.0 ** -rng.uniform(0, 17, rows),
    )[rng.integers(6)]
    most = (2, 50, 5_000, 50_000)[rng.integers(4)]
    return collapse(p, rng.random(rows) < p, rng.integers(1, most, rows).astype(float))


def test_few_predictions_are_measured_without_expansions_and_as_with_them():
    rng = np.random.default_rng(5)
    columns = [small(rng) for _ in range(600)]
    columns += [collapse(np.arange(1, n + 1) / (n + 1), np.arange(n) % 2 == 0) for n in (FEW, FEW + 1)]
    edges = np.append(np.arange(1, 7) / 7, 0.5)
    work, other = few_measures.workspace(), few_error_bars.workspace()
    sure = []
    for own in columns:
        found, groups, bars = np.full(15, np.nan), np.full((7, 3), np.nan), np.full(3, np.nan)
        sure.append(
            (
                few_measures.assess_few(*own, edges, 7, work, found, groups),
                few_error_bars.error_bars_few(*own, other, bars),
            )
        )
        if sure[-1][0]:
            wanted = assess(*own, bins=7, histogram_bins=1)
            values = [getattr(wanted.measures, name) for name in MEASURES]
            values += [wanted.mean_prediction, wanted.weight, wanted.positives]
            of_all = np.delete(np.array(values, float), few_measures.RMSE)
            np.testing.assert_array_equal(np.delete(found[:12], few_measures.RMSE), of_all)
            filled = [group for group in wanted.by_frequency if group.weight > 0]
            for one, group in zip(groups[groups[:, 0] > 0].tolist(), filled, strict=True):
                assert one == [group.weight, group.mean_prediction, group.frequency]
    assert sure[-2:] == [(True, True), (False, False)]
    measured, with_bars = np.mean(sure, axis=0)
    assert measured > 0.7
    assert with_bars > 0.4  # of many rows they are taken by expansions


def test_what_two_doubles_leave_open_is_not_said_to_be_sure():
    edges, found, groups = np.append(np.arange(1, 3) / 3, 0.5), np.empty(15), np.empty((3, 3))
    tiny = collapse(np.array([1e-30, 0.5]), np.array([False, True]))
    assert not few_measures.assess_few(*tiny, edges, 3, few_measures.workspace(), found, groups)
    assert not few_error_bars.error_bars_few(*tiny, few_error_bars.workspace(), np.empty(3))


fixed = st.tuples(st.integers(-(2**50), 2**50), *[st.integers(-(2**61), 2**61)] * 3)


@settings(deadline=None)
@given(fixed)
def test_two_doubles_are_next_to_a_fixed_point_number(parts):
    value = sum(Fraction(part, 2**bits) for part, bits in zip(parts, (18, 50, 82, 114), strict=True))
    high, low, exact = pair_of(*parts)
    assert high == float(value)
    error = abs(Fraction(high) + Fraction(low) - value)
    assert error == 0 if exact else error <= abs(value) / 2**104


@settings(deadline=None)
@given(st.floats(2.0**-60, 1023.0))
def test_a_double_is_a_fixed_point_number(x):
    *parts, left = parts_of(x)
    assert left == 0
    assert sum(Fraction(part, 2**bits) for part, bits in zip(parts, (18, 50, 82, 114), strict=True)) == x


@pytest.mark.parametrize("tests", [False, True])
def test_segments_are_measured_as_one_by_one(tests, monkeypatch):
    monkeypatch.setattr(segment_numbers, "ENOUGH", 10)
    rng = np.random.default_rng(2)
    columns = [column(rng) for _ in range(300)]
    if tests:
        columns = [one for one in columns if one.score[0] >= 0 and one.score[-1] <= 1]
    points, starts = together(columns)
    small = segment_numbers.visit_of(10, False, 1.0, tests=tests).small
    one_by_one = segment_numbers.visit_of(10, True, 1.0, tests=tests).small
    segments = Slices(list(points), starts)
    found = small(segments)
    assert found.shape == (len(columns), len(segment_numbers.FIELDS))
    np.testing.assert_array_equal(found, small.args[2](segments))
    # With weights, rows at one score are fewer than they weigh, which only groups' sizes are changed by.
    at = [segment_numbers.FIELDS.index(name) for name in (*MEASURES, "mean_prediction", "weight")]
    np.testing.assert_array_equal(found[:, at], one_by_one(segments)[:, at])
    if tests:
        assert np.isfinite(found[:, segment_numbers.FIELDS.index("slope")]).any()


def test_what_is_no_count_is_measured_one_by_one():
    rng = np.random.default_rng(3)
    score = np.sort(rng.random(50))
    points = Points(score, np.full(50, 0.5), np.where(rng.random(50) < score, 0.5, 0.0))
    assert not all_counts(points)
    small = segment_numbers.visit_of(10, False, 1.0, tests=True).small
    segments = Slices(list(points), np.array([0, 20, 50]))
    np.testing.assert_array_equal(small(segments), small.args[2](segments))


numbers = st.lists(st.floats(-1e9, 1e9).filter(lambda x: x == 0 or abs(x) > 1e-60), max_size=6)
wholes = st.lists(st.integers(0, 2**40).map(float), min_size=1, max_size=3)


@settings(deadline=None)
@given(numbers, wholes)
def test_quotients_are_rounded_once(above, below):
    divisor = sum(map(Fraction, below)) + 1
    one, other = expansion_of(np.array(above, float)), expansion_of(np.array([*below, 1.0]))
    wanted = float(sum(map(Fraction, above), Fraction(0)) / divisor)
    assert expansions.quotient(one, one.size, other, other.size) == wanted


@pytest.mark.parametrize("divisor", [1.0, 3.0, 2.0**30, 2.0**30 - 1])
def test_quotients_half_way_between_doubles_go_to_the_even_one(divisor):
    for base in (1.0, 1 + 2**-52, 1 - 2**-53, 5.0, -3.0):
        step = np.spacing(base) / 2
        for rest in (0.0, 2.0**-200, -(2.0**-200)):
            parts = [Fraction(base), Fraction(step), Fraction(rest)]
            value = sum(parts) * Fraction(divisor)
            components = []
            left = value
            while left:
                components.append(float(left))
                left -= Fraction(components[-1])
            one = expansion_of(np.array(components))
            found = expansions.quotient(one, one.size, np.array([divisor]), 1)
            assert found == float(value / Fraction(divisor))
