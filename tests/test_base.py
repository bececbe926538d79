"""The interface of calibrators that scikit-learn expects: its own checks, meta-estimators, weights, clones."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from common import wave
from scipy import sparse
from sklearn.base import BaseEstimator, clone, is_regressor
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import brier_score_loss, get_scorer, r2_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks
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
    HistogramBinning,
    Isotonic,
    NearIsotonic,
    Platt,
    Smooth,
)
from calibrators.base import Sampling

METHODS = [
    Isotonic(), Isotonic(strict=True), HistogramBinning(), Platt(max_error=1e-4), Beta(max_error=1e-4), NearIsotonic(),
    ENIR(), BBQ(), SBB(), ABB(), DGG(group_size=5), Smooth(max_error=1e-4), Auto(max_error=1e-4),
]  # fmt: skip
NAMES = [repr(method) for method in METHODS]


def rows(n=400, seed=0):
    rng = np.random.default_rng(seed)
    score = rng.random(n).round(2)
    return score, (rng.random(n) < wave(score)).astype(int), rng.integers(0, 4, n).astype(float)


# scikit-learn's checks of regressors, whose data have several columns, and any numbers as targets


class OnTheDataOfChecks(Isotonic, BaseEstimator):
    """Isotonic regression of whether the target exceeds the middle of its values, on the first column."""

    def fit(self, X, y, sample_weight=None):
        y = np.asarray(y)
        numbers = y.ndim == 1 and y.dtype.kind in "fiu" and np.isfinite(y).all()
        return super().fit(first_column(X), y > np.median(np.unique(y)) if numbers else y, sample_weight)

    def predict(self, X):
        return super().predict(first_column(X))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True  # otherwise nothing is checked
        tags.input_tags.one_d_array = False
        tags.regressor_tags.poor_score = True  # of these targets
        return tags


def first_column(X):
    values = X if sparse.issparse(X) else np.asarray(X)
    return values[:, 0] if values.ndim == 2 and values.shape[1] > 0 and not sparse.issparse(X) else values


ONE_COLUMN = "scores are one column without names: the number of features is always 1"
OWN_WORDS = "the input is refused in words of our own, which say what was expected and found"
EXPECTED = {
    "check_n_features_in": ONE_COLUMN,
    "check_n_features_in_after_fitting": ONE_COLUMN,
    "check_transformer_general": ONE_COLUMN,
    "check_fit1d": "scores have one dimension",
    "check_fit2d_predict1d": "scores have one dimension",
    "check_estimators_nan_inf": "NaN has the probability NaN; infinite scores are beyond all others",
    "check_regressors_no_decision_function": "predict_proba serves scorers that take probabilities of both labels",
    "check_supervised_y_2d": "labels of two dimensions are refused",
    "check_complex_data": OWN_WORDS,
    "check_dtype_object": "arrays of objects are refused: they may hold anything",
    "check_estimators_empty_data_messages": OWN_WORDS,
    "check_estimator_sparse_tag": OWN_WORDS,
    "check_estimator_sparse_array": OWN_WORDS,
    "check_estimator_sparse_matrix": OWN_WORDS,
    "check_requires_y_none": OWN_WORDS,
}


def expected(estimator):
    return EXPECTED


@parametrize_with_checks([OnTheDataOfChecks()], expected_failed_checks=expected)
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


def test_they_are_those_of_isotonic_regression():
    """Which has the same tags, for which scikit-learn checks nothing of it."""
    ours, theirs = Isotonic().__sklearn_tags__(), IsotonicRegression().__sklearn_tags__()
    assert (ours.estimator_type, ours.input_tags) == (theirs.estimator_type, theirs.input_tags)
    assert ours.target_tags == theirs.target_tags


@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_input_and_output_are_those_of_isotonic_regression(method):
    score, label, weight = rows()
    assert is_regressor(method)
    fitted = clone(method).fit(score, label, weight)
    check_is_fitted(fitted)
    p = fitted.predict(score)
    column = pd.DataFrame({"score": score})
    assert np.array_equal(clone(method).fit(column, pd.Series(label), weight.tolist()).predict(column), p)
    assert np.array_equal(fitted.transform(column), p)
    assert np.array_equal(clone(method).fit_transform(score, label, weight), p)
    both = fitted.predict_proba(column)
    assert both.shape == (score.size, 2)
    assert np.array_equal(both[:, 1], p)
    assert both.sum(axis=1) == pytest.approx(1)
    assert fitted.score(score, label, weight) == pytest.approx(r2_score(label, p, sample_weight=weight))


@pytest.mark.parametrize("method", [*METHODS, ACP()], ids=[*NAMES, "ACP()"])
def test_rows_of_weight_zero_are_left_out(method):
    score, label, weight = rows()
    used = weight > 0
    found, expected = (
        clone(method).fit(score, label, weight),
        clone(method).fit(score[used], label[used], weight[used]),
    )
    assert found.n_observations_ == expected.n_observations_ == weight.sum()
    more = (score - 0.1, score + 0.1) if isinstance(method, ACP) else ()
    assert np.array_equal(found.predict(score, *more), expected.predict(score, *more))
    with pytest.raises(
        ValueError, match=r"^sample_weight: expected a weight above zero, found zero for all of 400"
    ):
        clone(method).fit(score, label, np.zeros(400))
    with pytest.raises(ValueError, match=r"^labels: expected 0 or 1"):  # they are rows all the same
        clone(method).fit([0.1, 0.2, 0.3], [0, 1, 2], [1, 1, 0])


def test_an_isotonic_regression_in_its_place_gives_the_same():
    score, label, weight = rows()
    ours, theirs = Isotonic(ends=0), IsotonicRegression(out_of_bounds="clip")
    for given in (score, score[:, np.newaxis]):
        both = [one.fit(given, label, weight).predict(given) for one in (ours, theirs)]
        assert both[0] == pytest.approx(both[1], abs=1e-12)
    assert ours.score(score, label) == pytest.approx(theirs.score(score, label))


scores_regressors = pytest.mark.skipif(
    sklearn.__version__.startswith("1.8."), reason="scikit-learn < 1.9 asks no regressor for probabilities"
)


@scores_regressors
def test_scorers_of_probabilities_and_searches_work():
    score, label, _ = rows()
    folds = KFold(4)
    found = cross_val_score(Isotonic(), score[:, np.newaxis], label, scoring="neg_brier_score", cv=folds)
    expected = []
    for train, test in folds.split(score):
        p = Isotonic().fit(score[train], label[train]).predict(score[test])
        expected.append(-brier_score_loss(label[test], p))
    assert found == pytest.approx(expected)
    losses = cross_val_score(Platt(), score[:, np.newaxis], label, scoring="neg_log_loss", cv=folds)
    assert np.isfinite(losses).all()
    search = GridSearchCV(HistogramBinning(), {"bins": [2, 5]}, scoring="neg_brier_score", cv=folds)
    assert search.fit(score[:, np.newaxis], label).best_params_ in ({"bins": 2}, {"bins": 5})
    pipe = make_pipeline(FunctionTransformer(np.negative), Isotonic()).fit(score[:, np.newaxis], label)
    assert np.array_equal(pipe.predict(score[:, np.newaxis]), Isotonic().fit(-score, label).predict(-score))


@scores_regressors
def test_weights_are_routed_where_they_are_asked_for():
    score, label, weight = rows()
    X, folds = score[:, np.newaxis], KFold(2)
    plain = cross_val_score(Isotonic(), X, label, scoring="neg_brier_score", cv=folds)
    with sklearn.config_context(enable_metadata_routing=True):
        asking = clone(Isotonic().set_fit_request(sample_weight=True))
        scorer = get_scorer("neg_brier_score").set_score_request(sample_weight=False)
        options = {"scoring": scorer, "cv": folds, "params": {"sample_weight": weight}}
        found = cross_val_score(asking, X, label, **options)
        with pytest.raises(ValueError, match="sample_weight"):
            cross_val_score(Isotonic(), X, label, error_score="raise", **options)
    expected = []
    for train, test in folds.split(score):
        p = Isotonic().fit(score[train], label[train], weight[train]).predict(score[test])
        expected.append(-brier_score_loss(label[test], p))
    assert found == pytest.approx(expected)
    assert not np.allclose(found, plain)


def test_a_clone_keeps_what_a_calibrator_was_made_with():
    made = Isotonic(strict=True).set_fit_request(sample_weight=True)
    copied = clone(made)
    assert copied.get_params() == made.get_params()
    assert str(copied.get_metadata_routing()) == str(made.get_metadata_routing())
    score, label, _ = rows()
    fitted = Isotonic().fit(score, label, sampling=Sampling(0.1))
    assert np.array_equal(
        clone(fitted).fit(score, label, sampling=Sampling(0.1)).predict(score), fitted.predict(score)
    )
    assert not np.array_equal(clone(fitted).fit(score, label).predict(score), fitted.predict(score))
