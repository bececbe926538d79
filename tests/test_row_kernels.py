"""Kernels over sorted rows against numpy."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline._kernels.rows import fold_ties


def assert_folded(values, shortest):
    found, counts = np.unique(values, return_counts=True)
    longer = counts >= shortest
    folded = values.copy()
    n, value, count = fold_ties(folded, shortest)
    np.testing.assert_array_equal(folded[:n], np.repeat(found[~longer], counts[~longer]))
    np.testing.assert_array_equal(value, found[longer])
    np.testing.assert_array_equal(count, counts[longer].astype(float))


@settings(deadline=None)  # numba takes its time at the first call
@given(
    st.lists(st.sampled_from([1, 2, 3, 4, 5, 900, 1023, 1024, 1025, 3000]), max_size=12), st.integers(2, 5)
)
def test_ties_of_any_length_anywhere_are_folded(lengths, shortest):
    assert_folded(np.repeat(np.arange(len(lengths), dtype=float), lengths), shortest)


@settings(deadline=None)  # numba takes its time at the first call
@given(st.integers(0, 2**32), st.integers(0, 5000), st.sampled_from([3, 100, 3000, 10**9]))
def test_ties_of_random_rows_are_folded(seed, rows, distinct):
    rng = np.random.default_rng(seed)
    assert_folded(np.sort(rng.integers(0, distinct, rows).astype(float)), 4)
