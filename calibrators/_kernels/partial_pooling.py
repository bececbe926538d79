"""Curves of many groups that lean on one curve: each group's shift and stretch of it, shrunken towards none.

Built from additions, multiplications, divisions and the project's own exponential and logarithm, in the order of the
groups, so that every machine gives the same bits.
"""

import math

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.logistic import exp_of_negative

_LN2 = 0.6931471805599453
_ROUNDS = 100
_HALVINGS = 40
_SMALL = 1e-11  # of a step, beside 1: below it a group's optimum is found


@kernel(inline=True)
def _log(x):
    """The logarithm of a normal double > 0, to some units in the last place; no C library's."""
    mantissa, exponent = math.frexp(x)
    if mantissa < 0.7071067811865476:
        mantissa *= 2.0
        exponent -= 1
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    # atanh's series: |s| <= 0.172, so that eleven terms reach 1e-18.
    total = 0.0
    for j in range(10, -1, -1):
        total = total * z + 1.0 / (2 * j + 1)
    return exponent * _LN2 + 2.0 * s * total


@kernel(inline=True)
def _probability(eta):
    e = exp_of_negative(-abs(eta))
    return (1.0 if eta >= 0.0 else e) / (1.0 + e)


@kernel
def _derivatives(logit, x, weight, positives, start, stop, a, d, out):
    """Gradient and information of one group's log likelihood at (a, d) into out: g_a, g_d, h_aa, h_ad, h_dd."""
    g_a = g_d = h_aa = h_ad = h_dd = 0.0
    for i in range(start, stop):
        p = _probability(logit[i] + a + d * x[i])
        residual = positives[i] - weight[i] * p
        information = weight[i] * p * (1.0 - p)
        g_a += residual
        g_d += residual * x[i]
        h_aa += information
        h_ad += information * x[i]
        h_dd += information * x[i] * x[i]
    out[0], out[1], out[2], out[3], out[4] = g_a, g_d, h_aa, h_ad, h_dd


@kernel
def _climb(logit, x, weight, positives, start, stop, inverse_a, inverse_d, move_a, move_d, a, d, out):
    """Newton's method on the penalised log likelihood, which is concave; steps are halved that go too far.

    inverse_a, inverse_d : one over the variances. move_a, move_d : which of a and d are moved
    """
    _derivatives(logit, x, weight, positives, start, stop, a, d, out)
    for _ in range(_ROUNDS):
        g_a, g_d = out[0] - a * inverse_a, out[1] - d * inverse_d
        h_aa, h_ad, h_dd = out[2] + inverse_a, out[3], out[4] + inverse_d
        if move_a and move_d:
            determinant = h_aa * h_dd - h_ad * h_ad
            step_a = (h_dd * g_a - h_ad * g_d) / determinant
            step_d = (h_aa * g_d - h_ad * g_a) / determinant
        elif move_a:
            step_a, step_d = g_a / h_aa, 0.0
        else:
            step_a, step_d = 0.0, g_d / h_dd
        slope = step_a * g_a + step_d * g_d
        t = 1.0
        for _ in range(_HALVINGS):
            _derivatives(logit, x, weight, positives, start, stop, a + t * step_a, d + t * step_d, out)
            there = step_a * (out[0] - (a + t * step_a) * inverse_a) + step_d * (
                out[1] - (d + t * step_d) * inverse_d
            )
            # Along a step the slope falls; where it has turned as steep the other way, the step was too long.
            if there >= -0.5 * slope:
                break
            t *= 0.5
        a += t * step_a
        d += t * step_d
        if max(abs(step_a), abs(step_d)) <= _SMALL:
            break
    return a, d


@kernel
def move_curves(logit, x, weight, positives, starts, variance_a, variance_d, theta, derivatives):
    """The penalised optimum of each group: logit p = logit + a + d x, a ~ N(0, variance_a), d ~ N(0, variance_d).

    Parameters
    ----------
    logit, x, weight, positives : float64 arrays, shape (cells,), group after group
    starts : int64 array, shape (groups + 1,)
    variance_a, variance_d : >= 0; with 0 the parameter is 0
    theta : float64 array, shape (groups, 2): where to begin; the optimum is written there. d >= -1
    derivatives : float64 array, shape (groups, 5): gradient and information of the log likelihood there, for `evidence`
    """
    move_a, move_d = variance_a > 0.0, variance_d > 0.0
    inverse_a = 1.0 / variance_a if move_a else 0.0
    inverse_d = 1.0 / variance_d if move_d else 0.0
    out = np.empty(5)
    for g in range(starts.size - 1):
        a = theta[g, 0] if move_a else 0.0
        d = theta[g, 1] if move_d else 0.0
        start, stop = starts[g], starts[g + 1]
        if move_a or move_d:
            a, d = _climb(
                logit, x, weight, positives, start, stop, inverse_a, inverse_d, move_a, move_d, a, d, out
            )
            if d < -1.0:
                # A curve that falls is no calibration: the flat one.
                d = -1.0
                if move_a:
                    a, d = _climb(
                        logit, x, weight, positives, start, stop, inverse_a, inverse_d, True, False, a, d, out
                    )
        _derivatives(logit, x, weight, positives, start, stop, a, d, out)
        theta[g, 0], theta[g, 1] = a, d
        derivatives[g, :] = out


@kernel
def evidence(theta, derivatives, variances, out):
    """Laplace's log evidence of each pair of variances, summed over the groups in their order.

    With g, H gradient and information at theta and b = g + H theta: 1/2 b' (H + T^-1)^-1 b - 1/2 log det(I + T H).

    variances : float64 array, shape (n,), the candidates for both. out : float64 array, shape (n, n)
    """
    out[:] = 0.0
    for g in range(theta.shape[0]):
        g_a, g_d, h_aa, h_ad, h_dd = derivatives[g]
        b_a = g_a + h_aa * theta[g, 0] + h_ad * theta[g, 1]
        b_d = g_d + h_ad * theta[g, 0] + h_dd * theta[g, 1]
        whole = h_aa * h_dd - h_ad * h_ad
        for i in range(variances.size):
            s = variances[i]
            for j in range(variances.size):
                t = variances[j]
                determinant = 1.0 + s * h_aa + t * h_dd + s * t * whole
                # b' (H + T^-1)^-1 b with T^-1 multiplied away, so that a variance of 0 drops out by itself.
                top = (
                    s * b_a * b_a * (1.0 + t * h_dd)
                    - 2.0 * s * t * h_ad * b_a * b_d
                    + t * b_d * b_d * (1.0 + s * h_aa)
                )
                out[i, j] += 0.5 * top / determinant - 0.5 * _log(determinant)
