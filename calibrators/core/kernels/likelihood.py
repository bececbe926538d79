"""Likelihood of a curve of log-odds with a Gaussian prior; log loss of a logistic model with its derivatives.

The curve's likelihood has the same bits on every machine: sums have a fixed order, and logarithms and exponentials are
those of `calibrators.core.kernels.log_odds`. The sums of the log loss do not depend on the order of the points.
"""

import math

import numpy as np

from calibrators.core.compiled import kernel
from calibrators.core.kernels.log_odds import exp_of_negative, log_of

_UNROLLED = 4
_LEAST_PIVOT = 1e-15


@kernel
def likelihood(x, theta, cells, state):
    """Return the log likelihood of the log-odds offset + x theta; fill `state`.

    x : float64 array, shape (cells, columns)
    theta : float64 array: coefficients of the first columns of x
    cells : float64 arrays offset, w, pos, shape (cells,): prior mean, weights, positives
    state : float64 array, shape (2, cells), filled: w p (1 - p) and pos - w p
    """
    offset, w, pos = cells
    info, residual = state
    size = theta.size
    unrolled = size - size % _UNROLLED
    total = 0.0
    for i in range(offset.size):
        row = x[i]
        # Four independent sums.
        a = b = c = d = 0.0
        for j in range(0, unrolled, _UNROLLED):
            a += row[j] * theta[j]
            b += row[j + 1] * theta[j + 1]
            c += row[j + 2] * theta[j + 2]
            d += row[j + 3] * theta[j + 3]
        for j in range(unrolled, size):
            a += row[j] * theta[j]
        f = offset[i] + ((a + b) + (c + d))
        e = exp_of_negative(-abs(f))
        p = (1.0 if f >= 0.0 else e) / (1.0 + e)
        total += pos[i] * f - w[i] * (max(f, 0.0) + log_of(1.0 + e))
        info[i] = w[i] * p * (1.0 - p)
        residual[i] = pos[i] - w[i] * p
    return total


@kernel
def column_sums(weights, x, columns, out):
    """Compute weighted sums of the first columns of x.

    weights : float64 array, shape (sums, cells)
    out : float64 array, shape (sums, columns), filled
    """
    n = x.shape[0]
    for k in range(weights.shape[0]):
        row = out[k]
        for j in range(columns):
            row[j] = 0.0
    c = 0
    while c < n:
        # Indices beyond the last cell repeat it with weight 0.
        i1, i2, i3 = min(c + 1, n - 1), min(c + 2, n - 1), min(c + 3, n - 1)
        r0, r1, r2, r3 = x[c], x[i1], x[i2], x[i3]
        for k in range(weights.shape[0]):
            row, w = out[k], weights[k]
            a = w[c]
            b = w[i1] if c + 1 < n else 0.0
            d = w[i2] if c + 2 < n else 0.0
            e = w[i3] if c + 3 < n else 0.0
            for j in range(columns):
                row[j] += (a * r0[j] + b * r1[j]) + (d * r2[j] + e * r3[j])
        c += _UNROLLED


@kernel
def solve(h, gradient, step):
    """Solve h step = gradient by Cholesky decomposition; return half the log determinant of h.

    h : float64 array, shape (n, n), symmetric; its lower triangle is replaced by the Cholesky factor
    step : float64 array, shape (n,), filled
    """
    total = 0.0
    for i in range(gradient.size):
        row = h[i]
        least = _LEAST_PIVOT * row[i]
        for j in range(i + 1):
            other = h[j]
            a = b = c = d = 0.0
            unrolled = j - j % _UNROLLED
            for k in range(0, unrolled, _UNROLLED):
                a += row[k] * other[k]
                b += row[k + 1] * other[k + 1]
                c += row[k + 2] * other[k + 2]
                d += row[k + 3] * other[k + 3]
            for k in range(unrolled, j):
                a += row[k] * other[k]
            remainder = row[j] - ((a + b) + (c + d))
            if j < i:
                row[j] = remainder / other[j]
            else:
                # With huge weights, rounding may make the pivot zero or negative.
                row[i] = np.sqrt(max(remainder, least))
                total += log_of(row[i])
    for i in range(gradient.size):
        value = gradient[i]
        for j in range(i):
            value -= h[i, j] * step[j]
        step[i] = value / h[i, i]
    for i in range(gradient.size - 1, -1, -1):
        step[i] /= h[i, i]
        for j in range(i):
            step[j] -= h[i, j] * step[i]
    return total


@kernel
def isotonic_fit(values, weights):
    """Return the non-decreasing array nearest to values by weighted least squares (pool adjacent violators)."""
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


LOW_BITS = 30

_BLOCK = 2048
"""Number of points per block: their terms stay in the L1 cache."""


@kernel
def loss_and_two_derivatives(z, hit, miss, loss, slope, curvature):
    """Compute the log loss of sigmoid(z) and its first two derivatives by z.

    exp and log1p have loops of their own, so that the compiler can vectorise the last loop.

    Parameters
    ----------
    z : float64 array, shape (m,)
    hit, miss : float64 arrays, shape (m,): weights of positive and of negative labels
    loss, slope, curvature : float64 arrays, shape (m,), filled
    """
    for i in range(z.size):
        curvature[i] = math.exp(-abs(z[i]))
    for i in range(z.size):
        loss[i] = math.log1p(curvature[i])
    for i in range(z.size):
        e = curvature[i]
        larger = 1.0 / (1.0 + e)
        smaller = e * larger
        up = z[i] >= 0.0
        p = larger if up else smaller
        q = smaller if up else larger
        weight = hit[i] + miss[i]
        loss[i] = (miss[i] * z[i] if up else -hit[i] * z[i]) + weight * loss[i]
        slope[i] = miss[i] * p - hit[i] * q
        curvature[i] = weight * p * q


@kernel
def add_rounded(terms, scale, sums):
    """Add terms to sums, each rounded to the nearest multiple of 2**-LOW_BITS / scale.

    Sums of the rounded terms are integers, so they do not depend on order or grouping.

    Parameters
    ----------
    terms : float64 array, shape (m,), fewer than 2**32 in all
    scale : power of 2 with scale * (sum of the absolute terms) < 2**62
    sums : int64 array, shape (2,), updated: high + low * 2**-LOW_BITS, in units of 1 / scale
    """
    high_sum = low_sum = np.int64(0)
    low_unit = 2.0**LOW_BITS
    for i in range(terms.size):
        scaled = terms[i] * scale
        high = np.rint(scaled)
        high_sum += np.int64(high)
        low_sum += np.int64(np.rint((scaled - high) * low_unit))
    sums[0] += high_sum
    sums[1] += low_sum


@kernel
def add_product(first, second, product, scale, sums):
    """Fill `product`, which may be either factor, with first * second; add it to sums by `add_rounded`."""
    for i in range(first.size):
        product[i] = first[i] * second[i]
    add_rounded(product, scale, sums)


@kernel
def loss_and_derivatives(terms, hit, miss, at, scale, fine):
    """Sum the log loss of sigmoid(at[0] terms[0] + ... + at[-1]), its gradient and its Hessian over points.

    Parameters
    ----------
    terms : float64 array, shape (terms, m), m < 2**32
    hit, miss : float64 arrays, shape (m,): weights of positive and of negative labels
    at : float64 array, shape (terms + 1,): the coefficients, and the constant
    scale : power of 2 with scale * (sum of the absolute terms of any sum) < 2**62
    fine : the same, for the sums of the derivatives only

    Returns
    -------
    int64 array, shape (sums, 2)
        Loss; gradient; upper triangle of the Hessian, row by row. Each is a sum of `add_rounded`.
    """
    n = at.size
    sums = np.zeros((1 + n + n * (n + 1) // 2, 2), np.int64)
    arguments, losses = np.empty(_BLOCK), np.empty(_BLOCK)
    slopes, curvatures, by_terms, products = (
        np.empty(_BLOCK),
        np.empty(_BLOCK),
        np.empty(_BLOCK),
        np.empty(_BLOCK),
    )
    for start in range(0, hit.size, _BLOCK):
        stop = min(start + _BLOCK, hit.size)
        m = stop - start
        z, loss, slope, curvature = arguments[:m], losses[:m], slopes[:m], curvatures[:m]
        by_term, product = by_terms[:m], products[:m]
        for i in range(m):
            total = at[0] * terms[0, start + i]
            for j in range(1, n - 1):
                total += at[j] * terms[j, start + i]
            z[i] = total + at[n - 1]
        loss_and_two_derivatives(z, hit[start:stop], miss[start:stop], loss, slope, curvature)
        add_rounded(loss, scale, sums[0])
        q = 1 + n
        for j in range(n - 1):
            term = terms[j, start:stop]
            add_product(slope, term, product, fine, sums[1 + j])
            add_product(curvature, term, by_term, fine, sums[q + n - 1 - j])
            for k in range(j, n - 1):
                add_product(by_term, terms[k, start:stop], product, fine, sums[q + k - j])
            q += n - j
        add_rounded(slope, fine, sums[n])
        add_rounded(curvature, fine, sums[q])
    return sums


# Moments of points in narrow bins; the sums do not depend on the order of the points.

MOMENTS = 4


@kernel
def add_moments(points, bins, first, unit, sums):
    """Add points to the sums of their bins. [-1, 1] has `bins` equally wide bins; `sums` contains a range of them.

    Each term is rounded to a multiple of 1 / unit. Sums of the rounded terms are integers, so they do not depend on
    order or grouping.

    Parameters
    ----------
    points : float64 arrays x, weight and positives, shape (m,); x in [-1, 1]
    bins, first : int: number of bins, and index of the first bin in `sums`
    unit : power of 2 with unit * (sum of all weights) < 2**62
    sums : int64 array, shape (bins from `first` to that of the last point, 2, MOMENTS), updated
        For negatives and then for positives: the weight times the powers 0, 1, ... of the distance from the middle of
        the bin, in half bin widths.
    """
    x, weight, positives = points
    for i in range(x.size):
        position = (x[i] + 1.0) * (bins / 2)
        j = min(max(np.int64(position), 0), bins - 1)
        distance = 2.0 * (position - j) - 1.0
        negative = (weight[i] - positives[i]) * unit
        positive = positives[i] * unit
        of_bin = sums[j - first]
        for k in range(MOMENTS):
            of_bin[0, k] += np.int64(np.rint(negative))
            of_bin[1, k] += np.int64(np.rint(positive))
            negative *= distance
            positive *= distance
