"""Folds: parts of rows that depend on (seed, repeat, row id) alone, and are what they claim to be."""

import numpy as np
import pytest

from logcal.errors import InputRejectedError
from pipeline.generate.folds import SCORED, TRAINED, UNUSED, Folds, RowKeys, random_bits, random_state

FIXED = [14097339780118938473, 9687179699600753859, 8179920691821847228]
FIXED_STATE = 2024839729


def keys(n, seed=0, groups=None, times=None):
    rng = np.random.default_rng(seed)
    group = None if groups is None else rng.integers(0, groups, n).astype(np.uint64)
    return RowKeys(np.arange(n, dtype=np.uint64), rng.random(n) < 0.2, group, times)


def test_random_numbers_are_fixed_for_ever():
    # What was published with a seed must come out again: these change only with a new format.
    assert random_bits(0, 0, np.arange(3, dtype=np.uint64)).tolist() == FIXED
    assert random_state(0, 0) == FIXED_STATE


def test_by_row_a_part_depends_on_seed_repeat_and_id_alone():
    rows, others = keys(500), keys(500, seed=1)
    more = RowKeys(np.arange(900, dtype=np.uint64), np.zeros(900, bool))
    parts = Folds(seed=5).fold(2, rows).parts(rows)
    assert np.array_equal(Folds(seed=5).fold(2, others).parts(others), parts)  # other labels
    assert np.array_equal(Folds(seed=5).fold(2, more).parts(more)[:500], parts)  # more rows
    assert not np.array_equal(Folds(seed=6).fold(2, rows).parts(rows), parts)
    assert not np.array_equal(Folds(seed=5).fold(3, rows).parts(rows), parts)


@pytest.mark.parametrize(("n", "positive"), [(748, 178), (1000, 10), (50, 2), (11, 5)])
def test_stratified_parts_have_the_same_shares_of_labels(n, positive):
    label = np.arange(n) < positive
    rows = RowKeys(np.arange(n, dtype=np.uint64), label)
    seen = set()
    for repeat in range(10):
        parts = Folds(stratified=True).fold(repeat, rows).parts(rows)
        for of_class, count in ((label, positive), (~label, n - positive)):
            wanted = min(max(int(np.floor(0.7 * count + 0.5)), 1), count - 1)
            assert np.count_nonzero(parts[of_class] == TRAINED) == wanted
        seen.add(parts.tobytes())
    assert len(seen) >= (2 if positive == 2 else 10)


def test_a_label_of_one_row_is_trained_on():
    rows = RowKeys(np.arange(10, dtype=np.uint64), np.arange(10) == 3)
    for repeat in range(5):
        assert Folds(stratified=True).fold(repeat, rows).parts(rows)[3] == TRAINED


@pytest.mark.parametrize("groups", [2, 3, 10, 500])
def test_no_group_is_in_both_parts(groups):
    rows = keys(2000, groups=groups)
    for repeat in range(10):
        parts = Folds("group", seed=1).fold(repeat, rows).parts(rows)
        trained, scored = set(rows.group[parts == TRAINED]), set(rows.group[parts == SCORED])
        assert not trained & scored
        present = np.unique(rows.group).size
        assert len(trained) == min(max(int(0.7 * present + 0.5), 1), present - 1)


def test_by_time_the_past_is_trained_on_and_each_later_row_scored_once():
    times = np.random.default_rng(0).integers(0, 50, 1000)  # many ties
    rows = keys(1000, times=times)
    folds = Folds("time", train_fraction=0.6).by_time(4, times)
    scored = np.zeros(1000, int)
    for fold in folds:
        parts = fold.parts(rows)
        assert times[parts == TRAINED].max() < times[parts == SCORED].min()
        if (parts == UNUSED).any():
            assert times[parts == UNUSED].min() > times[parts == SCORED].max()
        scored += parts == SCORED
    assert scored.max() == 1
    assert np.array_equal(scored == 1, times >= folds[0].start)
    assert np.mean(scored) == pytest.approx(0.4, abs=0.03)
    assert [fold.repeat for fold in folds] == [0, 1, 2, 3]


def test_by_time_needs_a_past():
    with pytest.raises(InputRejectedError, match=r"found none: the times are all 7.0"):
        Folds("time").by_time(3, np.full(20, 7.0))
