"""A scikit-learn classifier with calibrated probabilities."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import check_cv, cross_val_predict
from sklearn.utils import _safe_indexing, assert_all_finite, get_tags, indexable
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import _check_method_params, _check_sample_weight, check_is_fitted, column_or_1d

from calibrators.auto.calibrator import Auto
from calibrators.base import Calibrator
from calibrators.core.arrays import Array, Integers
from calibrators.core.passes import check_choice


class CalibratedPair(NamedTuple):
    """A fitted classifier and the calibrator fitted to its scores."""

    estimator: Any
    calibrator: Calibrator


class CalibratedClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """A binary classifier with calibrated probabilities.

    The classifier is fitted to one part of the data and the calibrator to its scores of the other part, as in
    `sklearn.calibration.CalibratedClassifierCV`, with any calibrator of this package.

    Parameters
    ----------
    estimator : classifier with `predict_proba` or `decision_function`; default LogisticRegression()
        A `sklearn.frozen.FrozenEstimator` is not fitted, and all data are used for the calibrator.
    calibrator : Calibrator, default Auto()
    cv : int, cross-validation generator, iterable of (train, test) indices, or None; default None
        As in scikit-learn: None is 5 folds; an int gives stratified folds. Not used with a FrozenEstimator.
    response : {'auto', 'predict_proba', 'decision_function', 'sigmoid'}, default 'auto'
        The score: the positive class's column of `predict_proba`, the decision function, or the sigmoid of the
        decision function. 'auto' is `predict_proba` if the classifier has it and 'sigmoid' otherwise: always a score
        in [0, 1].
    ensemble : bool or 'auto', default 'auto'
        True: one classifier and one calibrator per fold, their probabilities averaged. False: one calibrator on the
        cross-validated scores of all data, and one classifier fitted to all data. 'auto' is True except for a
        FrozenEstimator.
    n_jobs : int or None, default None
        Number of folds fitted in parallel, as in scikit-learn.

    Attributes
    ----------
    classes_ : array, shape (2,): the labels; the second is the positive one
    calibrated_classifiers_ : list of CalibratedPair: one per fold, or one
    n_features_in_, feature_names_in_ : those of the first classifier, if it has them

    Notes
    -----
    Weights are passed to the calibrator and, if its `fit` takes them, to the classifier. The calibrator ignores rows of
    weight 0.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from calibrators.classifier import CalibratedClassifier
    >>> from calibrators.sigmoid.platt import Platt
    >>> X, y = make_classification(random_state=0)
    >>> model = CalibratedClassifier(GaussianNB(), Platt("logit"), cv=3).fit(X, y)
    >>> model.predict_proba(X[:2]).round(2)
    array([[0.78, 0.22],
           [0.72, 0.28]])
    """

    def __init__(
        self,
        estimator: Any = None,
        calibrator: Calibrator | None = None,
        cv: Any = None,
        *,
        response: Literal["auto", "predict_proba", "decision_function", "sigmoid"] = "auto",
        ensemble: bool | Literal["auto"] = "auto",
        n_jobs: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.calibrator = calibrator
        self.cv = cv
        self.response = response
        self.ensemble = ensemble
        self.n_jobs = n_jobs

    def fit(
        self,
        X: Any,
        y: npt.ArrayLike,
        sample_weight: npt.ArrayLike | None = None,
        groups: npt.ArrayLike | None = None,
        **fit_params: Any,
    ) -> Self:
        """Fit classifier and calibrator.

        Parameters
        ----------
        X : array-like, shape (n, features)
        y : array-like, shape (n,), of two classes
        sample_weight : array-like, shape (n,), >= 0; default 1
        groups : array-like, shape (n,), optional: for a cross-validation generator that splits by groups
        **fit_params : passed to the classifier's `fit`; of arrays with one value per row, the values of the training
            rows. Not used with a FrozenEstimator.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For targets that are not of two classes, fewer rows of a class than folds, no fold with rows of
            both classes to calibrate on, parameters out of range.

        Warns
        -----
        UserWarning
            If there are weights and the classifier takes none.
        """
        self._check_parameters()
        X, target = indexable(X, column_or_1d(y, warn=True))
        assert_all_finite(target, input_name="y")
        kind = type_of_target(target, input_name="y", raise_unknown=True)
        self.classes_ = np.unique(target)
        if kind != "binary" or self.classes_.size != 2:
            raise ValueError(
                f"Only binary classification is supported. The type of the target is {kind}, "
                f"with {self.classes_.size} classes: expected two. For several classes calibrate each against the "
                "rest: sklearn.multiclass.OneVsRestClassifier(CalibratedClassifier(...))."
            )
        weight = None if sample_weight is None else _check_weight(sample_weight, X, target)
        estimator = self._estimator()
        if isinstance(estimator, FrozenEstimator):
            pairs = [self._calibrate(estimator, self._scores(estimator, X), target, weight)]
        else:
            folds = self._folds(X, target, groups)
            if self._takes_weights(estimator, weight):
                fit_params["sample_weight"] = weight
            if self.ensemble in (True, "auto"):
                self._check_folds(target, folds)
                fits = (
                    delayed(self._fit_fold)(estimator, X, target, fit_params, weight, fold) for fold in folds
                )
                pairs = list(Parallel(n_jobs=self.n_jobs)(fits))
            else:
                pairs = [self._fit_crossed(estimator, X, target, fit_params, weight, folds)]
        self.calibrated_classifiers_ = pairs
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(pairs[0].estimator, name):
                setattr(self, name, getattr(pairs[0].estimator, name))
        return self

    def predict_proba(self, X: Any) -> Array:
        """Predict calibrated probabilities of both classes.

        Parameters
        ----------
        X : array-like, shape (n, features)

        Returns
        -------
        float64 array, shape (n, 2), in [0, 1]
            Each row adds up to 1; the second column has the probability of `classes_[1]`.
        """
        check_is_fitted(self)
        columns = [
            pair.calibrator.predict(self._scores(pair.estimator, X)) for pair in self.calibrated_classifiers_
        ]
        positive = np.mean(columns, axis=0)
        return np.column_stack([1.0 - positive, positive])

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Predict the class with the higher calibrated probability; the first class if both are equal.

        Parameters
        ----------
        X : array-like, shape (n, features)

        Returns
        -------
        array, shape (n,)
            Values of `classes_`.
        """
        probabilities = self.predict_proba(X)
        return np.asarray(self.classes_[np.argmax(probabilities, axis=1)])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = get_tags(self._estimator()).input_tags.sparse
        tags.classifier_tags.multi_class = False
        return tags

    def _check_parameters(self) -> None:
        calibrator = self._calibrator()
        if not isinstance(calibrator, Calibrator):
            raise ValueError(
                f"calibrator: expected a Calibrator, which maps scores alone, found {type(calibrator).__name__}"
            )
        check_choice("response", self.response, "auto", "predict_proba", "decision_function", "sigmoid")
        if not isinstance(self.ensemble, np.bool_):
            check_choice("ensemble", self.ensemble, True, False, "auto")

    def _estimator(self) -> Any:
        return LogisticRegression() if self.estimator is None else self.estimator

    def _calibrator(self) -> Any:
        return Auto() if self.calibrator is None else self.calibrator

    def _folds(self, X: Any, y: npt.NDArray[Any], groups: Any) -> list[tuple[Integers, Integers]]:
        folds = int(self.cv) if isinstance(self.cv, Integral) else getattr(self.cv, "n_splits", None)
        rarest = int(np.unique_counts(y).counts.min())
        if folds and rarest < folds:
            raise ValueError(
                f"cv: Requesting {folds}-fold cross-validation takes at least {folds} rows of each class, "
                f"found {rarest} of one class"
            )
        return list(check_cv(self.cv, y, classifier=True).split(X, y, groups))

    def _check_folds(self, y: npt.NDArray[Any], folds: Iterable[tuple[Integers, Integers]]) -> None:
        """Raise ValueError if every fold has one class only, since all calibrators would then be constant."""
        if not any(np.unique(y[test]).size == self.classes_.size for _, test in folds):
            raise ValueError(
                f"cv: {type(self.cv).__name__} cross-validation does not allow all classes to be present in test "
                "splits: expected rows of both classes to calibrate on, found one class in every fold: use fewer "
                "folds, stratified ones, or ensemble=False"
            )

    @staticmethod
    def _takes_weights(estimator: Any, weight: Array | None) -> bool:
        takes = "sample_weight" in inspect.signature(estimator.fit).parameters
        if weight is not None and not takes:
            warnings.warn(
                f"{type(estimator).__name__}.fit takes no sample_weight: the weights are used for the calibration only",
                UserWarning,
                stacklevel=3,
            )
        return takes and weight is not None

    def _fit_fold(
        self,
        estimator: Any,
        X: Any,
        y: npt.NDArray[Any],
        fit_params: Mapping[str, Any],
        weight: Array | None,
        fold: tuple[Integers, Integers],
    ) -> CalibratedPair:
        train, test = fold
        fitted = clone(estimator)
        fold_params = _check_method_params(X, fit_params, train)
        fitted.fit(_safe_indexing(X, train), y[train], **fold_params)
        scores = self._scores(fitted, _safe_indexing(X, test))
        return self._calibrate(fitted, scores, y[test], None if weight is None else weight[test])

    def _fit_crossed(
        self,
        estimator: Any,
        X: Any,
        y: npt.NDArray[Any],
        fit_params: Mapping[str, Any],
        weight: Array | None,
        folds: list[tuple[Integers, Integers]],
    ) -> CalibratedPair:
        method, transform = self._response(estimator)
        outputs = cross_val_predict(
            clone(estimator), X, y, cv=folds, method=method, params=dict(fit_params), n_jobs=self.n_jobs
        )
        fitted = clone(estimator).fit(X, y, **fit_params)
        return self._calibrate(fitted, transform(outputs), y, weight)

    def _calibrate(
        self, estimator: Any, scores: Array, y: npt.NDArray[Any], weight: Array | None
    ) -> CalibratedPair:
        labels = y == self.classes_[1]
        if weight is not None:
            counted = weight > 0
            scores, labels, weight = scores[counted], labels[counted], weight[counted]
        return CalibratedPair(estimator, clone(self._calibrator()).fit(scores, labels, weight))

    def _response(self, estimator: Any) -> tuple[str, Any]:
        """Return the name of the estimator's method, and the function from its output to scores."""
        response = self.response
        if response == "auto":
            response = "predict_proba" if hasattr(estimator, "predict_proba") else "sigmoid"
        if response == "predict_proba":
            return "predict_proba", lambda output: np.asarray(output, np.float64)[:, 1]
        transform = expit if response == "sigmoid" else np.asarray
        return "decision_function", lambda output: transform(np.asarray(output, np.float64))

    def _scores(self, estimator: Any, X: Any) -> Array:
        method, transform = self._response(estimator)
        if not np.array_equal(estimator.classes_, self.classes_):
            raise ValueError(
                f"estimator: expected it to be fitted to the classes {self.classes_.tolist()}, "
                f"found {estimator.classes_.tolist()}"
            )
        scores: Array = transform(getattr(estimator, method)(X))
        return scores


def _check_weight(sample_weight: npt.ArrayLike, X: Any, target: npt.NDArray[Any]) -> Array:
    weight: Array = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
    if np.unique(target[weight > 0]).size != 2:
        raise ValueError("sample_weight: expected weights > 0 in both classes, found one class without")
    return weight
