"""The displays: what they compute against oracles, and that they draw it."""

import matplotlib as mpl
import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss

import logcal
from calibrators import Isotonic
from calibrators.core.map import Interval
from calibrators.measures.reliability_curve import (
    CELLS,
    consistency_band,
    probability_points,
    reliability_curve,
)
from logcal.displays.view import logit

mpl.use("agg")


@pytest.fixture(scope="module")
def predictions():
    random = np.random.default_rng(1)
    p = random.random(3000).round(3)
    return (random.random(3000) < p).astype(int), p


@pytest.fixture(autouse=True)
def close():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


# The computation


@pytest.mark.parametrize("weighted", [False, True])
def test_the_curve_is_isotonic_regression_and_splits_the_brier_score(predictions, weighted):
    labels, p = predictions
    weight = np.random.default_rng(2).random(p.size) + 0.1 if weighted else None
    curve = reliability_curve(probability_points(labels, p, weight))
    fitted = IsotonicRegression().fit(p, labels, weight)
    np.testing.assert_allclose(curve.observed, fitted.predict(curve.predicted), atol=1e-12)
    recalibrated = brier_score_loss(labels, np.clip(fitted.predict(p), 0, 1), sample_weight=weight)
    base = np.average(labels, weights=weight)
    before = brier_score_loss(labels, p, sample_weight=weight)
    uncertainty = base * (1 - base)
    np.testing.assert_allclose(
        [curve.miscalibration, curve.discrimination, curve.uncertainty],
        [before - recalibrated, uncertainty - recalibrated, uncertainty],
        atol=1e-12,
    )


def test_the_band_is_that_of_drawn_labels(predictions):
    labels, p = predictions
    points = probability_points(labels, p)
    band = consistency_band(points, draws=400)
    assert band.predicted.size <= CELLS
    random = np.random.default_rng(9)
    curves = [
        IsotonicRegression().fit(p, random.random(p.size) < p).predict(band.predicted) for _ in range(200)
    ]
    low, high = np.quantile(curves, [0.05, 0.95], axis=0)
    assert np.abs(band.low - low).mean() < 0.01
    assert np.abs(band.high - high).mean() < 0.01
    again = consistency_band(points, draws=400)
    assert np.array_equal(again.low, band.low)


def test_scores_that_are_no_probabilities_are_refused():
    with pytest.raises(ValueError, match=r"expected numbers in \[0, 1\], found 1 others, the first 1.5 at"):
        logcal.ReliabilityDisplay.from_predictions([0, 1], [0.2, 1.5])


# What is drawn


def test_reliability_from_predictions(predictions):
    display = logcal.ReliabilityDisplay.from_predictions(*predictions, name="model")
    x, y = display.line_.get_data()
    assert np.array_equal(x, display.curve.predicted)
    assert np.array_equal(y, display.curve.observed)
    (text,) = [t.get_text() for t in display.ax_.get_legend().get_texts()]
    assert text.startswith("model\nMCB 0.0")
    assert len(display.ax_.collections) == 1
    assert display.figure_ is display.ax_.figure
    second = logcal.ReliabilityDisplay.from_predictions(*predictions, ax=display.ax_, band=None, color="k")
    assert second.ax_ is display.ax_
    assert second.line_.get_color() == "k"
    assert len([line for line in display.ax_.get_lines() if line.get_gid() == "reference"]) == 1
    assert len(display.ax_.collections) == 1


def test_reliability_from_an_estimator_with_any_labels():
    X, y = make_classification(600, random_state=0)
    model = LogisticRegression().fit(X, np.where(y == 1, "yes", "no"))
    display = logcal.ReliabilityDisplay.from_estimator(model, X, np.where(y == 1, "yes", "no"))
    expected = logcal.ReliabilityDisplay.from_predictions(y, model.predict_proba(X)[:, 1])
    assert np.array_equal(display.curve.observed, expected.curve.observed)
    assert display.name == "LogisticRegression"
    three = LogisticRegression().fit(X, np.arange(600) % 3)
    with pytest.raises(ValueError, match="of two classes, found 3"):
        logcal.ReliabilityDisplay.from_estimator(three, X, y)


def test_displays_of_a_published_table(fitted, place):
    table = logcal.load(str(place.store), "ads")
    columns = place.predictions(seed=4)
    display = logcal.ReliabilityDisplay.from_table(table, columns["score"], columns["label"])
    expected = logcal.ReliabilityDisplay.from_predictions(columns["label"], table.predict(columns["score"]))
    assert np.array_equal(display.curve.observed, expected.curve.observed)
    assert display.name.startswith("isotonic, 000001-")
    drawn = logcal.MapDisplay.from_table(table)
    np.testing.assert_array_equal(drawn.probability, table.predict(drawn.score))
    assert (drawn.score[0], drawn.score[-1]) == (0, 1)


def test_a_map_shows_both_sides_of_a_step():
    fitted = Isotonic(ends=0).fit([0.1, 0.4, 0.6, 0.8], [0, 1, 0, 1])
    display = logcal.MapDisplay.from_calibrator(fitted, limits=(0, 1))
    assert np.array_equal(display.probability, fitted.predict(display.score))
    assert display.name == "Isotonic"
    margins = Isotonic(ends=0).fit([-3, -1, 2, 4], [0, 1, 0, 1])
    wide = logcal.MapDisplay.from_calibrator(margins)
    assert wide.score[0] == margins.calibration_map_.score_hi[0]
    constant = Isotonic().fit([5.0], [1])
    assert logcal.MapDisplay.from_calibrator(constant).score.size >= 2


def test_histogram():
    display = logcal.HistogramDisplay.from_predictions([0, 1, 1], [-1.0, 0.5, 3.0], bins=4, name="scores")
    assert display.edges.tolist() == [-1, 0, 1, 2, 3]
    assert display.weight.tolist() == [1, 1, 0, 1]
    assert display.positives.tolist() == [0, 1, 0, 1]
    assert display.ax_.get_title() == "scores"


def test_a_map_on_logit_axes_with_its_blocks_and_an_interval():
    fitted = Isotonic().fit([0.001, 0.4, 0.6, 0.998], [0, 1, 0, 1])
    found = fitted.calibration_map_
    interval = Interval(found.prob_lo * 0.9, np.minimum(found.prob_lo * 1.1, 1.0))
    display = logcal.MapDisplay.from_calibrator(fitted, logit_axes=True, interval=interval, blocks=True)
    x, y = display.line_.get_data()
    np.testing.assert_allclose(x, logit(display.score))
    np.testing.assert_allclose(y, logit(fitted.predict(display.score)))
    assert (display.score[0], display.score[-1]) == (0.01, 0.99)
    assert np.array_equal(np.unique(display.blocks[:, 2]), np.unique(found.prob_lo))
    low, high = display.band
    assert np.all((low < display.probability) & (display.probability < high))
    assert len(display.ax_.collections) == 3  # the band, the blocks, and dots for those too narrow to be seen


def test_scores_whose_differences_overflow_are_drawn_in_units():
    display = logcal.HistogramDisplay.from_predictions([0, 1, 1], [-1e307, 0, 1e307], bins=4)
    assert display.ax_.get_xlabel() == "Prediction / 1e+307"
    assert display.ax_.get_xlim() == (-1, 1)


def test_rows_whose_label_is_not_known_are_left_out(predictions):
    labels, p = predictions
    unknown = np.arange(len(labels)) % 5 == 0
    known = np.asarray(labels)[~unknown], np.asarray(p)[~unknown]
    expected = logcal.ReliabilityDisplay.from_predictions(*known)
    for given in (
        np.where(unknown, np.nan, np.asarray(labels, float)),
        [None if gone else label for gone, label in zip(unknown, labels, strict=True)],
    ):
        with pytest.warns(UserWarning, match=f"{unknown.sum():,} rows without a label were left out"):
            found = logcal.ReliabilityDisplay.from_predictions(given, p)
        np.testing.assert_array_equal(found.curve.observed, expected.curve.observed)
        with pytest.warns(UserWarning, match="without a label"):
            logcal.HistogramDisplay.from_predictions(given, p)
