"""The decision threshold against trying all of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrators.measures.assessment import best_threshold

CASES = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.5 + 2**-53, 0.7, 1.0]), st.booleans(), st.integers(1, 3)
    ),
    min_size=1,
    max_size=12,
)


def rate(p, z, w, threshold):
    return w[(p >= threshold) == z].sum() / w.sum()


@settings(derandomize=True)
@given(cases=CASES)
def test_no_threshold_is_better(cases):
    p, z, w = (np.array(column) for column in zip(*cases, strict=True))
    found = best_threshold(p, z, w)
    tried = [rate(p, z, w, t) for t in [*p, np.nextafter(p.max(), 2)]]
    assert found.rate == pytest.approx(max(tried))
    assert rate(p, z, w, found.value) == pytest.approx(found.rate)


def test_half_is_preferred_and_gaps_are_halved():
    assert best_threshold([0.2, 0.9], [0, 1]).value == 0.5
    assert best_threshold([0.1, 0.2], [0, 1]).value == pytest.approx(0.15)
    assert best_threshold([0.2, 0.4], [0, 0]).value == 0.5
    assert best_threshold([0.6, 0.8], [1, 1]).value == 0.5


def test_probabilities_outside_their_range_are_refused():
    with pytest.raises(ValueError, match=r"^probabilities: expected numbers in \[0, 1\], found -1 to 2"):
        best_threshold([-1, 2], [0, 1])
