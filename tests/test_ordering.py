"""The order of doubles by way of whole numbers, against numpy's stable sort."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrators import ordering
from calibrators.ordering import ascending, sort_entries

VALUES = {
    "uniform": lambda random, n: random.random(n),
    "normal": lambda random, n: random.normal(size=n),
    "few": lambda random, n: random.integers(-20, 20, n) / 7,
    "zeros": lambda random, n: np.where(random.random(n) < 0.5, -0.0, 0.0),
    "every size": lambda random, n: random.normal(size=n) * 10.0 ** random.integers(-300, 300, n),
    # Only the lowest bits differ, where the keys hold the places.
    "close": lambda random, n: 0.5 + random.random(n) * 1e-13,
    "close and negative": lambda random, n: -0.5 - random.random(n) * 1e-15,
    "pairs of close": lambda random, n: np.nextafter(
        np.repeat(random.random(n // 2 + 1), 2)[:n], random.random(n)
    ),
    "subnormal": lambda random, n: random.integers(-50, 50, n) * 5e-324,
    "sorted": lambda random, n: np.sort(random.random(n)),
}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(VALUES)), st.integers(1, 20_000), st.integers(0, 2**32))
def test_the_order_is_numpys_stable_one(kind, n, seed):
    values = VALUES[kind](np.random.default_rng(seed), n)
    np.testing.assert_array_equal(ascending(values), np.argsort(values, kind="stable"))


@pytest.mark.parametrize("n", [1, 100, ordering._FEW + 1])
def test_entries_move_with_their_scores(n):
    random = np.random.default_rng(0)
    score, pairs = random.random(n).round(3), random.random((n, 2))
    order = np.argsort(score, kind="stable")
    found = sort_entries(score, pairs)
    for column, expected in zip(found, (score[order], pairs[order, 0], pairs[order, 1]), strict=True):
        np.testing.assert_array_equal(column, expected)
