"""Fitting a curve of log-odds with a Gaussian prior to cells: modes and evidence, the same on every machine.

Logarithms, exponentials and cosines are made of additions, multiplications and divisions, and sums have one order.
"""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.log_odds import log_of, probability_of
from calibrators._kernels.logistic import exp_of_negative

_PI = 3.141592653589793
_ROUNDS = 50
_SHORTEST = 1e-6
_CLOSE = 1e-4
_UNROLLED = 4
_LEAST_PIVOT = 1e-15


@kernel(inline=True)
def log_one_plus_exp(x):
    """log(1 + exp(x))."""
    return max(x, 0.0) + log_of(1.0 + exp_of_negative(-abs(x)))


@kernel(inline=True)
def _cosine(u):
    """cos(pi u) of 0 <= u <= 1, as the sine of what is left to a right angle."""
    x = _PI * (0.5 - u)
    square = x * x
    total = 1.0
    for j in range(25, 2, -2):
        total = 1.0 - square / (j * (j - 1.0)) * total
    return x * total


@kernel
def log_odds(score, out):
    """Log s - log(1 - s) of scores in [1e-300, 1 - 2**-53]."""
    for i in range(score.size):
        out[i] = log_of(score[i]) - log_of(1.0 - score[i])


@kernel
def probabilities(argument, out):
    """1 / (1 + exp(-f)) of finite numbers."""
    for i in range(argument.size):
        out[i] = probability_of(argument[i])


@kernel
def certainties(z, out):
    """Log sigma(z) + log sigma(-z)."""
    for i in range(z.size):
        out[i] = -log_one_plus_exp(z[i]) - log_one_plus_exp(-z[i])


@kernel
def basis(z, certainty, u, out):
    """Fill in the columns 1, z, certainty, and cos(pi j u) for j = 1, 2, ...; z and certainty less their means."""
    terms = out.shape[1] - 3
    for i in range(z.size):
        out[i, 0], out[i, 1], out[i, 2] = 1.0, z[i], certainty[i]
        before, now = 1.0, _cosine(u[i])
        twice = 2.0 * now
        for j in range(terms):
            out[i, 3 + j] = now
            before, now = now, twice * now - before


@kernel
def _arguments(x, theta, size, offset, f):
    for i in range(offset.size):
        total = offset[i]
        row = x[i]
        # Four sums, which need not wait for each other.
        a = b = c = d = 0.0
        whole = size - size % _UNROLLED
        for j in range(0, whole, _UNROLLED):
            a += row[j] * theta[j]
            b += row[j + 1] * theta[j + 1]
            c += row[j + 2] * theta[j + 2]
            d += row[j + 3] * theta[j + 3]
        for j in range(whole, size):
            a += row[j] * theta[j]
        f[i] = total + ((a + b) + (c + d))


@kernel
def _value(x, theta, size, offset, w, pos, v, f):
    """The logarithm of likelihood and prior, but for what does not depend on theta; fills in f."""
    _arguments(x, theta, size, offset, f)
    total = 0.0
    for i in range(f.size):
        total += pos[i] * f[i] - w[i] * log_one_plus_exp(f[i])
    penalty = 0.0
    for j in range(size):
        penalty += theta[j] * theta[j] / v[j]
    return total - 0.5 * penalty


@kernel
def _hessian(x, size, f, w, v, h):
    """Minus the second derivatives, the lower triangle."""
    for i in range(size):
        for j in range(i + 1):
            h[i, j] = 0.0
    n = f.size
    c = 0
    while c < n:
        some = min(_UNROLLED, n - c)
        info = np.zeros(_UNROLLED)
        for k in range(some):
            p = probability_of(f[c + k])
            info[k] = w[c + k] * p * (1.0 - p)
        # What is beyond the last cell has no weight.
        r0, r1 = x[c], x[min(c + 1, n - 1)]
        r2, r3 = x[min(c + 2, n - 1)], x[min(c + 3, n - 1)]
        for i in range(size):
            a, b = info[0] * r0[i], info[1] * r1[i]
            d, e = info[2] * r2[i], info[3] * r3[i]
            row = h[i]
            for j in range(i + 1):
                row[j] += (a * r0[j] + b * r1[j]) + (d * r2[j] + e * r3[j])
        c += _UNROLLED
    for j in range(size):
        h[j, j] += 1.0 / v[j]


@kernel
def _factor(h, size, diagonal):
    """Cholesky's factor in place of the lower triangle; return half the logarithm of the determinant."""
    total = 0.0
    for i in range(size):
        row = h[i]
        for j in range(i + 1):
            other = h[j]
            a = b = c = d = 0.0
            whole = j - j % _UNROLLED
            for k in range(0, whole, _UNROLLED):
                a += row[k] * other[k]
                b += row[k + 1] * other[k + 1]
                c += row[k + 2] * other[k + 2]
                d += row[k + 3] * other[k + 3]
            for k in range(whole, j):
                a += row[k] * other[k]
            rest = row[j] - ((a + b) + (c + d))
            if j < i:
                row[j] = rest / other[j]
            else:
                # Rounding may leave nothing where weights are huge.
                root = np.sqrt(max(rest, _LEAST_PIVOT * diagonal[i]))
                row[i] = root
                total += log_of(root)
    return total


@kernel
def _solve(h, size, gradient, step):
    for i in range(size):
        total = gradient[i]
        for j in range(i):
            total -= h[i, j] * step[j]
        step[i] = total / h[i, i]
    for i in range(size - 1, -1, -1):
        step[i] /= h[i, i]
        for j in range(i):
            step[j] -= h[i, j] * step[i]


@kernel
def _factor_at(x, size, f, w, v, h, diagonal):
    _hessian(x, size, f, w, v, h)
    for j in range(size):
        diagonal[j] = h[j, j]
    return _factor(h, size, diagonal)


@kernel
def _mode(x, size, offset, w, pos, v, theta, f, h):
    """Newton's method with halved steps, in place of theta; return Laplace's log evidence, less a constant."""
    n, most = offset.size, x.shape[1]
    tried, step, gradient, diagonal = np.empty(most), np.empty(most), np.empty(most), np.empty(most)
    other = np.empty(n)
    now = _value(x, theta, size, offset, w, pos, v, f)
    tried[:] = 0.0
    zero = _value(x, tried, size, offset, w, pos, v, other)
    if zero > now:
        theta[:] = 0.0
        f[:] = other
        now = zero
    determinant = 0.0
    for _ in range(_ROUNDS):
        determinant = _factor_at(x, size, f, w, v, h, diagonal)
        for j in range(size):
            gradient[j] = -theta[j] / v[j]
        for i in range(n):
            miss = pos[i] - w[i] * probability_of(f[i])
            row = x[i]
            for j in range(size):
                gradient[j] += row[j] * miss
        _solve(h, size, gradient, step)
        promised = 0.0
        for j in range(size):
            promised += gradient[j] * step[j]
        scale = 1.0
        while True:
            for j in range(size):
                tried[j] = theta[j] + scale * step[j]
            new = _value(x, tried, size, offset, w, pos, v, other)
            if new >= now or scale < _SHORTEST:
                break
            scale *= 0.5
        if new > now:
            for j in range(size):
                theta[j] = tried[j]
            f[:] = other
            now = new
        if not promised >= _CLOSE:
            break
    spread = 0.0
    for j in range(size):
        spread += log_of(v[j])
    return now - 0.5 * spread - determinant


@kernel
def modes(x, offset, w, pos, variances, sizes, starts, thetas, evidence):
    """The posterior's mode and its evidence for each prior.

    Parameters
    ----------
    x : float64 array, shape (cells, terms), C order
    offset, w, pos : float64 arrays, shape (cells,): the prior's mean, weights, positives
    variances : float64 array, shape (priors, terms)
    sizes : int64 array, shape (priors,): how many of the terms each prior has, from the first
    starts : float64 array, shape (priors, terms) or (0, terms): where Newton's method begins; otherwise at the mode of
        the prior before
    thetas : float64 array, shape (priors, terms), filled in: the modes; 0 of what a prior does not have
    evidence : float64 array, shape (priors,), filled in
    """
    most = x.shape[1]
    f, h, theta = np.empty(offset.size), np.empty((most, most)), np.zeros(most)
    for g in range(sizes.size):
        size = sizes[g]
        if starts.shape[0] > 0:
            theta[:] = starts[g]
        for j in range(size, most):
            theta[j] = 0.0
        evidence[g] = _mode(x, size, offset, w, pos, variances[g], theta, f, h)
        thetas[g] = theta


@kernel
def variances_at(x, offset, w, variance, size, theta, at, out):
    """Posterior variances, by Laplace's approximation at a mode, of the curve at other places.

    at : float64 array, shape (places, terms): their basis. out : float64 array, shape (places,)
    """
    most = x.shape[1]
    f, h, diagonal, half = np.empty(offset.size), np.empty((most, most)), np.empty(most), np.empty(most)
    _arguments(x, theta, size, offset, f)
    _factor_at(x, size, f, w, variance, h, diagonal)
    for i in range(at.shape[0]):
        total = 0.0
        for k in range(size):
            value = at[i, k]
            for j in range(k):
                value -= h[k, j] * half[j]
            half[k] = value / h[k, k]
            total += half[k] * half[k]
        out[i] = total


@kernel
def rising(values, weights):
    """The non-decreasing numbers nearest to values: weighted least squares by pooling adjacent violators."""
    n = values.size
    level, mass, count = np.empty(n), np.empty(n), np.empty(n, np.int64)
    top = 0
    for i in range(n):
        a, w, c = values[i], weights[i], 1
        while top > 0 and level[top - 1] >= a:
            top -= 1
            total = mass[top] + w
            a = level[top] + (a - level[top]) * (w / total)
            w = total
            c += count[top]
        level[top], mass[top], count[top] = a, w, c
        top += 1
    out = np.empty(n)
    i = 0
    for block in range(top):
        for _ in range(count[block]):
            out[i] = level[block]
            i += 1
    return out
