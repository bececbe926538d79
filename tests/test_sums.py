"""Exact sums against the standard library's, on values that span the range of doubles."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.core.kernels.sums import MAX_COMPONENTS, exact_sum, expansion_of

FLOATS = st.one_of(st.floats(-1e300, 1e300, allow_subnormal=True), st.integers(0, 2**53).map(float))


@given(st.lists(FLOATS, max_size=60), st.integers(0, 60))
def test_expansions_of_parts_add_up_to_the_whole(values, cut):
    x = np.array(values, dtype=np.float64)
    parts = np.concatenate([expansion_of(x[:cut]), expansion_of(x[cut:])])
    assert exact_sum(parts) == math.fsum(values)


@pytest.mark.parametrize("power", [20, 40])
def test_many_values_of_many_magnitudes_fit_the_components(power):
    # Without compression this sum once needed more components than were allocated.
    x = np.random.default_rng(0).random(100_000) ** power
    assert exact_sum(x) == math.fsum(x)


@pytest.mark.parametrize("step", [-7, -3, -2, 2, 3, 53])
def test_single_bits_over_the_whole_range_are_compressed(step):
    x = np.ldexp(1.0, np.arange(-1074, 1000)[::step])
    assert expansion_of(x).size <= MAX_COMPONENTS
    assert exact_sum(x) == math.fsum(x)


@pytest.mark.parametrize(
    ("n", "lowest", "highest"),
    [(1023, -3, 3), (1024, -40, 40), (5000, -324, 303), (1024, 298, 304), (1023, -324, -310)],
)
def test_leading_bits_add_up_strips_of_any_magnitudes(n, lowest, highest):
    rng = np.random.default_rng(n)
    x = 10.0 ** rng.uniform(lowest, highest, n) * (rng.random(n) < 0.7)
    found = expansion_of(x)
    assert sum(map(Fraction, found.tolist())) == sum(map(Fraction, x.tolist()))


@pytest.mark.parametrize(
    ("at", "value"), [(None, 0.5), (10, 0.5), (1500, 1e-300), (4090, -3.0), (4090, 2.0**60)]
)
def test_long_sums_are_exact_whether_numbers_are_whole_or_not(at, value):
    x = np.random.default_rng(1).integers(0, 1 << 22, 4100).astype(float)
    if at is not None:
        x[at] = value
    components = expansion_of(x)
    assert sum(map(Fraction, components.tolist())) == sum(map(Fraction, x.tolist()))
