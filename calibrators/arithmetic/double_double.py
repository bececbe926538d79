"""Double-doubles as arrays: each number is the unevaluated sum of two doubles, with about 106 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrators._kernels import sums

Array = npt.NDArray[np.float64]

# The bodies of the compiled functions, which numpy's arrays suit as well.
two_sum, two_product = (getattr(f, "py_func", f) for f in (sums.two_sum, sums.two_product))


@dataclass(frozen=True)
class Pair:
    """Numbers `high + low`, arrays of one shape; high is the nearest double."""

    high: Any
    low: Any

    @classmethod
    def of(cls, value: Any) -> Pair:
        """A double as a pair."""
        return cls(value, value * 0.0)

    @classmethod
    def sum(cls, high: Any, low: Any) -> Pair:
        """The sum of two doubles."""
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
        """The product with pairs, or with doubles."""
        if not isinstance(other, Pair):
            p, e = two_product(self.high, other)
            return Pair(*two_sum(p, e + self.low * other))
        p, e = two_product(self.high, other.high)
        return Pair(*two_sum(p, e + (self.high * other.low + self.low * other.high)))

    def __getitem__(self, index: Any) -> Pair:
        return Pair(self.high[index], self.low[index])

    def running(self) -> Pair:
        """Sums along the first axis: of all before each, and of all; so one more."""
        partial = [self[0] * 0.0]
        for i in range(len(self.high)):
            partial.append(partial[-1] + self[i])
        return Pair(np.stack([f.high for f in partial]), np.stack([f.low for f in partial]))

    def total(self) -> Pair:
        """The sum along the first axis."""
        return self.running()[-1]


def sums_of_runs(values: Array, starts: npt.NDArray[np.int64]) -> Array:
    """The sums of runs of values, to the last bit or nearly: leading parts of a run's values add up exactly.

    starts : where each run begins, and the end; none is empty. Rump, Ogita and Oishi (2008), "Accurate floating-point
    summation".
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
    """Numbers rounded to 12 significant digits, but whole ones: what measures are rounded to, once.

    Sums of double-doubles have some digits more whatever their order, and so measures become the same for all of them.
    """
    x = np.asarray(values, dtype=np.float64)
    with np.errstate(all="ignore"):
        digits = 11 - np.floor(np.log10(np.abs(x)))
        up = 10.0 ** np.clip(digits, 0, 300)
        down = 10.0 ** np.clip(-digits, 0, 300)
        rounded = np.rint(x * up / down) / up * down
    return np.where((x == np.rint(x)) | ~np.isfinite(rounded), x, rounded)


def twelve(value: float) -> float:
    """One number of `twelve_digits`."""
    return float(twelve_digits(value))
