"""Beta calibration against scikit-learn's logistic regression on the logs of scores, as its authors' code fits it."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

from calibrators.arithmetic.sampling import odds_divided
from calibrators.methods.beta import Beta
from calibrators.methods.platt import Platt


def sample(n=3000, seed=0, a=0.6, b=1.4, c=-0.5):
    rng = np.random.default_rng(seed)
    s = np.clip(rng.beta(0.8, 1.2, n), 1e-9, 1 - 1e-9)
    return s, rng.random(n) < expit(a * np.log(s) - b * np.log1p(-s) + c)


def loss(parameters, s, z, w):
    argument = parameters[0] * np.log(s) - parameters[1] * np.log1p(-s) + parameters[2]
    return w @ (np.logaddexp(0.0, argument) - z * argument)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_optimum_is_that_of_a_general_minimiser(weighted):
    s, z = sample()
    w = np.random.default_rng(1).exponential(size=s.size) if weighted else np.ones(s.size)
    fitted = Beta().fit(s, z, w)
    found = minimize(loss, [1.0, 1.0, 0.0], (s, z, w), method="BFGS", options={"gtol": 1e-7})
    assert [fitted.a_, fitted.b_, fitted.c_] == pytest.approx(found.x, rel=1e-4, abs=1e-4)
    assert loss([fitted.a_, fitted.b_, fitted.c_], s, z, w) <= found.fun + 1e-9
    p = expit(fitted.a_ * np.log(s) - fitted.b_ * np.log1p(-s) + fitted.c_)
    assert fitted.predict(s) == pytest.approx(p, abs=1e-9)
    assert fitted.calibration_map_.monotone


@pytest.mark.parametrize(("a", "b", "zero"), [(-0.5, 1.0, "a_"), (1.0, -0.5, "b_")])
def test_a_negative_parameter_is_zero_and_the_others_are_fitted_again(a, b, zero):
    s, z = sample(a=a, b=b)
    fitted = Beta().fit(s, z)
    assert getattr(fitted, zero) == 0.0
    free = [i for i, name in enumerate(("a_", "b_", "c_")) if name != zero]

    def rest(values):
        full = np.zeros(3)
        full[free] = values
        return loss(full, s, z, np.ones(s.size))

    found = minimize(rest, [0.5, 0.0], method="BFGS", options={"gtol": 1e-7})
    got = np.array([fitted.a_, fitted.b_, fitted.c_])[free]
    assert got == pytest.approx(found.x, rel=1e-4, abs=1e-4)


def test_scores_that_go_down_give_a_constant():
    s, z = sample(a=-1.0, b=-1.0, c=0.3)
    fitted = Beta().fit(s, z)
    assert (fitted.a_, fitted.b_) == (0.0, 0.0)
    assert fitted.predict([0.1, 0.9]) == pytest.approx([z.mean()] * 2, rel=1e-6)


def test_a_sampled_log_moves_the_intercept():
    s, z = sample()
    raw, sampled = Beta(), Beta()
    sampled.sampling_rate = 0.05
    expected = odds_divided(raw.fit(s, z).predict(s), 0.05)
    assert sampled.fit(s, z).predict(s) == pytest.approx(expected, abs=1e-7)


def test_what_does_not_suit_is_refused():
    with pytest.raises(ValueError, match=r"expected numbers in \[0, 1\]"):
        Beta().fit([-1.0, 0.5], [0, 1])


@pytest.mark.parametrize("rate", [1.0, 0.01, 100.0])
@pytest.mark.parametrize("method", [Beta, lambda: Platt("logit")])
def test_the_table_is_right_up_to_the_ends_of_the_scores(method, rate):
    s, z = sample()[:2]
    fitted = method()
    fitted.sampling_rate = rate
    fitted.fit(s, z)
    near = 2.0 ** -np.arange(1, 53.25, 0.25)
    last = np.arange(0, 40) * 2.0**-53
    at = np.unique(np.concatenate([near, 1 - near, last, 1 - last, [2.0**-60, 2.0**-54]]))
    clipped = np.clip(at, 2.0**-53, 1 - 2.0**-53)
    if isinstance(fitted, Beta):
        argument = fitted.a_ * np.log(clipped) - fitted.b_ * np.log1p(-clipped) + fitted.c_
    else:
        argument = fitted.slope_ * (np.log(clipped) - np.log1p(-clipped)) + fitted.intercept_
    assert np.abs(fitted.predict(at) - expit(argument)).max() <= 1e-9
