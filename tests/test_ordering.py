"""Sorting doubles by way of whole numbers, against numpy's stable sort."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibrators.arithmetic import ordering
from calibrators.arithmetic.ordering import ascending, sort_entries, sort_pairs, sort_pieces, sort_scores
from pipeline.sort.buckets import CodedBucket
from pipeline.sort.folding import sort_tagged


@pytest.fixture(autouse=True, params=["radix", "numpy"])
def sort(request, monkeypatch):
    """Either sort, whichever this processor does better: results are the same."""
    monkeypatch.setattr(ordering, "radix_for", lambda rows: request.param == "radix" and rows > 0)


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
@given(st.sampled_from(sorted(VALUES)), st.integers(1, 20_000), st.integers(0, 2**32))
def test_the_order_is_numpys_stable_one(kind, n, seed):
    values = VALUES[kind](np.random.default_rng(seed), n)
    np.testing.assert_array_equal(ascending(values), np.argsort(values, kind="stable"))


@settings(suppress_health_check=FIXTURES_STAY)
@given(st.sampled_from(sorted(VALUES)), st.integers(1, 40_000), st.integers(0, 2**32))
def test_scores_are_sorted_in_place(kind, n, seed):
    values = VALUES[kind](np.random.default_rng(seed), n) + 0.0
    found = values.copy()
    sort_scores(found)
    np.testing.assert_array_equal(found.view(np.uint64), np.sort(values).view(np.uint64))


@settings(suppress_health_check=FIXTURES_STAY)
@given(st.sampled_from(sorted(VALUES)), st.integers(1, 40_000), st.integers(0, 2**32))
def test_pairs_are_sorted_and_equal_ones_stay_in_their_order(kind, n, seed):
    random = np.random.default_rng(seed)
    score = VALUES[kind](random, n)
    pairs = np.stack([score, np.arange(n) * random.choice([-1.0, 1.0], n)], axis=1)
    order = np.argsort(score, kind="stable")
    expected = pairs[order]
    first, second = sort_pairs(pairs)
    np.testing.assert_array_equal(first, expected[:, 0])
    np.testing.assert_array_equal(second, expected[:, 1])


def test_many_numbers_are_sorted_by_what_was_measured_to_be_faster(monkeypatch):
    monkeypatch.undo()
    ordering._measured.cache_clear()
    for seconds, expected in (([1.0, 2.0], True), ([2.0, 1.0], False)):
        monkeypatch.setattr(ordering, "_seconds", lambda sort, left=list(seconds): left.pop(0))
        assert ordering.radix_for(1 << 20) is expected
        assert ordering.radix_for(1 << 20) is expected
        assert not ordering.radix_for(1000)
        ordering._measured.cache_clear()


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
    found = sort_pieces(numbers.copy(), ends, max(bits))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("n", [1, 100, 5000])
def test_entries_move_with_their_scores(n):
    random = np.random.default_rng(0)
    score, pairs = random.random(n).round(3), random.random((n, 2))
    order = np.argsort(score, kind="stable")
    found = sort_entries(score, pairs)
    for column, expected in zip(found, (score[order], pairs[order, 0], pairs[order, 1]), strict=True):
        np.testing.assert_array_equal(column, expected)


@settings(deadline=None, suppress_health_check=FIXTURES_STAY)
@given(
    st.integers(0, 2**32),
    st.sampled_from([0, 1, 5, 300, 5000]),
    st.sampled_from([1, 2, 12]),
    st.integers(1, 31),
)
def test_rows_with_tags_are_in_the_order_of_score_and_tag(seed, n, digits, bits):
    """By pieces where their number and the tags allow it, otherwise by pairs."""
    random = np.random.default_rng(seed)
    score = random.normal(0, 10.0 ** random.integers(-3, 4), n).round(digits) + 0.0
    tag = random.integers(0, 1 << bits, n).astype(np.int64)
    order = np.lexsort((tag, score))
    found = (score, tag) if n == 0 else sort_tagged(score, tag, bits)
    assert (found[0] == score[order]).all()
    assert (found[1] == tag[order]).all()
    assert found[1].dtype == np.int64


@settings(deadline=None, suppress_health_check=FIXTURES_STAY)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 50, 3000]), st.sampled_from([0, 1, 40]))
def test_rows_and_entries_are_merged_in_the_order_of_score_and_code(seed, n, m):
    """As a range's rows are that has ties that were folded; equal ones may be in any order, since they are added up."""
    random = np.random.default_rng(seed)
    score, tag = random.integers(0, 9, n) / 4, random.integers(0, 12, n)
    own = random.integers(0, 9, m) / 4, random.integers(0, 6, m), random.integers(1, 9, m) * 1.0, np.ones(m)
    bucket = CodedBucket(score, tag, (np.empty(0), np.empty(0, np.int64), np.empty(0)), own)
    found = np.stack([np.asarray(column, np.float64) for column in bucket.in_order()])
    rows = np.stack([score, tag >> 1, np.ones(n), tag & 1])
    whole = np.concatenate([rows, np.stack(own)], axis=1)
    assert (np.lexsort((found[1], found[0])) == np.arange(n + m)).all()
    np.testing.assert_array_equal(found[:, np.lexsort(found[::-1])], whole[:, np.lexsort(whole[::-1])])
