"""Measures of many columns at once: the same doubles as of each alone, which are taken with fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrators._kernels import expansions
from calibrators._kernels.sums import expansion_of
from calibrators.many import all_counts, assess_columns, error_bars_of_columns, filled_groups
from calibrators.measures import MEASURES, assess, error_bars
from calibrators.passes import Points, collapse
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
        assert [one.weight for one in filled_groups(some)] == [one.weight for one in filled]
        for one, group in zip(filled_groups(some), filled, strict=True):
            assert one == (group.weight, group.effective_size, group.mean_prediction, group.frequency)


def test_error_bars_are_those_of_each_column():
    rng = np.random.default_rng(1)
    columns = [one for _ in range(500) if (one := column(rng)).score[0] >= 0 and one.score[-1] <= 1]
    found = error_bars_of_columns(*together(columns))
    for own, row in zip(columns, found, strict=True):
        wanted = error_bars(*own)
        values = [wanted.auc_error, wanted.spiegelhalter_z, wanted.score_test_p]
        np.testing.assert_array_equal(row, np.array(values, float))


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
