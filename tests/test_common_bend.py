"""The bend of a parent's curve that its segments share: against the truth of simulated segments."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from calibrators.segments.adjusting import BlockCells, adjust
from calibrators.segments.bends import shifts_to_totals
from calibrators.segments.common_bend import bend_in_common


def cells_of(seed, bend, segments=60, rows=20_000):
    """Segments whose log odds are lines of the bent curve, in 80 cells."""
    rng = np.random.default_rng(seed)
    curve = np.linspace(-5, 1, 80)
    shift, slope = rng.normal(0, 1, (segments, 1)), np.maximum(1 + rng.normal(0, 0.2, (segments, 1)), 0.3)
    truth = shift + slope * (curve + bend(curve))
    weight = rng.multinomial(rows, np.full(80, 1 / 80), segments).astype(float)
    positives = rng.binomial(weight.astype(int), expit(truth)).astype(float)
    starts = np.arange(segments + 1) * 80
    logits = np.tile(curve, segments)
    return BlockCells(starts, np.full(segments, -2.0), logits, weight.ravel(), positives.ravel()), truth


@pytest.mark.parametrize("size", [0.1, 0.3])
def test_the_bend_is_found_and_brings_segments_to_the_truth(size):
    cells, truth = cells_of(0, lambda x: size * np.cos(x))
    adjusted = adjust(cells)
    own = np.full(cells.groups, True)
    common = bend_in_common(cells, adjusted, own, cells.sums(cells.positives))
    assert common is not None
    shift, slope, eta = common.lines(cells, adjusted.shift, adjusted.slope)
    before = np.repeat(adjusted.shift, 80) + np.repeat(adjusted.slope, 80) * cells.logit
    information = cells.weight * expit(truth.ravel()) * expit(-truth.ravel())
    error = [(information * (x - truth.ravel()) ** 2).sum() for x in (before, eta)]
    # Two parameters for each segment, and the bend's.
    assert error[1] < 1.3 * (2 * cells.groups + 8)
    assert error[1] < 0.5 * error[0]
    knots = np.repeat(shift, 80) + np.repeat(slope, 80) * cells.logit
    knots += np.repeat(adjusted.slope, 80) * common.at(cells.logit)
    np.testing.assert_allclose(knots, eta, atol=1e-9)


def test_lines_have_no_bend():
    bent = 0
    for seed in range(40):
        cells, _ = cells_of(seed, np.zeros_like, 20, 3000)
        own = np.full(cells.groups, True)
        bent += bend_in_common(cells, adjust(cells), own, cells.sums(cells.positives)) is not None
    assert bent <= 1


def test_many_rows_in_cells_of_little_information_are_no_bend():
    """Such cells are joined: at the mean of their log odds fewer positives are expected than in them."""
    logits = np.linspace(-16, 1, 200)
    weight = np.tile(np.linspace(4000, 1000, 200), 50)
    positives = np.tile(expit(logits), 50) * weight
    cells = BlockCells(np.arange(51) * 200, np.full(50, -1.0), np.tile(logits, 50), weight, positives)
    own = np.full(cells.groups, True)
    assert bend_in_common(cells, adjust(cells), own, cells.sums(cells.positives)) is None


def test_segments_that_cannot_have_their_own_map_do_not_bend_the_curve():
    cells, _ = cells_of(1, np.cos)
    none = np.zeros(cells.groups, np.bool_)
    assert bend_in_common(cells, adjust(cells), none, cells.sums(cells.positives)) is None


def test_many_rows_of_a_curve_at_zero_take_the_longest_steps():
    shift = shifts_to_totals(
        np.full(2, -800.0), np.array([300.0, 400.0]), np.array([200.0, 100.0]), np.array([2])
    )
    assert 40 < shift[0] < 800  # no warning, and on the way to the log odds of 3 in 7
