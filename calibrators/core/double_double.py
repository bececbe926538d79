"""Arrays of double-doubles: each number is the unevaluated sum of two doubles, with about 106 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrators.core.arrays import Array, Integers
from calibrators.core.kernels import sums

# The uncompiled functions, which also take numpy arrays.
two_sum, two_product = (getattr(f, "py_func", f) for f in (sums.two_sum, sums.two_product))


@dataclass(frozen=True)
class Pair:
    """Double-doubles `high + low`, arrays of one shape; high is the nearest double."""

    high: Any
    low: Any

    @classmethod
    def of(cls, value: Any) -> Pair:
        """Convert doubles to double-doubles."""
        return cls(value, value * 0.0)

    @classmethod
    def sum(cls, high: Any, low: Any) -> Pair:
        """Return the exact sum of two doubles."""
        return cls(*two_sum(high, low))

    def __add__(self, other: Pair) -> Pair:
        s, e = two_sum(self.high, other.high)
        t, f = two_sum(self.low, other.low)
        s, e = two_sum(s, e + t)
        return Pair(*two_sum(s, e + f))

    def __neg__(self) -> Pair:
        return Pair(-self.high, -self.low)

    def __sub__(self, other: Pair) -> Pair:
        return self + -other

    def __mul__(self, other: Pair | Any) -> Pair:
        """Multiply by double-doubles or by doubles."""
        if not isinstance(other, Pair):
            p, e = two_product(self.high, other)
            return Pair(*two_sum(p, e + self.low * other))
        p, e = two_product(self.high, other.high)
        return Pair(*two_sum(p, e + (self.high * other.low + self.low * other.high)))

    def __getitem__(self, index: Any) -> Pair:
        return Pair(self.high[index], self.low[index])

    def running(self) -> Pair:
        """Return cumulative sums along the first axis, starting with 0: one more than there are numbers."""
        partial = [self[0] * 0.0]
        for i in range(len(self.high)):
            partial.append(partial[-1] + self[i])
        return Pair(np.stack([f.high for f in partial]), np.stack([f.low for f in partial]))

    def total(self) -> Pair:
        """Return the sum along the first axis."""
        return self.running()[-1]


def sums_of_runs(values: Array, starts: Integers) -> Array:
    """Return the sums of runs of values, exact to about the last bit.

    The leading bits of a run's values add up exactly (Rump, Ogita and Oishi 2008, "Accurate floating-point summation").

    starts : start of each run, and the end; no run is empty
    """
    if starts.size < 2:
        return np.empty(0)
    sizes = np.diff(starts)
    largest = np.maximum.reduceat(np.abs(values), starts[:-1])
    sigma = np.ldexp(1.0, np.minimum(np.frexp(largest)[1] + np.frexp(sizes.astype(np.float64))[1], 1000))
    sigma = np.repeat(sigma, sizes)
    leading = (sigma + values) - sigma
    return np.asarray(np.add.reduceat(leading, starts[:-1]) + np.add.reduceat(values - leading, starts[:-1]))


def twelve_digits(values: npt.ArrayLike) -> Array:
    """Round numbers except integers to 12 significant digits, as all measures are rounded.

    Sums of double-doubles are accurate to more digits in any order, so rounded measures do not depend on the order.
    """
    x = np.asarray(values, dtype=np.float64)
    with np.errstate(all="ignore"):
        digits = 11 - np.floor(np.log10(np.abs(x)))
        up = 10.0 ** np.clip(digits, 0, 300)
        down = 10.0 ** np.clip(-digits, 0, 300)
        rounded = np.rint(x * up / down) / up * down
    return np.where((x == np.rint(x)) | ~np.isfinite(rounded), x, rounded)


def twelve(value: float) -> float:
    """Round one number to 12 significant digits, see `twelve_digits`."""
    return float(twelve_digits(value))
