"""The bend of a parent's curve that its segments share: against the truth of simulated segments, and dense algebra."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from calibrators.segments import common_bend
from calibrators.segments.adjusting import BlockCells, adjust
from calibrators.segments.bends import shifts_to_totals
from calibrators.segments.common_bend import bend_in_common, bent_cells
from calibrators.segments.kernels.common_bend import add_derivatives


def cells_of(seed, bend, segments=60, rows=20_000, spread=1.0, centre=-2.0, half=3.0):
    """Segments whose log odds are lines of the bent curve, in 80 cells."""
    rng = np.random.default_rng(seed)
    curve = np.linspace(-half, half, 80) + centre
    shift = rng.normal(0, spread, (segments, 1))
    slope = np.maximum(1 + rng.normal(0, 0.2, (segments, 1)), 0.3)
    truth = shift + slope * (curve + bend(curve))
    weight = rng.multinomial(rows, np.full(80, 1 / 80), segments).astype(float)
    positives = rng.binomial(weight.astype(int), expit(truth)).astype(float)
    starts = np.arange(segments + 1) * 80
    logits = np.tile(curve, segments)
    return BlockCells(starts, np.full(segments, centre), logits, weight.ravel(), positives.ravel()), truth


def bent_by_certainty(cells, adjusted, processors=1):
    """Bend, strengths and adjustments, as at the first level of segments."""
    strength = common_bend.strengths(adjusted.certainty)
    bend, after = bend_in_common(cells, adjusted, strength, processors)
    return bend, np.zeros(strength.size) if bend is None else strength, after


def error_of(cells, adjusted, truth):
    """Sum over cells of information times squared error of the log odds; on average a parameter costs 1."""
    eta = np.repeat(adjusted.shift, 80) + np.repeat(adjusted.slope, 80) * cells.logit
    information = cells.weight * expit(truth.ravel()) * expit(-truth.ravel())
    return float((information * (eta - truth.ravel()) ** 2).sum())


@pytest.mark.parametrize("size", [0.1, 0.3])
def test_the_bend_is_found_and_brings_segments_to_the_truth(size):
    cells, truth = cells_of(0, lambda x: size * np.cos(x))
    before = adjust(cells)
    bend, strength, adjusted = bent_by_certainty(cells, before)
    assert bend is not None
    assert (strength == 1).all()
    after = error_of(bent_cells(cells, bend, strength), adjusted, truth)
    # Two parameters for each segment, and the bend's.
    assert after < 1.3 * (2 * cells.groups + 8)
    assert after < 0.5 * error_of(cells, before, truth)


def test_knots_on_plateaus_are_apart():
    """Between knots a few units in the last place apart a change of slope is rounding; it ended the search."""
    cells, _ = cells_of(0, np.zeros_like)
    curve = np.repeat(np.linspace(-3, 3, 8), 10)
    curve += np.tile([0, 4e-16, 1e-12, 3e-8, 6e-5, 2e-4, 4e-4, 7e-4, 9e-4, 1e-2], 8)
    cells = cells._replace(logit=np.tile(curve, cells.groups))
    knots, share = common_bend._knots(cells, adjust(cells), np.arange(cells.groups))
    assert np.diff(knots).min() >= 2.0**-10
    assert knots.size > 10
    assert knots[[0, -1]] == pytest.approx(curve[[0, -1]])
    assert share.size == knots.size


def mean_log(seed, segments, rows, spread, centre):
    """Lines of different rates, and the logarithm of the odds of their mean, in the place of the parent's curve."""
    cells, truth = cells_of(seed, np.zeros_like, segments, rows, spread, centre, 6.0)
    weight, positives = (column.reshape(segments, 80) for column in (cells.weight, cells.positives))
    mean = (weight * expit(truth)).sum(axis=0) / weight.sum(axis=0)
    logit = np.log(mean / (1 - mean))
    return cells._replace(logit=np.tile(logit, segments)), truth, weight, positives, mean


@pytest.mark.parametrize(("rows", "centre", "strengths"), [(20_000, 0.0, (1, 1)), (30, -5.0, (0.25, 0.75))])
def test_the_mean_of_lines_bends_and_segments_do_not(rows, centre, strengths):
    """Segments of few rows lie between their own lines and the mean; in each range all expect what they have."""
    segments = 12_000 if rows < 100 else 300
    cells, truth, weight, positives, _ = mean_log(1, segments, rows, 1.5, centre)
    before = adjust(cells)
    bend, strength, adjusted = bent_by_certainty(cells, before)
    assert bend is not None
    assert strengths[0] <= strength.mean() <= strengths[1]
    bent = bent_cells(cells, bend, strength)

    def of_ranges(cells, adjusted):
        p = expit(np.repeat(adjusted.shift, 80) + np.repeat(adjusted.slope, 80) * cells.logit)
        p = p.reshape(segments, 80)
        expected, variance = (
            (weight * x).reshape(segments, 10, 8).sum(axis=(0, 2)) for x in (p, p * (1 - p))
        )
        return (positives.reshape(segments, 10, 8).sum(axis=(0, 2)) - expected) / np.sqrt(variance)

    assert np.abs(of_ranges(cells, before)).max() > 5
    assert np.abs(of_ranges(bent, adjusted)).max() < 4
    assert error_of(bent, adjusted, truth) < error_of(cells, before, truth)


def test_lines_have_no_bend():
    bent = 0
    for seed in range(40):
        cells, _ = cells_of(seed, np.zeros_like, 20, 3000)
        bent += bent_by_certainty(cells, adjust(cells))[0] is not None
    assert bent <= 1


def test_many_rows_in_cells_of_little_information_are_no_bend():
    logits = np.linspace(-16, 1, 200)
    weight = np.tile(np.linspace(4000, 1000, 200), 50)
    positives = np.tile(expit(logits), 50) * weight
    cells = BlockCells(np.arange(51) * 200, np.full(50, -1.0), np.tile(logits, 50), weight, positives)
    assert bent_by_certainty(cells, adjust(cells))[0] is None


def test_segments_that_do_not_differ_do_not_bend_the_curve():
    cells, _ = cells_of(1, np.zeros_like, 300, 200, spread=0.0)
    adjusted = adjust(cells)
    bend, strength, same = bent_by_certainty(cells, adjusted)
    assert bend is None
    assert not strength.any()
    assert same is adjusted


def test_a_sample_of_many_segments_bends_the_curve_first(monkeypatch):
    cells, truth, *_ = mean_log(2, 400, 2000, 1.5, -1.0)
    adjusted = adjust(cells)
    everything, strength, of_all = bent_by_certainty(cells, adjusted)
    monkeypatch.setattr(common_bend, "_SAMPLE", 128)
    found, same, of_sample = bent_by_certainty(cells, adjusted)
    assert found is not None
    np.testing.assert_array_equal(strength, same)
    bent = bent_cells(cells, found, same)
    assert error_of(bent, of_sample, truth) < 1.1 * error_of(
        bent_cells(cells, everything, strength), of_all, truth
    )


def test_results_do_not_depend_on_threads():
    cells, *_ = mean_log(3, 9000, 30, 1.5, -1.0)
    adjusted = adjust(cells)
    one, two = (bent_by_certainty(cells, adjusted, processors) for processors in (1, 2))
    assert one[0] is not None
    np.testing.assert_array_equal(one[0].values, two[0].values)
    np.testing.assert_array_equal(one[2].shift, two[2].shift)


def test_derivatives_are_those_of_dense_algebra():
    rng = np.random.default_rng(4)
    cells, _ = cells_of(5, np.sin, 7, 500)
    knots = np.array([-5.0, -3.5, -1.7, 0.2, 1.0])
    lines = np.stack([rng.normal(0, 0.5, 7), rng.uniform(0.5, 1.5, 7)], axis=1)
    strength, precision = np.array([1, 0.5, 0, 0.25, 1, 0.75, 1]), np.array([2.0, 30.0])
    found = common_bend.CommonBend(0.1, knots, 0.1 * np.sin(knots))
    bent = bent_cells(cells, found, strength).logit
    sums = np.zeros((6, 5))
    of_cells = cells.logit, cells.weight, cells.positives, cells.starts, cells.centre
    curves = np.stack([found.curve(step / 4) for step in range(5)])
    add_derivatives(*of_cells, lines, (4 * strength).astype(np.int64), curves, precision, knots, sums)
    gradient, second = np.zeros(5), np.zeros((5, 5))
    for g in np.flatnonzero(strength):
        rows = slice(cells.starts[g], cells.starts[g + 1])
        factor = lines[g, 1] * strength[g]
        design = factor * np.stack([np.interp(cells.logit[rows], knots, unit) for unit in np.eye(5)], axis=1)
        eta = lines[g, 0] + lines[g, 1] * bent[rows]
        p = expit(eta)
        weight, y = cells.weight[rows], cells.positives[rows]
        gradient += design.T @ (y - weight * p)
        of_line = np.stack([np.ones(80), bent[rows] - cells.centre[g]], axis=1)
        information = np.diag(weight * p * (1 - p))
        crossed = design.T @ information @ of_line
        free = np.linalg.inv(of_line.T @ information @ of_line + np.diag(precision))
        second += design.T @ information @ design - crossed @ free @ crossed.T
    np.testing.assert_allclose(sums[0], gradient, rtol=1e-10)
    np.testing.assert_allclose(np.tril(sums[1:]), np.tril(second), rtol=1e-9, atol=1e-9)


def test_many_rows_of_a_curve_at_zero_take_the_longest_steps():
    shift = shifts_to_totals(
        np.full(2, -800.0), np.array([300.0, 400.0]), np.array([200.0, 100.0]), np.array([2])
    )
    assert 40 < shift[0] < 800  # no warning, and on the way to the log odds of 3 in 7
