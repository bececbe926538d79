"""The check of segments' maps against their own observations."""

import numpy as np
import pytest
from scipy.special import expit, logit
from sklearn.isotonic import IsotonicRegression

from calibrators.measures.segment_check import (
    SegmentCells,
    check_segments,
    joined,
    segment_sums,
)

RANGES = np.append(-np.inf, np.arange(1, 32) / 32)


def cells_of(score, label, segment, predict):
    """A cell for each row; segments are numbered from 0."""
    order = np.lexsort((score, segment))
    score, label, segment = score[order], label[order].astype(float), segment[order]
    starts = np.searchsorted(segment, np.arange(segment.max() + 2))
    return SegmentCells(starts, score, np.ones(score.size), label, predict(score, segment))


def checked(*log, predict, **settings):
    sums = segment_sums(cells_of(*log, predict), RANGES)
    return check_segments(sums, RANGES, tests=sums.tests, **settings)


def drawn(segments, rows, seed=0, *, truth=None, spread=0.5):
    """Segments with an offset each."""
    random = np.random.default_rng([3, seed])
    segment = np.repeat(np.arange(segments), rows)
    offset = random.normal(0, spread, segments)
    score = expit(random.normal(-1, 1.3, segment.size))
    right = expit(logit(score) + offset[segment]) if truth is None else truth(score, segment)
    return (score, random.random(segment.size) < right, segment), offset


def right(offset):
    return lambda score, segment: expit(logit(score) + offset[segment])


@pytest.mark.parametrize(("segments", "rows"), [(3, 20_000), (200, 300), (5000, 20)])
def test_right_maps_agree(segments, rows):
    log, offset = drawn(segments, rows)
    check = checked(*log, predict=right(offset))
    assert check.agrees
    assert check.tests >= segments


def test_a_segment_whose_map_is_off_is_named():
    log, offset = drawn(40, 5000)
    wrong = offset.copy()
    wrong[7] += 0.4
    check = checked(*log, predict=right(wrong))
    assert [segment for segment, _ in check.misfits] == [7]
    worst = check.largest[1]
    assert worst.difference == pytest.approx(0.4, abs=0.1)
    assert worst.root < -worst.limit < 0
    _, label, segment = log
    if worst.weight == 5000:
        assert worst.positives == label[segment == 7].sum()


def test_a_range_of_a_segment_that_is_off_is_named():
    log, offset = drawn(10, 20_000)

    def predict(score, segment):
        z = logit(score) + offset[segment]
        return expit(np.where((segment == 3) & (score > 0.4) & (score < 0.6), z + 0.5, z))

    ((segment, worst), *rest) = checked(*log, predict=predict).misfits
    assert segment == 3
    assert not rest
    assert worst.first < 0.6
    assert worst.last > 0.4
    assert worst.weight < 10_000
    assert worst.difference > 0.1


def test_many_segments_are_wrong_together_though_none_is_alone():
    log, offset = drawn(5000, 20)
    check = checked(*log, predict=right(offset + 0.1))
    assert not check.misfits
    assert not check.agrees
    assert check.scores.significant
    assert check.scores.root < 0
    assert check.sizes.significant
    # All rows: the sums are those of the log.
    score, label, segment = log
    sums = segment_sums(cells_of(*log, right(offset)), RANGES)
    assert sums.sums[1].sum() == label.sum() == sums.by_score[1].sum()
    np.testing.assert_array_equal(sums.by_score[0], np.histogram(score, np.append(RANGES, np.inf))[0])
    np.testing.assert_allclose(sums.sums[2], np.bincount(segment, right(offset)(score, segment)))


def test_large_segments_that_are_wrong_together_are_found():
    random = np.random.default_rng(5)
    sizes = np.where(np.arange(2000) < 200, 200, 20)
    segment = np.repeat(np.arange(2000), sizes)
    score = random.random(segment.size)
    shift = np.where(sizes == 200, 0.2, -0.1)
    label = random.random(segment.size) < expit(logit(score) + shift[segment])
    check = checked(score, label, segment, predict=lambda score, segment: score)
    assert not check.misfits
    assert check.sizes.significant
    assert {check.sizes.first, check.sizes.last} <= {20, 200}


def test_a_falling_segment_counts_only_against_what_could_follow_it():
    def truth(score, segment):
        return np.where(segment == 1, 1 - score, score)

    log, _ = drawn(3, 20_000, truth=truth)
    score, label, segment = log
    level = np.empty(score.size)
    for i in range(3):
        rows = segment == i
        level[rows] = IsotonicRegression().fit_transform(score[rows], label[rows])
    by_row = {(s, g): p for s, g, p in zip(score.tolist(), segment.tolist(), level.tolist(), strict=True)}

    def predict(score, segment):
        return np.array([by_row[key] for key in zip(score.tolist(), segment.tolist(), strict=True)])

    check = checked(*log, predict=predict)
    assert not check.misfits
    wrong = checked(*log, predict=lambda score, segment: score)
    assert [i for i, _ in wrong.misfits] == [1]


def test_a_rate_that_falls_in_all_segments_counts_not_against_them():
    def truth(score, segment):
        return np.where((score > 0.5) & (score < 0.75), 0.05, score)

    log, _ = drawn(20, 5000, truth=truth)
    score, label, _ = log
    level = IsotonicRegression().fit(score, label).predict
    check = checked(*log, predict=lambda s, _: level(s))
    assert check.agrees
    # It is said, though: these maps cannot follow the rows.
    inside = (score >= check.fall.first) & (score <= check.fall.last)
    assert (check.fall.weight, check.fall.positives) == (inside.sum(), label[inside].sum())
    assert abs(check.fall.root) > 10
    # The ends of its range have rows.
    by_range = np.histogram(score, np.append(RANGES, np.inf))[0]
    assert by_range[[np.searchsorted(RANGES, x, side="right") - 1 for x in check.fall[:2]]].all()
    # A map that is wrong in another way is not excused, and a truth that rises has no fall.
    assert not checked(*log, predict=lambda s, _: np.minimum(1.3 * level(s), 1.0)).agrees
    rising, offset = drawn(20, 5000)
    assert checked(*rising, predict=right(offset)).fall is None


def test_sums_do_not_depend_on_how_segments_are_divided():
    log, offset = drawn(30, 900)
    cells = cells_of(*log, right(offset + np.where(np.arange(30) % 5 == 0, 1.0, 0.0)))
    whole = segment_sums(cells, RANGES)
    parts = []
    for a, b in ((0, 1), (1, 12), (12, 30)):
        rows = slice(cells.starts[a], cells.starts[b])
        starts = cells.starts[a : b + 1] - cells.starts[a]
        sums = segment_sums(SegmentCells(starts, *(c[rows] for c in cells[1:])), RANGES)
        parts.append((np.arange(a, b), sums))
    found = joined(parts[::-1], 30)
    assert found.tests == whole.tests
    assert found.segment.tolist() == whole.segment.tolist() == [0, 5, 10, 15, 20, 25]
    for name in ("candidates", "sums", "by_score"):
        np.testing.assert_allclose(getattr(found, name), getattr(whole, name), rtol=1e-12)


def test_segments_without_rows_and_of_one_label():
    cells = SegmentCells(
        np.array([0, 0, 3, 5]),
        np.array([0.1, 0.2, 0.3, 0.5, 0.6]),
        np.full(5, 40.0),
        np.array([0.0, 0.0, 0.0, 40.0, 40.0]),
        np.array([1.0, 1.0, 1.0, 39.0, 39.0]),
    )
    sums = segment_sums(cells, RANGES)
    check = check_segments(sums, RANGES, tests=sums.tests)
    assert check.agrees
    assert sums.sums[0].tolist() == [0, 120, 80]
    wrong = segment_sums(cells._replace(expected=np.array([20.0, 20, 20, 39, 39])), RANGES)
    assert [i for i, _ in check_segments(wrong, RANGES, tests=3).misfits] == [1]
