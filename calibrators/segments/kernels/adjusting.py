"""Adjustments of many groups: each group shifts and stretches one shared curve, shrunken towards no change.

Results have the same bits on every machine: the order of operations is fixed, and the exponential and logarithm are
those of `calibrators.core.kernels.log_odds`.
"""

import math

import numpy as np

from calibrators.core.compiled import kernel
from calibrators.core.kernels.log_odds import exp_of_negative, log_of, probability_of

_ROUNDS = 100
_HALVINGS = 40
_LARGEST_PRODUCT = 2.0**1000  # limit of a product of determinants
_SMALL = 1e-7  # length of the last step: the next one, about its square, would not change the optimum
_BLOCK = 256
_SINGULAR = 1e-10  # of an information matrix: its determinant, as a share of the product of its diagonal

USUAL, FAR, OUTLYING, CONSTANT, FALLING = 0, 1, 2, 3, 4
"""Kinds of groups: usual; usual, but outliers if variances were 0; outliers; at the least slope; there with evidence
for a lesser one."""


@kernel
def _derivatives(cells, start, stop, centre, a, d, chance, out):
    """Write gradient and information of one group's log likelihood at (a, d) to out: g_a, g_d, h_aa, h_ad, h_dd.

    cells : logit, at, weight, positives: see `adjust_curves`
    a, d : logit p = logit + a + d x
    chance : float64 array, shape (_BLOCK,), for the probabilities
    """
    logit, at, weight, positives = cells
    g_a = g_d = h_aa = h_ad = h_dd = 0.0
    for begin in range(start, stop, _BLOCK):
        n = min(_BLOCK, stop - begin)
        for j in range(n):
            chance[j] = probability_of(logit[begin + j] + a + d * (at[begin + j] - centre))
        for j in range(n):
            i = begin + j
            x = at[i] - centre
            p = chance[j]
            residual = positives[i] - weight[i] * p
            information = weight[i] * p * (1.0 - p)
            g_a += residual
            g_d += residual * x
            h_aa += information
            h_ad += information * x
            h_dd += information * x * x
    out[0], out[1], out[2], out[3], out[4] = g_a, g_d, h_aa, h_ad, h_dd


@kernel
def derive(logit, at, weight, positives, starts, centre, curves, derivatives):
    """Compute the derivatives of each group's log likelihood for its curve.

    curves : float64 array, shape (groups, 2): logit p = logit + a + d x
    derivatives : float64 array, shape (groups, 5), filled: see `adjust_curves`, which has the other parameters, too
    """
    cells = (logit, at, weight, positives)
    chance = np.empty(_BLOCK)
    for g in range(starts.size - 1):
        a, d = curves[g]
        _derivatives(cells, starts[g], starts[g + 1], centre[g], a, d, chance, derivatives[g])


@kernel
def _maximize(cells, start, stop, centre, typical, inverse_a, inverse_d, free_a, free_d, a, d, chance, out):
    """Maximise the penalised log likelihood, which is concave, by Newton's method; halve steps that go too far.

    Return the optimum, and write the derivatives there to `out`.

    typical : float64 array, shape (2,): to be added to a and d
    inverse_a, inverse_d : inverse variances
    free_a, free_d : whether a and d are free parameters; otherwise they keep their values
    """
    low, high = typical
    _derivatives(cells, start, stop, centre, low + a, high + d, chance, out)
    for _ in range(_ROUNDS):
        g_a, g_d = out[0] - a * inverse_a, out[1] - d * inverse_d
        h_aa, h_ad, h_dd = out[2] + inverse_a, out[3], out[4] + inverse_d
        determinant = h_aa * h_dd - h_ad * h_ad
        # Of enormous weights at one score it is 0: the prior does not count beside them.
        if free_a and free_d and determinant > 0.0:
            step_a = (h_dd * g_a - h_ad * g_d) / determinant
            step_d = (h_aa * g_d - h_ad * g_a) / determinant
        elif free_a:
            step_a, step_d = g_a / h_aa, 0.0
        else:
            step_a, step_d = 0.0, g_d / h_dd
        slope = step_a * g_a + step_d * g_d
        t = 1.0
        for _ in range(_HALVINGS):
            b, e = a + t * step_a, d + t * step_d
            _derivatives(cells, start, stop, centre, low + b, high + e, chance, out)
            new_slope = step_a * (out[0] - b * inverse_a) + step_d * (out[1] - e * inverse_d)
            # The slope decreases along a step. The step is too long if the slope at its end is too negative.
            if new_slope >= -0.5 * slope:
                break
            t *= 0.5
        else:
            b, e = a + t * step_a, d + t * step_d
            _derivatives(cells, start, stop, centre, low + b, high + e, chance, out)
        a += t * step_a
        d += t * step_d
        if max(abs(step_a), abs(step_d)) <= _SMALL:
            break
    return a, d


@kernel
def _mode(cells, start, stop, centre, typical, floor, prior, a, d, chance, out):
    """Find one group's mode with a slope that is not negative, and write its derivatives to out.

    floor : least d
    prior : variances; with 0 a parameter is 0
    """
    free_a, free_d = prior[0] > 0.0, prior[1] > 0.0
    inverse_a = 1.0 / prior[0] if free_a else 0.0
    inverse_d = 1.0 / prior[1] if free_d else 0.0
    a, d = a if free_a else 0.0, d if free_d else 0.0
    if free_a or free_d:
        a, d = _maximize(
            cells, start, stop, centre, typical, inverse_a, inverse_d, free_a, free_d, a, d, chance, out
        )
    else:
        _derivatives(cells, start, stop, centre, typical[0] + a, typical[1] + d, chance, out)
    if d < floor:
        # A decreasing curve is not allowed, so take the constant one.
        d = floor
        if free_a:
            a, d = _maximize(
                cells, start, stop, centre, typical, inverse_a, inverse_d, True, False, a, d, chance, out
            )
        else:
            _derivatives(cells, start, stop, centre, typical[0] + a, typical[1] + d, chance, out)
    return a, d


@kernel
def _log_likelihood(cells, start, stop, centre, a, d):
    logit, at, weight, positives = cells
    total = 0.0
    for i in range(start, stop):
        eta = logit[i] + a + d * (at[i] - centre)
        total += positives[i] * eta - weight[i] * (max(eta, 0.0) + log_of(1.0 + exp_of_negative(-abs(eta))))
    return total


@kernel
def adjust_curves(
    logit,
    at,
    weight,
    positives,
    starts,
    centre,
    steepness,
    typical,
    priors,
    unlikely,
    theta,
    derivatives,
    kind,
):
    """Fit a and d of each group: logit p = logit + m_a + a + (m_d + d) x, a ~ N(0, variance_a), d ~ N(0, variance_d).

    m is the typical curve. A group is an outlier, with the second variances, if these have more evidence by Laplace's
    method, times `unlikely`.

    Parameters
    ----------
    logit, at, weight, positives : float64 arrays, shape (cells,), group after group
    starts : int64 array, shape (groups + 1,): first cell of each group, and the end
    centre, steepness : float64 arrays, shape (groups,): x is at - centre; slope of the log odds in x, >= 0
    typical : float64 array, shape (2,): m
    priors : float64 array, shape (2, 2), >= 0: variances of a and d, usual and of outliers; with 0 the parameter is 0
    unlikely : prior probability of outliers
    theta : float64 array, shape (groups, 2): initial (a, d), replaced by the penalised optimum with
        d + m_d >= -steepness
    derivatives : float64 array, shape (groups, 5): filled with gradient and information of the log likelihood at the
        optimum, for `evidence`
    kind : int8 array, shape (groups,), filled
    """
    cells = (logit, at, weight, positives)
    chance = np.empty(_BLOCK)
    penalty = -log_of(unlikely)
    wide, none = np.empty(5), np.zeros(2)
    for g in range(starts.size - 1):
        out, start, stop, pivot = derivatives[g], starts[g], starts[g + 1], centre[g]
        floor = -steepness[g] - typical[1]
        first = theta[g, 0], theta[g, 1]
        a, d = _mode(cells, start, stop, pivot, typical, floor, priors[0], *first, chance, out)
        theta[g, 0], theta[g, 1] = a, d
        kind[g] = USUAL
        usual = _half_distance(theta[g], out, priors[0])
        if usual > penalty and usual > _half_distance(theta[g], out, priors[1]) + penalty:
            # The likelihood is far from a parabola if there are few positives, so compare the values at both modes.
            b, e = _mode(cells, start, stop, pivot, typical, floor, priors[1], a, d, chance, wide)
            gain = _log_likelihood(cells, start, stop, pivot, typical[0] + b, typical[1] + e)
            gain -= _log_likelihood(cells, start, stop, pivot, typical[0] + a, typical[1] + d)
            gain += _penalty(b, e, wide, priors[1]) - _penalty(a, d, out, priors[0])
            if gain > penalty:
                theta[g, 0], theta[g, 1] = b, e
                out[:] = wide
                kind[g] = OUTLYING
        if theta[g, 1] <= floor:
            falls = _falls(out)
            if kind[g] == USUAL or falls > penalty:
                kind[g] = FALLING if falls > penalty else CONSTANT
        elif kind[g] == USUAL and _half_distance(theta[g], out, none) > penalty:
            _derivatives(cells, start, stop, pivot, typical[0], typical[1], chance, wide)
            # By the trapezoidal rule, as a parabola is too high if there are few positives.
            gain = 0.5 * ((wide[0] + out[0]) * theta[g, 0] + (wide[1] + out[1]) * theta[g, 1])
            if gain + _penalty(0.0, 0.0, out, priors[1]) > penalty:
                kind[g] = FAR


@kernel(inline=True)
def _falls(derivatives):
    """Return half of the score test's statistic against a lesser slope."""
    g_d, h_aa, h_ad, h_dd = derivatives[1], derivatives[2], derivatives[3], derivatives[4]
    variance = h_dd - h_ad * h_ad / h_aa if h_aa > 0.0 else 0.0
    return 0.5 * g_d * g_d / variance if g_d < 0.0 and variance > _SINGULAR * h_dd else 0.0


@kernel(inline=True)
def _penalty(a, d, derivatives, prior):
    """Return the logarithm of prior density and Laplace's determinant, with the same constant for all priors."""
    s, t = prior[0], prior[1]
    h_aa, h_ad, h_dd = derivatives[2], derivatives[3], derivatives[4]
    determinant = (1.0 + s * h_aa) * (1.0 + t * h_dd) - s * t * h_ad * h_ad
    square = (a * a / s if s > 0.0 else 0.0) + (d * d / t if t > 0.0 else 0.0)
    return -0.5 * (square + log_of(max(determinant, 1.0)))


@kernel(inline=True)
def _terms(theta, derivatives):
    """Return b = g + H theta, and c, u, v: the squared distance q(T) is (c + t_d u^2 + t_a v^2) / det(I + T H).

    q is that of the estimate H^-1 b from 0, with covariance T + H^-1. u and v are 0 if H is singular.

    Also return the determinant of H and its root.
    """
    g_a, g_d, h_aa, h_ad, h_dd = derivatives
    b_a = g_a + h_aa * theta[0] + h_ad * theta[1]
    b_d = g_d + h_ad * theta[0] + h_dd * theta[1]
    determinant = h_aa * h_dd - h_ad * h_ad
    if not determinant > _SINGULAR * h_aa * h_dd:
        # All cells have one log odds.
        return b_a, b_d, b_a * b_a / h_aa if h_aa > 0.0 else 0.0, 0.0, 0.0, 0.0, 0.0
    root = math.sqrt(determinant)
    u, v = (h_dd * b_a - h_ad * b_d) / root, (h_aa * b_d - h_ad * b_a) / root
    return b_a, b_d, (b_a * u + b_d * v) / root, u, v, determinant, root


@kernel
def _half_distance(theta, derivatives, prior):
    """Return 1/2 q + 1/2 log det(I + T H) for these variances: see `_terms`."""
    _, _, c, u, v, determinant_h, _ = _terms(theta, derivatives)
    s, t = prior[0], prior[1]
    determinant = 1.0 + s * derivatives[2] + t * (derivatives[4] + s * determinant_h)
    return 0.5 * ((c + t * u * u + s * v * v) / determinant + log_of(determinant))


@kernel
def evidence(theta, derivatives, kind, shifts, slopes, typical, unlikely, out):
    """Compute Laplace's log evidence of each pair of variances, summed over the groups in their order.

    With q and H as in `_terms`, a group's evidence is -1/2 q - 1/2 log det(I + T H), and at least that of the largest
    variances times `unlikely`: no group, however far from the typical curve, decides on the variances of the others.
    Usual groups do not reach this bound. To save logarithms, their determinants are multiplied until the product could
    overflow.

    theta, derivatives, kind : output of `adjust_curves`
    shifts, slopes : float64 arrays, ascending: candidates for the variances of a and of d
    typical : float64 array, shape (shifts, slopes, 2): mean of (a, d) with each pair of variances
    out : float64 array, shape (shifts, slopes), filled
    """
    m, n = shifts.size, slopes.size
    most_a, most_d = shifts[m - 1], slopes[n - 1]
    penalty = -log_of(unlikely)
    product = np.ones((m, n))
    quadratics = np.zeros((m, n))
    out[:] = 0.0
    room = _LARGEST_PRODUCT
    for g in range(theta.shape[0]):
        b_a, b_d, c, u, v, determinant_h, root = _terms(theta[g], derivatives[g])
        h_aa, h_ad, h_dd = derivatives[g, 2], derivatives[g, 3], derivatives[g, 4]
        # Determinants are at least 1; the largest variances have the largest determinant.
        widest = 1.0 + most_a * h_aa + most_d * h_dd + most_a * most_d * determinant_h
        bounded = kind[g] != USUAL
        least = 0.0
        if bounded:
            least = (c + most_d * u * u + most_a * v * v) / widest + log_of(widest) + 2.0 * penalty
        elif widest > room:
            for i in range(m):
                for j in range(n):
                    out[i, j] += log_of(product[i, j])
                    product[i, j] = 1.0
            room = _LARGEST_PRODUCT / widest
        else:
            room /= widest
        for i in range(m):
            s = shifts[i]
            first, second = 1.0 + s * h_aa, h_dd + s * determinant_h
            for j in range(n):
                t = slopes[j]
                p, q = typical[i, j, 0], typical[i, j, 1]
                determinant = first + t * second
                k = c + p * (h_aa * p - 2.0 * b_a) + q * (h_dd * q + 2.0 * h_ad * p - 2.0 * b_d)
                r, z = u - root * p, v - root * q
                k = max(k, 0.0) + t * r * r + s * z * z
                if bounded:
                    quadratics[i, j] += min(k / determinant + log_of(determinant), least)
                else:
                    product[i, j] *= determinant
                    quadratics[i, j] += k / determinant
    for i in range(m):
        for j in range(n):
            out[i, j] = -0.5 * (quadratics[i, j] + out[i, j] + log_of(product[i, j]))
