"""Rows as integer keys, and sorting by way of whole numbers, against numpy's stable sorts."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibrators.core import sorting
from calibrators.core.keys import add_rows, add_sorted, sort_rows
from calibrators.core.sorting import sort_pieces, stable_order


@pytest.fixture(autouse=True, params=["radix", "numpy"])
def sort(request, monkeypatch):
    """Either sort, whichever this processor does better: results are the same."""
    monkeypatch.setattr(sorting, "radix_for", lambda rows, width=1: request.param == "radix" and rows > 0)


FIXTURES_STAY = [HealthCheck.function_scoped_fixture]
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
    # Most leading bits tell nothing apart.
    "close, and one far away": lambda random, n: np.append(0.5 + random.random(n - 1) * 1e-9, -1.0),
    "many close to many": lambda random, n: random.integers(0, 50, n) + random.random(n) * 1e-12,
    "falling": lambda random, n: np.sort(0.5 + random.random(n) * 1e-9)[::-1],
    "a heavy tie": lambda random, n: np.where(random.random(n) < 0.5, 0.25, random.random(n)),
}


@settings(suppress_health_check=FIXTURES_STAY)
@given(st.sampled_from(sorted(VALUES)), st.integers(1, 40_000), st.integers(0, 2**32))
def test_the_order_is_numpys_stable_one(kind, n, seed):
    random = np.random.default_rng(seed)
    values = VALUES[kind](random, n)
    order = np.argsort(values, kind="stable")
    np.testing.assert_array_equal(stable_order(values), order)


def test_many_numbers_and_rows_are_sorted_by_what_was_measured_to_be_faster(monkeypatch):
    monkeypatch.undo()
    sorting._measure.cache_clear()
    for numbers, rows in (([1.0, 2.0], [2.0, 1.0]), ([2.0, 1.0], [1.0, 2.0])):
        monkeypatch.setattr(sorting, "_seconds", lambda sort, left=[*numbers, *rows]: left.pop(0))
        for _ in range(2):
            assert sorting.radix_for(1 << 20) is (numbers[0] < numbers[1])
            assert sorting.radix_for(1 << 20, 2) is (rows[0] < rows[1])
            assert not sorting.radix_for(1000)
        sorting._measure.cache_clear()


@settings(suppress_health_check=FIXTURES_STAY)
@given(
    st.lists(st.integers(0, 64), min_size=1, max_size=4),
    st.integers(1, 40_000),
    st.integers(1, 40_000),
    st.integers(0, 2**32),
)
def test_whole_numbers_are_sorted_piece_by_piece(bits, n, different, seed):
    random = np.random.default_rng(seed)
    widths = random.choice(bits, n)
    numbers = random.integers(0, 2**64, n, np.uint64)
    numbers = np.where(widths == 0, 0, numbers >> (64 - widths.clip(1)).astype(np.uint64))
    numbers = numbers[random.integers(0, min(different, n), n)]
    ends = np.append(np.sort(random.integers(0, n + 1, 5)), n)
    expected = np.concatenate([np.sort(piece) for piece in np.split(numbers, ends[:-1])])
    rows = np.stack([numbers, np.arange(n, dtype=np.uint64)], axis=1)
    found = sort_pieces(numbers.copy(), ends, max(bits))
    np.testing.assert_array_equal(found, expected)
    pieces = np.split(rows, ends[:-1])
    expected = np.concatenate([piece[np.argsort(piece[:, 0], kind="stable")] for piece in pieces])
    np.testing.assert_array_equal(sort_pieces(rows, ends, max(bits)), expected)


def tags_of(random, n, bits):
    """Tags of up to `bits` bits, few or many different ones."""
    return (random.integers(0, 1 << bits, n) >> random.integers(0, bits)).astype(np.int32)


@settings(deadline=None, suppress_health_check=FIXTURES_STAY)
@given(st.sampled_from(sorted(VALUES)), st.integers(1, 5000), st.integers(1, 31), st.integers(0, 2**32))
def test_rows_are_sorted_by_score_and_tag(kind, n, bits, seed):
    random = np.random.default_rng(seed)
    score, tag = VALUES[kind](random, n), tags_of(random, n, bits)
    order = np.lexsort((tag, score))
    expected = score[order] + 0.0, tag[order]
    places, columns = np.arange(n), (score.copy(), tag.copy())
    sort_rows(*columns, places)
    np.testing.assert_array_equal(places, order)
    sort_rows(score, tag)
    for found, sorted_tag in ((score, tag), columns):
        np.testing.assert_array_equal((found + 0.0).view(np.uint64), expected[0].view(np.uint64))
        np.testing.assert_array_equal(sorted_tag, expected[1])


@settings(deadline=None, suppress_health_check=FIXTURES_STAY)
@given(
    st.lists(
        st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 2**31 - 1)), max_size=60
    )
)
def test_any_finite_doubles_are_sorted(rows):
    score = np.array([score for score, _ in rows], np.float64)
    tag = np.array([tag for _, tag in rows], np.int32)
    order = np.lexsort((tag, score))
    expected = score[order] + 0.0, tag[order]
    sort_rows(score, tag)
    assert (score + 0.0).tobytes() == expected[0].tobytes()
    np.testing.assert_array_equal(tag, expected[1])


@settings(deadline=None, suppress_health_check=FIXTURES_STAY)
@given(st.integers(0, 3000), st.sampled_from([1, 3, 9]), st.booleans(), st.integers(0, 2**32))
def test_tied_rows_are_added_up(n, codes, by_code, seed):
    random = np.random.default_rng(seed)
    score, tag = random.integers(-9, 9, n) / 4, random.integers(0, 2 * codes, n).astype(np.int32)
    groups = list(zip(score.tolist(), (tag >> 1).tolist() if by_code else [0] * n, strict=True))
    rows = sorted({group: (groups.count(group), 0) for group in set(groups)})
    weight = [groups.count(group) for group in rows]
    hits = [sum(t & 1 for g, t in zip(groups, tag.tolist(), strict=True) if g == group) for group in rows]
    sums = add_rows(score, tag, by_code=by_code)
    assert (
        list(zip(sums.score.tolist(), sums.code.tolist() if by_code else [0] * len(rows), strict=True))
        == rows
    )
    assert sums.weight.tolist() == weight
    assert sums.positives.tolist() == hits


def test_sorted_rows_that_are_added_up_stay():
    score, tag = np.array([-0.5, 0.25, 0.25, 0.25]), np.array([1, 0, 1, 2], np.int32)
    assert add_sorted(score, tag, by_code=True).weight.tolist() == [1, 2, 1]
    assert add_sorted(score, tag, by_code=False).weight.tolist() == [1, 3]
    assert tag.tolist() == [1, 0, 1, 2]
