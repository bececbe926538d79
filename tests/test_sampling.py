"""Sampled logs: maps of all rows from the rows that were kept, against scikit-learn with weights and T itself."""

import numpy as np
import pytest
from common import over
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import logit
from sklearn.isotonic import IsotonicRegression

from calibrators import ABB, BBQ, DGG, ENIR, HistogramBinning, Isotonic, Platt, collapse
from calibrators.arithmetic.sampling import odds_divided
from calibrators.measures.certainty import certain_passes, error_bar_passes
from calibrators.measures.predictions import assess, run_passes
from calibrators.methods.auto import Auto

RATES = (0.01, 0.3, 4.0)


def sample(n=3000, seed=0, digits=None):
    rng = np.random.default_rng(seed)
    s = rng.random(n)
    return (s if digits is None else s.round(digits)), rng.random(n) < 0.1 + 0.7 * s**2


def of_all_rows(calibrator, rate):
    calibrator.sampling_rate = rate
    return calibrator


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize(("n", "digits"), [(50, 1), (3000, None), (3000, 2)])
def test_isotonic_equals_scikit_learn_with_weighed_negatives(rate, n, digits):
    s, z = sample(n, n, digits)
    theirs = IsotonicRegression(out_of_bounds="clip").fit(
        s, z.astype(float), sample_weight=np.where(z, 1.0, 1 / rate)
    )
    at = np.concatenate([s, np.linspace(-0.2, 1.2, 700)])
    ours = of_all_rows(Isotonic(ends=0), rate).fit(s, z)
    np.testing.assert_allclose(ours.predict(at), theirs.predict(at), rtol=0, atol=4e-16)
    assert ours.calibration_map_.monotone
    assert ours.calibration_map_.weight.sum() == n


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize(
    "make",
    [HistogramBinning, ABB, BBQ, ENIR, DGG, lambda: Isotonic(strict=True), Platt, lambda: Auto(["platt"])],
)
def test_at_its_rows_every_map_is_the_raw_one_with_other_odds(make, rate):
    s, z = sample()
    raw, ours = make().fit(s, z), of_all_rows(make(), rate).fit(s, z)
    error = np.abs(ours.predict(s) - odds_divided(raw.predict(s), rate))
    # Platt's own map is within 1e-9 of its sigmoid on either side.
    assert error.max() < (1e-9 * (1 + 2 / min(rate, 1.0)) if isinstance(raw, (Platt, Auto)) else 1.1e-9)
    for own, other in (("weight", s.size), ("positives", z.sum())):
        assert getattr(ours.calibration_map_, own).sum() == pytest.approx(other)
    assert ours.calibration_map_.monotone == raw.calibration_map_.monotone


@pytest.mark.parametrize("rate", RATES)
def test_lines_that_are_cut_hold_the_rows_between_the_cuts(rate):
    s, z = sample(2000)
    table = of_all_rows(Isotonic(strict=True), rate).fit(s, z).calibration_map_
    row = np.searchsorted(table.score_hi, s, side="right")
    assert table.weight.tolist() == np.bincount(row, minlength=len(table)).tolist()
    assert table.positives.tolist() == np.bincount(row, z, len(table)).tolist()
    assert len(table) > len(Isotonic(strict=True).fit(s, z).calibration_map_)


def test_platt_moves_its_intercept():
    s, z = sample()
    raw, ours = Platt().fit(s, z), of_all_rows(Platt(), 0.01).fit(s, z)
    assert ours.slope_ == pytest.approx(raw.slope_)
    assert ours.intercept_ == pytest.approx(raw.intercept_ + np.log(0.01))


@given(st.floats(0, 1), st.floats(1e-4, 1e4))
def test_the_inverse_rate_undoes_it(p, rate):
    back = odds_divided(odds_divided(p, rate), 1 / rate)
    assert back == pytest.approx(p, abs=1e-9 * max(rate, 1 / rate))


def test_measures_of_all_rows_from_those_that_were_kept():
    s, z = sample(4000, digits=2)
    points, rate = collapse(s, z), 0.25
    run = over(points)
    found, bars, certainty = run_passes(certain_passes(None, rate=rate), run)
    weight = np.where(z, 1.0, 1 / rate)
    assert found.measures == assess(s, weight, z).measures
    # Observed over expected and Cox's line are of all rows as well: of the same weights.
    assert bars.observed == z.sum()
    assert bars.expected == pytest.approx(weight @ s)
    x = logit(s.clip(0.004, 0.996))
    inner = (s > 0) & (s < 1)
    theirs = minimize(
        lambda line: np.logaddexp(0, (1 - 2 * z) * (line[0] + line[1] * x - np.log(rate)))[inner].sum(),
        [0, 1],
    )
    assert (certainty.agreement.intercept, certainty.agreement.slope) == pytest.approx(theirs.x, abs=1e-4)
    # Tests of single predictions count the rows that there are, with the odds that they have among these.
    p = odds_divided(s, 1 / rate)
    residual = (z - p) * (1 - 2 * p)
    spread = p * (1 - p) * (1 - 2 * p) ** 2
    assert bars.spiegelhalter_z == pytest.approx(residual.sum() / np.sqrt(spread.sum()))
    assert bars.auc_error == run_passes(error_bar_passes(), run).auc_error
