"""Normal equations of many small least-squares problems, with the same bits on every machine."""

from __future__ import annotations

import numpy as np

from calibrators.core.arrays import Array

_LEAST_PIVOT = 1e-15


def factored(second: Array, variance: Array) -> Array:
    """Compute Cholesky factors of second derivatives plus the prior's precision.

    second : float64 array, shape (problems, k, k): negated; only its lower triangles are used
    variance : float64 array, shape (k,), > 0: prior variances
    """
    k = variance.size
    diagonal = np.arange(k)
    factor = second.copy()
    factor[:, diagonal, diagonal] += 1.0 / variance
    # With huge weights rounding may make a pivot 0 or negative.
    least = _LEAST_PIVOT * factor[:, diagonal, diagonal]
    for i in range(k):
        for j in range(i + 1):
            value = factor[:, i, j] - (factor[:, i, :j] * factor[:, j, :j]).sum(axis=1)
            factor[:, i, j] = np.sqrt(np.maximum(value, least[:, i])) if i == j else value / factor[:, j, j]
    return factor


def solved(factor: Array, gradient: Array) -> Array:
    """Solve the equations.

    factor : see `factored`
    gradient : float64 array, shape (problems, k)
    """
    step, k = gradient.copy(), gradient.shape[1]
    for i in range(k):
        step[:, i] = (step[:, i] - (factor[:, i, :i] * step[:, :i]).sum(axis=1)) / factor[:, i, i]
    for i in reversed(range(k)):
        step[:, i] = (step[:, i] - (factor[:, i + 1 :, i] * step[:, i + 1 :]).sum(axis=1)) / factor[:, i, i]
    return step
