"""Likelihoods: of a curve of log-odds with a Gaussian prior, and the log loss of a logistic model with its derivatives.

The curve's logarithms and exponentials are made of additions, multiplications and divisions, and sums have one order:
it is the same on every machine. The log loss is summed without regard to order.
"""

import math

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


LOW_BITS = 30

_BLOCK = 2048
"""Points that are worked on at a time: their terms stay in the processor's nearest cache."""


@kernel
def loss_and_two_derivatives(z, hit, miss, loss, slope, curvature):
    """Log loss of sigmoid(z), weight `hit` of positive labels and `miss` of negative ones, with derivatives by z.

    A loop for each function: what is left of them, a processor does several points of at a time.

    Parameters
    ----------
    z, hit, miss : float64 arrays, shape (m,)
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
def add_whole(terms, scale, sums):
    """Add terms to sums, each rounded to the nearest multiple of 2**-LOW_BITS / scale.

    From there on sums are whole numbers, so they are the same for any order and grouping.

    Parameters
    ----------
    terms : float64 array, shape (m,), fewer than 2**32 in all
    scale : power of 2 with scale * (sum of the absolute terms) < 2**62
    sums : int64 array, shape (2,), changed: high + low * 2**-LOW_BITS, in units of 1 / scale
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
def add_product(left, right, product, scale, sums):
    """Fill `product`, which may be either factor, with left * right, and add it to sums as `add_whole` does."""
    for i in range(left.size):
        product[i] = left[i] * right[i]
    add_whole(product, scale, sums)


@kernel
def loss_and_derivatives(terms, hit, miss, at, scale, fine):
    """Sums over points of the log loss of sigmoid(at[0] terms[0] + ... + at[-1]), its gradient and its Hessian.

    Parameters
    ----------
    terms : float64 array, shape (terms, m), m < 2**32
    hit, miss : float64 arrays, shape (m,): the weights of positive and of negative labels
    at : float64 array, shape (terms + 1,): the coefficients, and the constant
    scale : power of 2 with scale * (sum of the absolute terms of any sum) < 2**62
    fine : the same of the derivatives' sums alone

    Returns
    -------
    int64 array, shape (sums, 2), as `add_whole` has it
        Loss; gradient; the upper triangle of the Hessian, row by row.
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
        add_whole(loss, scale, sums[0])
        q = 1 + n
        for j in range(n - 1):
            term = terms[j, start:stop]
            add_product(slope, term, product, fine, sums[1 + j])
            add_product(curvature, term, by_term, fine, sums[q + n - 1 - j])
            for k in range(j, n - 1):
                add_product(by_term, terms[k, start:stop], product, fine, sums[q + k - j])
            q += n - j
        add_whole(slope, fine, sums[n])
        add_whole(curvature, fine, sums[q])
    return sums


# Weights and mean places of points in narrow bins, summed without regard to order.

SUMS = 4


@kernel
def add_moments(points, bins, first, unit, sums):
    """Add points to the sums of their bins. [-1, 1] has `bins` equally wide bins; `sums` holds some of them.

    Each term is rounded to a multiple of 1 / unit; from there on sums are whole numbers, so they are the same for any
    order and grouping.

    Parameters
    ----------
    points : float64 arrays x, weight and positives, shape (m,); x in [-1, 1]
    bins, first : int: how many there are, and the index of the first in `sums`
    unit : power of 2 with unit * (sum of all weights) < 2**62
    sums : int64 array, shape (bins from `first` to that of the last point, 4), changed
        Of the points with label 0, then of those with label 1: the weight, and the weight times the distance from the
        bin's middle, in halves of a bin.
    """
    x, weight, positives = points
    for i in range(x.size):
        place = (x[i] + 1.0) * (bins / 2)
        j = min(max(np.int64(place), 0), bins - 1)
        distance = 2.0 * (place - j) - 1.0
        k = positives[i]
        rest = weight[i] - k
        sums[j - first, 0] += np.int64(np.rint(rest * unit))
        sums[j - first, 1] += np.int64(np.rint(rest * distance * unit))
        sums[j - first, 2] += np.int64(np.rint(k * unit))
        sums[j - first, 3] += np.int64(np.rint(k * distance * unit))
