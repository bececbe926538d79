"""What every calibrator promises, whatever its method."""

import pickle

import numpy as np
import pytest
from common import wave
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from calibrators import (
    ABB,
    ACP,
    BBQ,
    DGG,
    ENIR,
    SBB,
    Auto,
    Beta,
    Grouped,
    HistogramBinning,
    Isotonic,
    NearIsotonic,
    Platt,
    Points,
    Smooth,
    collapse,
)
from calibrators.sigmoid import beta, platt


class FixedWidthACP(ACP):
    """ACP with an interval that is a function of the score, so that it can be asked as the others are."""

    def predict(self, scores):
        s = np.asarray(scores, float)
        return super().predict(s, s - 0.1, s + 0.1)


ANY_SCORE = {
    "isotonic": Isotonic(),
    "isotonic-strict": Isotonic(strict=True),
    "histogram": HistogramBinning(bins=7),
    "histogram-smoothed": HistogramBinning(bins=7, smoothing=1.0),
    "platt": Platt(max_error=1e-6),
    "sbb": SBB(),
    "abb": ABB(),
    "sbb-few-cuts": SBB(max_cuts=7),
    "abb-few-cuts": ABB(max_cuts=7),
    "near-isotonic-0": NearIsotonic(lam=0.0),
    "near-isotonic": NearIsotonic(lam=1.5),
    "enir": ENIR(),
    "dgg": DGG(group_size=5),
}
PROBABILITIES = {
    "platt-logit": Platt("logit", max_error=1e-6),
    "bbq": BBQ(),
    "beta": Beta(max_error=1e-6),
    "bbq-per-bin": BBQ(prior="per_bin", rho=None),
    "bbq-authors": BBQ(reference="authors"),
    "enir-authors": ENIR(reference="authors"),
}
# Of scores in [0, 1] they take the log-odds, of others the scores.
EITHER = {"smooth": Smooth(max_error=1e-6), "auto": Auto(max_error=1e-6)}
MAPS = {**ANY_SCORE, **PROBABILITIES, **EITHER}
ACPS = {"acp": FixedWidthACP()}
EVERYTHING = {**MAPS, **ACPS}
MONOTONE = {name: MAPS[name] for name in ("isotonic", "isotonic-strict", "dgg", "smooth", "auto")}


def over(calibrators):
    return pytest.mark.parametrize("calibrator", list(calibrators.values()), ids=list(calibrators))


def observations(n=300, seed=0, decimals=2):
    """Scores with ties, labels and weights that do not add up exactly."""
    rng = np.random.default_rng(seed)
    s = np.round(rng.random(n), decimals)
    z = rng.random(n) < wave(s)
    return s, z, rng.lognormal(0, 2, n)


def state(fitted):
    """All numbers that a fitted calibrator predicts from."""
    if isinstance(fitted, ACP):
        return [fitted.scores_, *fitted.counts_]
    table = fitted.calibration_map_
    return [getattr(table, name) for name in table.__dataclass_fields__]


def assert_same(a, b):
    """Equal to the last bit."""
    for x, y in zip(state(a), state(b), strict=True):
        assert np.array_equal(x, y)
    assert a.n_observations_ == b.n_observations_


def fit(calibrator, *data):
    return clone(calibrator).fit(*data)


def split(points, cuts):
    return [Points(*parts) for parts in zip(*(np.split(column, cuts) for column in points), strict=True)]


def fit_parts(calibrator, pieces, *, skip):
    """Fit as over a score table: tasks and their results travel, and parts not asked for may be left unread."""

    def run(request):
        request = pickle.loads(pickle.dumps(request))
        wanted = [p for p in pieces if not skip or request.only is None or p.score[0] in request.only]
        return request.combine([pickle.loads(pickle.dumps(request.chunk(p))) for p in wanted])

    return clone(calibrator).fit_passes(run)


def grid():
    return np.concatenate([np.linspace(0, 1, 997), [5e-324, 1e-300, 0.5 - 2**-54, 1 - 2**-53]])


@over(EVERYTHING)
def test_weights_equal_repeated_rows(calibrator):
    s, z, _ = observations()
    repeats = np.random.default_rng(1).integers(1, 5, s.size)
    weighted = fit(calibrator, s, z, repeats)
    assert_same(weighted, fit(calibrator, np.repeat(s, repeats), np.repeat(z, repeats)))


@over(EVERYTHING)
def test_where_the_points_are_cut_changes_nothing(calibrator):
    s, z, w = observations(decimals=3)
    for parts, weighted, skip in ((2, True, True), (25, False, True), (25, True, False)):
        points = collapse(s, z, w if weighted else None)
        places = np.arange(1, points.score.size)
        cuts = np.sort(np.random.default_rng(2).choice(places, parts - 1, replace=False))
        pieces = split(points, cuts)
        assert_same(clone(calibrator).fit_points(points), fit_parts(calibrator, pieces, skip=skip))


@over({name: MAPS[name] for name in ("platt", "platt-logit", "beta", "smooth", "auto")})
@pytest.mark.parametrize("weighted", [False, True])
def test_where_very_many_points_are_cut_changes_nothing(calibrator, weighted, monkeypatch):
    """Such as are seen through cells, or whose optimum is looked for from that of bins."""
    for module in (platt, beta):
        monkeypatch.setattr(module, "FEWEST_POINTS", 2)
    s, z, w = observations(40_000, decimals=5)
    points = collapse(s, z, w if weighted else None)
    cuts = np.sort(np.random.default_rng(2).choice(np.arange(1, points.score.size), 300, replace=False))
    assert_same(clone(calibrator).fit_points(points), fit_parts(calibrator, split(points, cuts), skip=True))


@over(EVERYTHING)
def test_form_of_the_input_does_not_matter(calibrator):
    s, z, w = observations()
    expected = fit(calibrator, s, z, w)
    frozen = [x.copy() for x in (s, z, w)]
    for x in frozen:
        x.flags.writeable = False
    assert_same(expected, fit(calibrator, *frozen))
    assert_same(expected, fit(calibrator, *(np.repeat(x, 2)[::2] for x in (s, z, w))))
    assert_same(expected, fit(calibrator, *(x[::-1] for x in (s, z, w))))
    assert_same(expected, fit(calibrator, s.tolist(), z.tolist(), w.tolist()))
    for dtype in (np.int8, np.float32, np.uint64):
        assert_same(expected, fit(calibrator, s, z.astype(dtype), w))


@over(EVERYTHING)
def test_float32_scores_count_as_they_are(calibrator):
    s, z, w = observations()
    s = s.astype(np.float32)
    fitted = fit(calibrator, s, z, w)
    assert_same(fitted, fit(calibrator, s.astype(np.float64), z, w))
    assert np.array_equal(fitted.predict(s), fitted.predict(s.astype(np.float64)))


def assert_probabilities(fitted, at):
    p = fitted.predict(at)
    assert p.dtype == np.float64
    assert np.all((p >= 0) & (p <= 1))  # false for NaN


@over(EVERYTHING)
def test_one_class(calibrator):
    s, _, w = observations()
    for label in (0, 1):
        fitted = fit(calibrator, s, np.full(s.size, label), w)
        assert_probabilities(fitted, grid())
        assert np.abs(fitted.predict(s) - label).mean() < 0.2


@over(EVERYTHING)
def test_all_scores_equal(calibrator):
    fitted = fit(calibrator, np.full(100, 0.3), np.arange(100) % 4 == 0)
    # Where the prior is the score itself, a hundred rows do not move it all the way.
    close = 0.04 if isinstance(calibrator, (Auto, Smooth)) else 0.02
    assert fitted.predict([0.3]) == pytest.approx([0.25], abs=close)
    assert_probabilities(fitted, grid())


@over(EVERYTHING)
def test_extreme_weights(calibrator):
    s, z, _ = observations(12)
    tiny, huge, at = 1e-9, 1e12, np.arange(12)
    if isinstance(calibrator, BBQ):
        calibrator = clone(calibrator).set_params(C=1)  # a number of models that grows with the weight
    for w in (at * 0 + tiny, at * 0 + huge, *(np.where(at % n == 5 % n, tiny, huge) for n in (2, 12))):
        fitted = fit(calibrator, s, z, w)
        assert_probabilities(fitted, grid())
        assert fitted.n_observations_ == pytest.approx(w.sum())
        points = collapse(s, z, w)
        assert_same(fitted, fit_parts(calibrator, split(points, np.arange(1, points.score.size)), skip=True))


@over(EVERYTHING)
def test_scores_that_hardly_differ(calibrator):
    s = np.arange(40) * 1e-300
    z = np.random.default_rng(0).random(40) < np.linspace(0, 1, 40)
    fitted = fit(calibrator, s, z)
    assert_probabilities(fitted, np.concatenate([s, s + 3e-301, grid()]))
    s = 0.5 + np.arange(40) * 2.0**-53
    assert_probabilities(fit(calibrator, s, z), np.concatenate([s, grid()]))


@over(ANY_SCORE)
def test_scores_that_are_told_apart_below_1e_300(calibrator):
    if "few" in repr(calibrator):
        calibrator = clone(calibrator).set_params(max_cuts=39)
    s = np.arange(40.0)
    z = np.arange(40) >= 20
    p = fit(calibrator, s * 1e-300, z).predict(s * 1e-300)
    assert p == pytest.approx(fit(calibrator, s, z).predict(s), abs=3e-6)
    assert p[0] < 0.3
    assert p[-1] > 0.7


@over({**ANY_SCORE, **EITHER})
def test_negative_scores(calibrator):
    unit, z, w = observations()
    for scale in (1.0, 1e9, 1e300):
        s = (unit - 0.6) * scale
        fitted = fit(calibrator, s, z, w)
        assert_probabilities(fitted, np.concatenate([s, [-1.7e308, -np.inf, 0.0, -0.0, np.inf, 1.7e308]]))
        assert fitted.predict([-0.0]) == fitted.predict([0.0])


@over({**PROBABILITIES, **ACPS})
def test_scores_outside_the_unit_interval_are_refused(calibrator):
    for bad in (-0.5, 1.5):
        with pytest.raises(ValueError, match=r"^scores: .*expected (numbers|probabilities) in \[0, 1\]"):
            fit(calibrator, [0.2, bad, 0.4], [0, 1, 1])


@over(MAPS)
def test_nan_and_infinite_scores(calibrator):
    fitted = fit(calibrator, *observations())
    p = fitted.predict([np.nan, -np.inf, np.inf, 1e308])
    assert np.isnan(p[0])
    assert np.all((p[1:] >= 0) & (p[1:] <= 1))


@over(MAPS)
def test_shape_of_the_scores_is_kept(calibrator):
    fitted = fit(calibrator, *observations())
    assert fitted.predict(0.3).shape == ()
    assert fitted.predict(np.full((2, 0, 3), 0.3)).shape == (2, 0, 3)
    assert np.array_equal(fitted.predict(grid().reshape(7, -1)), fitted.predict(grid()).reshape(7, -1))


@over(MAPS)
def test_prediction_is_that_of_the_map_to_the_last_bit(calibrator):
    fitted = fit(calibrator, *observations(decimals=5))
    at = np.concatenate([grid(), fitted.calibration_map_.score_lo])
    assert np.array_equal(fitted.predict(at), fitted.calibration_map_.predict(at))


@over(MAPS)
def test_rows_hold_the_data_that_fell_into_them(calibrator):
    points = collapse(*observations())
    table = clone(calibrator).fit_points(points).calibration_map_
    row = np.searchsorted(table.score_lo, points.score, side="right") - 1
    assert table.weight == pytest.approx(np.bincount(row, points.weight, len(table)), rel=1e-9)
    assert table.positives == pytest.approx(np.bincount(row, points.positives, len(table)), rel=1e-9)


@over(MAPS)
def test_map_is_valid_and_not_absurd(calibrator):
    s, z, _ = observations(2000, decimals=4)
    fitted = fit(calibrator, s, z)
    assert fitted.calibration_map_.problem() is None
    truth = wave(s)
    most = 0.5 if "lam=0.0" in repr(calibrator) else 0.2
    assert np.sqrt(np.mean((fitted.predict(s) - truth) ** 2)) < most


@over(MONOTONE)
def test_monotone_methods_say_so(calibrator):
    for seed in range(5):
        assert fit(calibrator, *observations(seed=seed)).calibration_map_.monotone


@over(EVERYTHING)
def test_scikit_learn_conventions(calibrator):
    assert clone(calibrator).get_params() == calibrator.get_params()
    assert repr(calibrator).startswith(type(calibrator).__name__)
    again = eval(repr(calibrator), {type(calibrator).__name__: type(calibrator)})
    assert again.get_params() == calibrator.get_params()
    assert clone(calibrator).set_params(**calibrator.get_params()).get_params() == calibrator.get_params()
    s, z, w = observations()
    fitted = clone(calibrator)
    assert fitted.fit(s, z, w) is fitted
    assert fitted.get_params() == calibrator.get_params()
    again = pickle.loads(pickle.dumps(fitted))
    assert_same(fitted, again)
    assert np.array_equal(fitted.predict(grid()), again.predict(grid()))
    assert not hasattr(clone(fitted), "n_observations_")


def test_parameters_of_parameters():
    grouped = Grouped(Platt(input="logit"), group_size=7)
    found = grouped.get_params()
    assert found.keys() == {"calibrator", "calibrator__input", "calibrator__max_error", "group_size"}
    assert (found["calibrator"], found["calibrator__input"], found["group_size"]) == (
        grouped.calibrator,
        "logit",
        7,
    )
    assert repr(grouped) == "Grouped(calibrator=Platt(input='logit'), group_size=7)"
    grouped.set_params(calibrator__input="score", group_size=3)
    assert (grouped.calibrator.input, grouped.group_size) == ("score", 3)
    with pytest.raises(ValueError, match="expected parameters of Grouped, calibrator, group_size, found"):
        grouped.set_params(size=3, group_size=9)
    assert grouped.group_size == 3
    assert get_tags(grouped).estimator_type == "regressor"
    check_is_fitted(Isotonic().fit([0.1, 0.2], [0, 1]))


@over(EVERYTHING)
def test_prediction_needs_a_fit_and_fitting_again_forgets(calibrator):
    again = clone(calibrator)
    with pytest.raises(NotFittedError, match="is not fitted yet: call fit first"):
        again.predict([0.5])
    s, z, w = observations()
    assert_same(again.fit(s, ~z).fit(s, z, w), fit(calibrator, s, z, w))


BAD = {
    "labels 1 and 2": ([0.1, 0.2], [1, 2], None, r"^labels: expected 0 or 1, found 1 others, the first 2"),
    "labels -1 and 1": ([0.1, 0.2], [-1, 1], None, r"^labels: expected 0 or 1, found 1 others, the first -1"),
    "label NaN": ([0.1, 0.2], [0, np.nan], None, r"^labels: expected 0 or 1, found 1 others"),
    "labels of text": ([0.1, 0.2], ["0", "1"], None, r"^labels: expected bool or numbers"),
    "fewer labels": ([0.1, 0.2], [1], None, r"^labels: expected shape \(2,\)"),
    "score NaN": ([0.1, np.nan], [0, 1], None, r"^scores: expected finite numbers, found 1 NaN or infinite"),
    "score infinite": ([-np.inf, 0.2], [0, 1], None, r"^scores: expected finite numbers, .* at index 0"),
    "scores of text": (["0.1", "0.2"], [0, 1], None, r"^scores: expected numbers, found dtype"),
    "no scores": ([], [], None, r"^scores: expected shape \(n,\) or \(n, 1\) with n >= 1"),
    "scores in columns": ([[0.1, 0.2]], [[0, 1]], None, r"^scores: expected shape \(n,\)"),
    "weight negative": ([0.1, 0.2], [0, 1], [-1, 1], r"^sample_weight: .* the first -1.0 at index 0"),
    "weight NaN": ([0.1, 0.2], [0, 1], [1, np.nan], r"^sample_weight: expected .*numbers "),
    "fewer weights": ([0.1, 0.2], [0, 1], [1], r"^sample_weight: expected shape \(2,\)"),
}


@over(EVERYTHING)
def test_bad_observations_are_named(calibrator):
    for scores, labels, weight, message in BAD.values():
        with pytest.raises(ValueError, match=message):
            fit(calibrator, scores, labels, weight)


BAD_PARAMETERS = {
    HistogramBinning: {"bins": [0, 2.5], "smoothing": [-1]},
    Platt: {"input": ["margin"], "max_error": [0, "1e-9"]},
    Beta: {"max_error": [0]},
    Smooth: {"max_error": [0, 1, "x"]},
    SBB: {"expected_cuts": [0, np.inf], "max_cuts": [0, 2.0], "cuts": ["positives"]},
    ABB: {"expected_cuts": [0, np.inf], "max_cuts": [0, 2.0], "cuts": ["positives"]},
    BBQ: {"C": [0.5, "10"], "prior": ["bin"], "rho": [-1, np.nan], "reference": ["code"], "cuts": ["rare"]},
    Isotonic: {"ends": [-1, np.inf, np.nan, True, "1", None], "strict": ["yes"]},
    NearIsotonic: {"lam": [-1, np.nan, "1", None, True]},
    ENIR: {"criterion": ["BIC"], "reference": [1]},
    DGG: {"group_size": [0, -1, 2.5, True, "100", None]},
    Auto: {"candidates": [[], ["platt", "platt"], ["plat"]], "folds": [1], "seed": [-1], "max_error": [0]},
}


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [(kind, name, value) for kind, own in BAD_PARAMETERS.items() for name in own for value in own[name]],
)
def test_bad_parameters_are_named(kind, name, value):
    for calibrator in (kind(**{name: value}), Grouped(kind(**{name: value}))):
        with pytest.raises(ValueError, match=rf"^{name}: expected"):
            calibrator.fit([0.1, 0.2], [0, 1])


def test_what_is_no_calibrator_is_named():
    with pytest.raises(ValueError, match=r"^calibrator: expected a calibrator of this package, found 'isot"):
        Grouped("isotonic").fit([0.1, 0.2], [0, 1])


ROWS = st.lists(
    st.tuples(
        st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.1, 0.5, 0.5 + 2**-53, 1e-300, 1.0])),
        st.booleans(),
        st.floats(1e-3, 1e3),
    ),
    min_size=1,
    max_size=25,
)


@over(EVERYTHING)
@settings(derandomize=True, max_examples=25)
@given(rows=ROWS, seed=st.integers(0, 2**32 - 1))
def test_any_data(calibrator, rows, seed):
    s, z, w = (np.array(column) for column in zip(*rows, strict=True))
    rng = np.random.default_rng(seed)
    fitted = fit(calibrator, s, z, w)
    assert_probabilities(fitted, np.concatenate([s, grid()]))
    order = rng.permutation(s.size)
    assert_same(fitted, fit(calibrator, s[order], z[order], w[order]))
    points = collapse(s, z, w)
    cuts = np.flatnonzero(rng.random(points.score.size - 1) < 0.5) + 1
    assert_same(fitted, fit_parts(calibrator, split(points, cuts), skip=True))
