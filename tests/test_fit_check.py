"""The check of a fitted map against its own observations."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import binomtest, norm
from sklearn.isotonic import IsotonicRegression

from calibrators import (
    ENIR,
    Auto,
    CalibrationMap,
    HistogramBinning,
    Isotonic,
    Platt,
    Points,
    Smooth,
    collapse,
)
from calibrators.base import Sampling
from calibrators.core.check_cells import check_cells_pass
from calibrators.core.cumulative import layout_of, part_totals
from calibrators.core.fine_cells import FineCells, fine_cells_pass
from calibrators.core.passes import in_memory
from calibrators.core.sampling import odds_divided
from calibrators.measures.falls import levels_between_falls, proven_fall
from calibrators.measures.fit_check import (
    cells_of_rows,
    cells_of_scores,
    check_fit,
    edges,
    normal_limit,
    roots,
    smaller,
)
from pipeline.fit.fall_warning import warn_of_fall
from pipeline.fit.self_check import EVERYWHERE, RANGES, check_all_rows


def kept(fitted):
    return fitted, 0.0


def drawn(truth, score, seed=1000):
    return collapse(score, np.random.default_rng(seed).random(score.size) < truth)


def cells(points):
    return in_memory(points)(fine_cells_pass())


def spiked(rows=200_000, seed=0):
    """A tenth of the rows at a fallback score of .5 with 2 % positives; otherwise the score is right."""
    score = np.random.default_rng(seed).random(rows)
    fallback = np.arange(rows) % 10 == 0
    score[fallback] = 0.5
    return score, np.where(fallback, 0.02, score)


def dipped(rows=200_000, seed=0):
    score = np.random.default_rng(seed).random(rows)
    return score, np.where((score > 0.7) & (score < 0.8), 0.02, score)


def shifted(by):
    return lambda s: expit(logit(np.clip(s, 1e-9, 1 - 1e-9)) + by)


# What is wrong is found


@pytest.mark.parametrize(
    ("log", "predict"),
    [
        # Every score shifted by what one odd score pulled, as the log-odds of curves were once.
        (spiked(), shifted(-0.108)),
        (spiked(), lambda s: s),
        (spiked(20_000), lambda s: s),
        (dipped(), lambda s: s),
        (dipped(), shifted(0.2)),
        # A block's level interpolated away from its tie, as strict did once.
        (spiked(), lambda s: np.where(np.abs(s - 0.5) < 0.1, 0.3, s)),
    ],
)
def test_a_map_that_is_wrong_in_a_range_is_found(log, predict):
    score, truth = log
    check = check_fit(cells_of_scores(cells(drawn(truth, score)), predict))
    assert check.misfits
    assert check.largest == check.misfits[0]
    worst = check.largest
    inside = (score >= worst.first) & (score <= worst.last)
    assert worst.weight == inside.sum()
    # Against the truth: the difference that is reported is there.
    bias = logit(predict(score[inside]).mean()) - logit(truth[inside].mean())
    assert abs(bias) > 0.04
    assert np.sign(bias) == np.sign(worst.difference)
    assert check.misfits[-1].significant


@pytest.mark.parametrize("calibrator", [Platt(), HistogramBinning(bins=4), Isotonic(strict=True)])
def test_methods_that_cannot_follow_a_log_are_found(calibrator):
    score, truth = dipped() if calibrator.get_params() != {"ends": 1, "strict": True} else spiked()
    points = drawn(truth, score)
    calibrator.fit_points(points)
    predict = calibrator.predict
    if isinstance(
        calibrator, Isotonic
    ):  # a centred block of before: the tie has the value of a line through it
        predict = lambda s: np.interp(s, [0.0, 0.3, 0.6, 1.0], [0.0, 0.2, 0.6, 1.0])  # noqa: E731
    assert check_fit(cells_of_scores(cells(points), predict)).misfits


def test_differences_are_the_binomial_deviance_and_the_limits_those_of_many_tests():
    weight, positives, expected = np.array([200.0]), np.array([130.0]), np.array([100.0])
    (root,) = roots(weight, positives, expected)
    p = 2 * norm.sf(root)
    assert p == pytest.approx(binomtest(130, 200, 0.5).pvalue, rel=0.35)
    assert normal_limit(1, 0.05) == pytest.approx(1.959964, abs=1e-6)
    assert normal_limit(2080, 5e-4) == pytest.approx(norm.isf(2.5e-4 / 2080))
    assert roots(weight, positives, positives) == 0


def test_the_root_of_positives_where_none_are_expected_is_finite():
    weight = np.array([2.0, 1e90])
    assert np.isfinite(roots(weight, weight / 2, np.zeros(2))).all()


def test_a_rate_that_falls_counts_only_against_maps_that_could_follow_it():
    score, truth = dipped()
    points = drawn(truth, score)
    fine = cells(points)
    rising = Isotonic().fit_points(points)
    assert check_fit(cells_of_scores(fine, rising.predict)).largest is None
    assert check_fit(cells_of_rows(rising.calibration_map_)).largest is None
    # A map that falls with the rate is better than any rising one.
    exact = CalibrationMap.from_bins(
        np.append(np.arange(1, 70) / 100, [0.7, 0.8, *np.arange(81, 100) / 100]),
        np.concatenate([np.arange(70) / 100 + 0.005, [0.02], np.arange(80, 100) / 100 + 0.005]),
        np.zeros(91),
        np.zeros(91),
    )
    assert not check_fit(cells_of_scores(fine, exact.predict)).misfits
    of = smaller(*(np.array([x]) for x in (1000.0, 100.0, 200.0, 300.0)))
    assert of == (0, 0) or of[1][0] == 0  # between what was observed and what is possible


# What is right is not


HONEST = [
    lambda z: z,
    lambda z: 1.3 * z + 0.4,
    lambda z: 1.2 * np.floor(0.8 * z) + 0.5,
    lambda z: z + 0.4 * np.sin(2 * z),
    lambda z: z + (z > 0.5),
]


@pytest.mark.parametrize("seed", range(10))
def test_honest_fits_are_not_flagged(seed):
    random = np.random.default_rng([5, seed])
    rows, mean = int(10 ** random.uniform(2.5, 4.7)), random.choice([0, -2, -4])
    z = random.normal(mean, random.uniform(0.7, 2), rows)
    score = expit(z) if seed % 3 else expit(z).round(2)
    truth = expit(HONEST[seed % 5](z if seed % 3 else logit(np.clip(score, 0.002, 0.998))))
    label = random.random(rows) < truth
    label[:5], label[5:10] = True, False
    weight = random.integers(1, 4, rows).astype(float) if seed % 4 == 1 else None
    points = collapse(score, label, weight)
    for calibrator in (Auto(), Smooth(), Isotonic(), ENIR()):
        fit = check_all_rows(calibrator.fit_points(points), None, kept)
        assert not fit.check.misfits, calibrator
        assert fit.fallback is None


def test_copies_of_rows_are_over_dispersion_and_no_misfit():
    random = np.random.default_rng(3)
    score = random.random(30_000)
    label = random.random(score.size) < score
    once, often = (
        check_fit(cells_of_scores(cells(collapse(np.repeat(score, n), np.repeat(label, n))), lambda s: s))
        for n in (1, 6)
    )
    assert once.dispersion < 1.6
    assert 4 < often.dispersion < 9
    assert not often.misfits
    alone = check_fit(cells_of_scores(cells(collapse(score, label)), shifted(0.3)))
    assert alone.misfits


def test_one_heavy_sampled_row_is_no_misfit():
    """Weights of a sample add up to its effective size: one row can have the weight of many, and one label."""
    random = np.random.default_rng(8)
    score = random.random(20_000)
    weight = np.ones(score.size)
    weight[np.argmin(np.abs(score - 0.05))] = 300.0
    weight *= weight.sum() / (weight**2).sum()
    label = random.random(score.size) < score
    label[weight == weight.max()] = True
    found = cells_of_scores(cells(collapse(score, label, weight)), lambda s: s)
    assert check_fit(found).misfits
    assert not check_fit(found, heaviest=float(weight.max())).misfits


def test_weights_of_many_orders_of_magnitude_are_no_misfit():
    random = np.random.default_rng(9)
    score = random.random(5000)
    weight = np.exp(random.uniform(np.log(1e-9), np.log(3e11), score.size))
    points = collapse(score, random.random(score.size) < score, weight)
    for calibrator in (Auto(), Isotonic()):
        check = check_all_rows(calibrator.fit_points(points), None, kept).check
        assert np.isfinite(check.dispersion)
    certain = check_fit(cells_of_scores(cells(collapse([0.1, 0.9], [0, 1])), lambda s: s > 0.5), ends=0.0)
    assert not certain.misfits


def test_a_few_rows_are_checked_too():
    tiny = check_fit(cells_of_scores(cells(collapse([0.1, 0.4, 0.6], [0, 1, 1])), lambda s: s))
    assert not tiny.misfits
    assert tiny.tests >= 1
    one = check_fit(cells_of_scores(cells(collapse([0.5] * 500, [0, 1] * 250)), lambda s: 0 * s + 0.01))
    assert one.misfits[0].first == one.misfits[0].last == 0.5


# The cells


@pytest.mark.parametrize("decimals", [None, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_cells_do_not_depend_on_the_parts_and_ties_are_cells(decimals, weighted):
    random = np.random.default_rng(1)
    score = random.random(30_000) ** 3
    score[:9000] = 0.4
    score = score if decimals is None else score.round(decimals)
    weight = random.random(score.size) + 0.1 if weighted else None
    points = collapse(score, random.random(score.size) < score, weight)

    def gathered(cuts):
        parts = [Points(*(column[a:b] for column in points)) for a, b in pairwise(cuts)]
        request = check_cells_pass(layout_of([part_totals(part) for part in parts]))
        return request.combine([request.chunk(part) for part in parts])

    size = points.score.size
    whole = gathered([0, size])
    for _ in range(5):
        cuts = np.unique([0, size, *random.integers(0, size, 6)]).tolist()
        for one, other in zip(whole, gathered(cuts), strict=True):
            np.testing.assert_array_equal(one, other)
    tie = np.flatnonzero((whole.first <= 0.4) & (whole.last >= 0.4))
    assert whole.first[tie] == whole.last[tie] == [0.4]
    stops = np.searchsorted(points.score, whole.last, side="right")
    sums = np.cumsum(points.weight)[stops - 1]
    np.testing.assert_allclose(np.cumsum(whole.weight), sums, rtol=1e-12)
    np.testing.assert_allclose(np.cumsum(whole.positives), np.cumsum(points.positives)[stops - 1], rtol=1e-12)
    assert whole.first.size > 90


def test_expected_positives_are_the_sums_over_the_rows():
    score, truth = spiked(20_000)
    points = drawn(truth, score)
    fitted = Smooth().fit_points(points)
    exact = fitted.predict(points.score) * points.weight
    request = check_cells_pass(layout_of([part_totals(points)]))
    for fine in (fitted.fine_cells_, request.combine([request.chunk(points)])):
        assert isinstance(fine, FineCells)
        found = cells_of_scores(fine, fitted.predict)
        begin = np.searchsorted(points.score, found.first)
        np.testing.assert_allclose(found.expected, np.add.reduceat(exact, begin), rtol=2e-2, atol=3e-3)
        assert found.expected.sum() == pytest.approx(exact.sum(), rel=1e-4)


def test_with_sampled_negatives_the_rows_of_the_log_are_expected():
    random = np.random.default_rng(2)
    score = random.random(60_000) ** 2
    label = random.random(score.size) < score
    stays = label | (random.random(score.size) < 0.1)
    points = collapse(score[stays], label[stays])
    calibrator = Auto().fit_points(points, Sampling(0.1))
    check = check_all_rows(calibrator, None, kept).check
    assert not check.misfits
    assert check.profile[4].sum() == pytest.approx(points.positives.sum(), rel=0.02)
    wrong = check_fit(cells_of_scores(calibrator.fine_cells_, calibrator.predict))
    assert wrong.misfits
    constant = Isotonic().fit_points(points, Sampling(0.1))
    assert check_all_rows(constant, None, kept).check.largest is None
    assert odds_divided(0.5, 10.0) == pytest.approx(10 / 11)


def test_parts_have_equal_information():
    information = np.random.default_rng(0).random(1000)
    ends = edges(information, 64)
    assert ends[0] == 0
    assert ends[-1] == 1000
    sums = np.add.reduceat(information, ends[:-1])
    np.testing.assert_allclose(sums, information.sum() / 64, atol=1)


# What auto does then


def test_auto_falls_back_to_isotonic_regression_in_the_range(monkeypatch):
    from calibrators.auto import calibrator as auto

    def bad_curve(*arguments):
        choice = choose(*arguments)
        choice.share[:] = 0
        choice.share[0] = 1
        choice.maps[0] = np.where(choice.maps[0] > 0.7, (1 + choice.maps[0]) / 2, choice.maps[0])
        return choice

    choose = auto.choose
    score = np.random.default_rng(0).random(100_000)
    points = drawn(score, score)
    honest = Auto().fit_points(points)
    monkeypatch.setattr(auto, "choose", bad_curve)
    calibrator = Auto().fit_points(points)
    before = calibrator.predict([0.8])
    found = check_all_rows(calibrator, None, kept)
    assert found.fallback == RANGES
    assert not found.check.misfits
    assert found.before.misfits
    assert found.facts()["before_fallback"]["misfits"]
    assert before > 0.85
    np.testing.assert_allclose(
        calibrator.predict([0.2, 0.5, 0.8]), honest.predict([0.2, 0.5, 0.8]), atol=0.02
    )
    assert 0 < calibrator.facts()["isotonic_share"] < 1
    assert calibrator.calibration_map_ is found.fitted
    interval = calibrator.posterior_.interval(found.fitted)
    assert (interval.lower <= interval.upper).all()


@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_auto_falls_back_to_isotonic_regression_everywhere(monkeypatch, rate):
    from calibrators.core.local_choice import Choice

    knots = Choice.knots
    monkeypatch.setattr(Choice, "knots", lambda self: (knots(self)[0], knots(self)[1] + 0.3))
    score = np.random.default_rng(4).random(50_000)
    points = drawn(score, score)
    calibrator, expected = (one.fit_points(points, Sampling(rate)) for one in (Auto(), Isotonic()))
    found = check_all_rows(calibrator, None, kept)
    assert found.fallback == EVERYWHERE
    assert not found.check.misfits
    np.testing.assert_allclose(calibrator.predict(score[:999]), expected.predict(score[:999]), atol=1e-12)
    assert calibrator.facts()["isotonic_share"] == 1
    assert calibrator.chosen_ == "isotonic"


def test_the_map_of_a_named_method_is_not_replaced():
    score, truth = dipped()
    calibrator = Platt().fit_points(drawn(truth, score))
    points = drawn(truth, score)
    found = check_all_rows(calibrator, cells(points), kept)
    assert found.check.misfits
    assert found.fallback is None
    assert found.fitted is calibrator.calibration_map_


# A truth that falls


@pytest.mark.parametrize("auto", [True, False])
def test_a_proven_dip_is_said_in_one_warning(caplog, auto):
    score, truth = dipped(20_000)
    made = (Auto() if auto else Smooth()).fit_points(drawn(truth, score))
    checked = check_all_rows(made, None, kept)
    caplog.clear()
    fall = warn_of_fall(made, None, checked.check.dispersion)
    (record,) = caplog.records
    assert "scores are not monotone" in record.message
    assert "enir or abb" in record.message
    assert fall["lower_last_score"] == pytest.approx(0.7, abs=0.01)
    assert fall["upper_first_score"] == pytest.approx(0.7, abs=0.01)
    assert fall["upper_last_score"] == pytest.approx(0.8, abs=0.01)
    assert fall["upper_share"] == pytest.approx(0.02, abs=0.01)
    inside = (score >= fall["lower_first_score"]) & (score <= fall["lower_last_score"])
    assert fall["lower_share"] == pytest.approx(truth[inside].mean(), abs=0.03)


def test_the_deviance_of_a_fall_is_that_of_two_shares_from_one():
    weight, positives = np.array([50.0, 200.0, 100.0]), np.array([5.0, 150.0, 10.0])
    fall = proven_fall(FineCells(np.arange(3.0), np.arange(3.0), weight, positives))
    shares = np.array([150 / 200, 10 / 100, 160 / 300])
    assert (fall.first, fall.turn, fall.begin, fall.last) == (1.0, 1.0, 2.0, 2.0)
    assert (fall.before, fall.after, fall.weight) == pytest.approx((shares[0], shares[1], 100))
    labels, rows = positives[1:], weight[1:]
    apart, joint = (labels * np.log(p) + (rows - labels) * np.log(1 - p) for p in (shares[:2], shares[2]))
    assert fall.root == pytest.approx(np.sqrt(2 * (apart - joint).sum()), rel=1e-12)


def test_isotonic_regression_begins_anew_after_each_proven_fall():
    rng = np.random.default_rng(3)
    x = np.arange(60.0)
    truth = 0.2 + 0.6 * ((x % 20) / 20)
    weight = np.full(60, 2000.0)
    positives = rng.binomial(2000, truth).astype(float)
    whole, between = levels_between_falls(weight, positives)
    sides = [IsotonicRegression().fit_transform(x[:20], positives[i : i + 20] / 2000) for i in (0, 20, 40)]
    np.testing.assert_allclose(between, np.concatenate(sides), rtol=1e-12)
    np.testing.assert_allclose(whole, IsotonicRegression().fit_transform(x, positives / 2000), rtol=1e-12)
    honest = rng.binomial(2000, np.sort(truth)).astype(float)
    whole, between = levels_between_falls(weight, honest)
    assert whole is between


def test_a_fall_is_proven_alike_whether_scores_are_sampled_or_not():
    rng = np.random.default_rng(4)
    z = np.sort(rng.normal(-2.5, 1.2, 200_000))
    points = collapse(expit(z), rng.random(z.size) < expit(z - 0.7 * (z > -1)), np.ones(z.size))
    sampled = proven_fall(cells(points))
    exact = proven_fall(FineCells(points.score, points.score, points.weight, points.positives))
    assert sampled.root == pytest.approx(exact.root, rel=0.05)
    assert sampled.turn == pytest.approx(expit(-1), abs=0.01)


@pytest.mark.parametrize("seed", range(20))
def test_no_fall_is_proven_by_honest_rows(seed):
    rng = np.random.default_rng(seed)
    rows = int(10 ** rng.uniform(2.5, 4.7))
    z = 2 * rng.standard_normal(rows)
    score = np.round(expit(z), 2) if seed % 2 else expit(z)
    truth = [expit(z), np.full(rows, 0.3), np.full(rows, 0.003), expit(1.2 * np.floor(0.8 * z))][seed % 4]
    assert proven_fall(cells(drawn(truth, score, seed))) is None


@pytest.mark.parametrize("seed", range(12))
def test_no_fall_is_proven_by_rare_rows_of_random_weight(seed):
    """A positive row that counts five times is not five positives at one score."""
    rng = np.random.default_rng([6, seed])
    rows = int(10 ** rng.uniform(2.5, 3.7))
    z = rng.normal(-5, 1.3, rows)
    label, weight = rng.random(rows) < expit(z), rng.choice([1.0, 2.0, 5.0], rows)
    label[:2] = True, False
    assert proven_fall(cells(collapse(expit(z), label, weight))) is None
