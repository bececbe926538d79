"""Fitting a curve of log-odds with a Gaussian prior to cells: its loops, the same on every machine.

Logarithms and exponentials are made of additions, multiplications and divisions, and sums have one order.
"""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.log_odds import exp_of_negative, log_of

_UNROLLED = 4
_LEAST_PIVOT = 1e-15


@kernel
def likelihood(x, theta, offset, w, pos, info, miss):
    """The log likelihood of log-odds offset + x theta; fill in each cell's information and residual.

    x : float64 array, shape (cells, columns); theta has coefficients of its first columns
    offset, w, pos : float64 arrays, shape (cells,): the prior's mean, weights, positives
    """
    size = theta.size
    whole = size - size % _UNROLLED
    total = 0.0
    for i in range(offset.size):
        row = x[i]
        # Four sums, which need not wait for each other.
        a = b = c = d = 0.0
        for j in range(0, whole, _UNROLLED):
            a += row[j] * theta[j]
            b += row[j + 1] * theta[j + 1]
            c += row[j + 2] * theta[j + 2]
            d += row[j + 3] * theta[j + 3]
        for j in range(whole, size):
            a += row[j] * theta[j]
        f = offset[i] + ((a + b) + (c + d))
        e = exp_of_negative(-abs(f))
        p = (1.0 if f >= 0.0 else e) / (1.0 + e)
        total += pos[i] * f - w[i] * (max(f, 0.0) + log_of(1.0 + e))
        info[i] = w[i] * p * (1.0 - p)
        miss[i] = pos[i] - w[i] * p
    return total


@kernel
def column_sums(weights, x, columns, out):
    """Weighted sums of the first columns. weights : float64 array, shape (sums, cells); out : (sums, columns)."""
    n = x.shape[0]
    for k in range(weights.shape[0]):
        own = out[k]
        for j in range(columns):
            own[j] = 0.0
    c = 0
    while c < n:
        # What is beyond the last cell has no weight.
        i1, i2, i3 = min(c + 1, n - 1), min(c + 2, n - 1), min(c + 3, n - 1)
        r0, r1, r2, r3 = x[c], x[i1], x[i2], x[i3]
        for k in range(weights.shape[0]):
            own, w = out[k], weights[k]
            a = w[c]
            b = w[i1] if c + 1 < n else 0.0
            d = w[i2] if c + 2 < n else 0.0
            e = w[i3] if c + 3 < n else 0.0
            for j in range(columns):
                own[j] += (a * r0[j] + b * r1[j]) + (d * r2[j] + e * r3[j])
        c += _UNROLLED


@kernel
def solve(h, gradient, step):
    """Cholesky's factor in place of the lower triangle, and h step = gradient; return half the log determinant."""
    total = 0.0
    for i in range(gradient.size):
        row = h[i]
        least = _LEAST_PIVOT * row[i]
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
                row[i] = np.sqrt(max(rest, least))
                total += log_of(row[i])
    for i in range(gradient.size):
        left = gradient[i]
        for j in range(i):
            left -= h[i, j] * step[j]
        step[i] = left / h[i, i]
    for i in range(gradient.size - 1, -1, -1):
        step[i] /= h[i, i]
        for j in range(i):
            step[j] -= h[i, j] * step[i]
    return total


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
