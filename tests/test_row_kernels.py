"""Folding the ties of sorted scores, against their definition."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.sort.folding import SHORTEST_FOLDED_TIE, fold

LENGTHS = st.one_of(st.integers(1, 4), st.integers(1, 40))


def expected(values):
    value, count = np.unique(values, return_counts=True)
    folded = count >= SHORTEST_FOLDED_TIE
    kept = np.repeat(value[~folded], count[~folded])
    return kept, value[folded], count[folded].astype(np.float64)


@given(st.lists(LENGTHS, max_size=60), st.integers(0, 1))
def test_ties_of_any_lengths_in_a_row(lengths, label):
    values = np.repeat(np.arange(len(lengths), dtype=float), lengths)
    kept, entries = fold(values.copy(), label)
    rest, value, count = expected(values)
    assert kept.tobytes() == rest.tobytes()
    np.testing.assert_array_equal(entries, [value, count, label * count])
