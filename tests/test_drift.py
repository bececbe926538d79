"""Drift: the evidence against its formulas, the promise against simulated years, e-BH against its definition."""

import math

import numpy as np
import pytest
from common import over
from scipy.special import expit, logit
from scipy.stats import beta

from calibrators.arithmetic.passes import Points
from calibrators.measures.drift import CHANGES, DriftState, Evidence, alarms, evidence_pass, stability_index
from calibrators.measures.predictions import run_passes


def evidence(points, predict=None, tolerance=1.05, cuts=()):
    def passes():
        return (yield evidence_pass(predict, tolerance))

    return run_passes(passes(), over(points, *cuts))


def sample(n=4000, seed=0, weights=False):
    rng = np.random.default_rng(seed)
    p = np.sort(np.clip(rng.beta(0.3, 6.0, n), 1e-12, 1.0))
    w = rng.integers(1, 4, n).astype(float) if weights else np.ones(n)
    return Points(p, w, rng.binomial(w.astype(int), p).astype(float))


@pytest.mark.parametrize("tolerance", [1.0, 1.05, 1.5])
@pytest.mark.parametrize("weights", [False, True])
def test_evidence_is_the_log_likelihood_ratio(weights, tolerance):
    points = sample(weights=weights)
    p, w, k = points
    found = evidence(points, tolerance=tolerance, cuts=(10, 2000))
    for change, log in zip(CHANGES, found.logs, strict=True):
        z = logit(p) + math.copysign(math.log(tolerance), change)
        before, after = expit(z), expit(z + change)
        ratio = k @ np.log(after / before) + (w - k) @ (np.log1p(-after) - np.log1p(-before))
        assert log == pytest.approx(ratio, rel=1e-9, abs=1e-9)
    assert (found.rows, found.observed) == (w.sum(), k.sum())
    assert found.expected == pytest.approx(w @ p)
    assert evidence(points, tolerance=tolerance) == found


def test_a_label_that_was_called_impossible_alarms():
    points = Points(np.array([0.0, 0.5]), np.ones(2), np.array([1.0, 0.0]))
    state = DriftState().after(evidence(points))
    assert state.log_e == math.inf
    fine = Points(np.array([0.0, 1.0]), np.ones(2), np.array([0.0, 1.0]))
    assert math.isfinite(DriftState().after(evidence(fine)).log_e)


def test_the_state_is_the_mean_over_all_days_that_may_be_the_first():
    rng = np.random.default_rng(0)
    days = rng.normal(0, 1, (6, len(CHANGES)))
    state = DriftState()
    for t, logs in enumerate(days, 1):
        state = state.after(Evidence(tuple(logs), 1.0, 0.0, 0.0))
        starts = [np.exp(days[s - 1 : t].sum(0)) / (s * (s + 1)) for s in range(1, t + 1)]
        expected = np.sum(starts, 0).mean() + 1 / (t + 1)
        assert state.log_e == pytest.approx(math.log(expected))
    assert state.days == 6


def simulated(rng, days, shift, change_day=None, change=0.0):
    """E-values of a table of 20 levels with 1e5 rows a day at a rate of about 1 %, odds off by a factor exp(shift)."""
    p = expit(np.linspace(-7, -2, 20))
    rows = np.full(20, 5000)
    state, found = DriftState(), []
    for day in range(days):
        off = shift + (change if change_day is not None and day >= change_day else 0.0)
        k = rng.binomial(rows, expit(logit(p) + off)).astype(float)
        state = state.after(evidence(Points(p, rows.astype(float), k)))
        found.append(state.log_e)
    return np.array(found)


def simulated_years(rng, shifts, days):
    """The highest e-value of each of many years, all at once: as `simulated`, which takes a year at a time."""
    p = expit(np.linspace(-7, -2, 20))
    rows = np.full(20, 5000.0)
    zero, one = (np.array(evidence(Points(p, rows, k)).logs) for k in (np.zeros(20), np.eye(20)[0]))
    # Log likelihood ratios are lines in the positives, of the same slope at every probability.
    np.testing.assert_allclose(one - zero, CHANGES, atol=1e-9)
    off = expit(logit(p) + np.asarray(shifts)[:, None])
    logs, highest = np.full((len(off), len(CHANGES)), -np.inf), np.full(len(off), -np.inf)
    for t in range(1, days + 1):
        positives = rng.binomial(5000, off).sum(axis=1)
        logs = (
            np.logaddexp(logs, -math.log(t) - math.log(t + 1)) + zero + positives[:, None] * np.array(CHANGES)
        )
        mean = np.logaddexp.reduce(logs, axis=1) - math.log(len(CHANGES))
        highest = np.maximum(highest, np.logaddexp(mean, -math.log(t + 1)))
    return highest


def test_years_at_once_are_years_one_by_one():
    rng, again = np.random.default_rng(4), np.random.default_rng(4)
    for _ in range(2):
        one = simulated(rng, 20, 0.03)
        assert simulated_years(again, [0.03], 20)[0] == pytest.approx(one.max())


def test_eight_hundred_years_keep_the_promise():
    """A table within tolerance ever alarms with probability at most alpha, though it is looked at every day."""
    alpha, years = 0.01, 800
    # Odds off by nearly all that is tolerated, either way, and right.
    shifts = np.resize([0.0487, -0.0487, 0.0], years)
    alarmed = int((simulated_years(np.random.default_rng(7), shifts, 365) >= math.log(1 / alpha)).sum())
    # Clopper and Pearson's upper limit, 95 %, for the chance of an alarm in a year.
    assert beta.ppf(0.95, alarmed + 1, years - alarmed) <= alpha


def test_a_change_is_found_within_days():
    rng, limit = np.random.default_rng(1), math.log(1 / 0.01)
    for _ in range(5):
        e = simulated(rng, 26, 0.0, change_day=20, change=math.log(1.49))
        assert e[:20].max() < limit
        assert int(np.argmax(e >= limit)) - 20 + 1 <= 3


def test_many_tables_by_the_definition():
    rng = np.random.default_rng(2)
    for _ in range(50):
        log_e = rng.normal(3, 4, 12)
        e = np.sort(np.exp(log_e))[::-1]
        count = max([k for k in range(1, 13) if e[k - 1] >= 12 / (k * 0.05)], default=0)
        expected = np.isin(np.arange(12), np.argsort(-log_e)[:count])
        assert alarms(log_e, 0.05).tolist() == expected.tolist()
    assert alarms([math.log(100.0)], 0.01).tolist() == [True]
    assert alarms([math.log(99.0)], 0.01).tolist() == [False]


def test_stability_of_what_has_not_moved():
    rng = np.random.default_rng(3)
    reference = rng.multinomial(100_000, np.full(500, 1 / 500))
    psi = [stability_index(reference, rng.multinomial(50_000, np.full(500, 1 / 500)))[0] for _ in range(200)]
    assert np.mean(psi) == pytest.approx(19 * (1 / 100_000 + 1 / 50_000), rel=0.15)
    assert stability_index(reference, reference) == (0.0, 0.0)
    assert stability_index([1, 1], [0, 10])[1] == pytest.approx(0.5)
