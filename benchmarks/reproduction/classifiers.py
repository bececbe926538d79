"""The classifiers of the experiments: features to scores."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import CategoricalNB, GaussianNB
from sklearn.svm import SVC, LinearSVC

from benchmarks.reproduction.data import Data, Mask
from calibrators.core.arrays import Array

NAMES = {
    "lr": "logistic regression",
    "svm": "linear SVM",
    "nb": "naive Bayes",
    "nb_plain": "naive Bayes",
    "svm_linear": "SVM, linear kernel",
    "svm_quadratic": "SVM, quadratic kernel",
}
"""Displayed names. nb smooths the frequencies of categories, and treats numbers with two values as categories. nb_plain
does neither, uses unscaled numbers, and gives a category that a class never had the probability 0.001."""

UNSEEN = 0.001
DUAL_STEPS, NEWTON_STEPS = 5000, 300
"""Maximum numbers of steps of the linear SVM. Newton steps are slow: on the set `ad`, 300 of them take half the time of
5,000 dual steps, and reach a lower objective."""


class Scores(NamedTuple):
    """Scores that a classifier gives to rows.

    Attributes
    ----------
    probability : float64 array, shape (n,), in [0, 1]; for an SVM the sigmoid of its margin
    margin : float64 array, shape (n,): log odds or an SVM's margin; for naive Bayes the probability
    lower, upper : float64 arrays, shape (n,), or None: 95 % interval of the probability (logistic regression)
    """

    probability: Array
    margin: Array
    lower: Array | None = None
    upper: Array | None = None


class Preparation:
    """Preparation of features, learnt from the training rows.

    Missing numbers are replaced by the median; numbers are standardised; categories become indicators, except for naive
    Bayes.
    """

    def __init__(self, data: Data, categories: npt.NDArray[np.int64]) -> None:
        with warnings.catch_warnings():
            # A column whose training values are all missing has no median.
            warnings.simplefilter("ignore", RuntimeWarning)
            self.median = np.nan_to_num(np.nanmedian(data.numeric, axis=0))
        filled = self.filled(data)
        self.mean = filled.mean(axis=0)
        spread = filled.std(axis=0)
        self.scale = np.where(spread > 0, spread, 1.0)
        self.categories = categories

    def filled(self, data: Data) -> Array:
        """Return the numbers with missing values filled in."""
        return np.where(np.isnan(data.numeric), self.median, data.numeric)

    def numeric(self, data: Data) -> Array:
        """Return standardised numbers."""
        return (self.filled(data) - self.mean) / self.scale

    def design(self, data: Data) -> Array:
        """Return standardised numbers and indicators."""
        indicators = [
            (data.codes[:, [j]] == np.arange(count)).astype(np.float64)
            for j, count in enumerate(self.categories)
        ]
        return np.hstack([self.numeric(data), *indicators])


class Classifier:
    """Classifier of the experiments: `fit`, then `scores`.

    Parameters
    ----------
    kind : a key of `NAMES`
    seed : random seed
    intervals : whether a logistic regression gives intervals
    """

    def __init__(self, kind: str, seed: int = 0, *, intervals: bool = False) -> None:
        self.kind = kind
        self.seed = seed
        self.intervals = intervals
        self.not_converged = False
        self.model: Any = None
        self.covariance: Array | None = None

    def fit(self, data: Data, categories: npt.NDArray[np.int64]) -> Classifier:
        """Train. categories : number of categories of each column of codes, over all data."""
        self.preparation = Preparation(data, categories)
        if self.kind in ("nb", "nb_plain"):
            model = _NaiveBayes(categories, plain=self.kind == "nb_plain")
            self.model = model.fit(self._numbers(data), data.codes, data.label)
            return self
        design = self.preparation.design(data)
        self.model = self._make(design.shape)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.model.fit(design, data.label)
        self.not_converged = any("onverge" in str(warning.message) for warning in caught)
        if self.intervals:
            from calibrators.acp import coefficient_covariance

            self.covariance = coefficient_covariance(self.model, design)
        return self

    def _numbers(self, data: Data) -> Array:
        # Naive Bayes' lower limit of variances is a share of the largest one, so scales matter.
        return self.preparation.filled(data) if self.kind == "nb_plain" else self.preparation.numeric(data)

    def _make(self, shape: tuple[int, ...]) -> Any:
        if self.kind == "lr":
            return LogisticRegression(C=1.0, max_iter=1000)
        if self.kind == "svm":
            dual = shape[0] < shape[1]
            steps = DUAL_STEPS if dual else NEWTON_STEPS
            return LinearSVC(C=1.0, dual=dual, max_iter=steps, random_state=self.seed)
        if self.kind == "svm_linear":
            return SVC(C=1.0, kernel="linear")
        return SVC(C=1.0, kernel="poly", degree=2, coef0=1.0, gamma=1.0)

    def scores(self, data: Data) -> Scores:
        """Score rows."""
        if self.kind in ("nb", "nb_plain"):
            probability = self.model.predict(self._numbers(data), data.codes)
            return Scores(probability, probability)
        design = self.preparation.design(data)
        if self.covariance is not None:
            from calibrators.acp import confidence_intervals

            probability, lower, upper = confidence_intervals(self.model, self.covariance, design)
            return Scores(probability, self.model.decision_function(design), lower, upper)
        margin = self.model.decision_function(design)
        return Scores(expit(margin), margin)


class _NaiveBayes:
    """Naive Bayes on numbers, normal within a class, and categories, with Laplace smoothing.

    A number with at most two values in the training rows is treated as a category. With `plain` it is not, and
    categories have their frequencies, or `UNSEEN` if a class never had them.
    """

    def __init__(self, categories: npt.NDArray[np.int64], *, plain: bool = False) -> None:
        self.categories = categories
        self.plain = plain

    def fit(self, numeric: Array, codes: npt.NDArray[np.int64], label: Mask) -> _NaiveBayes:
        low, high = numeric.min(axis=0), numeric.max(axis=0)
        self.binary = np.all((numeric == low) | (numeric == high), axis=0) & (not self.plain)
        self.middle = (low + high)[self.binary] / 2
        counts = np.concatenate([np.full(self.middle.size, 2), self.categories])
        numeric, codes = self._split(numeric, codes)
        self.gaussian = GaussianNB().fit(numeric, label) if numeric.shape[1] else None
        self.categorical = self._frequencies(counts, codes, label) if codes.shape[1] else None
        self.log_prior = np.log(np.array([np.mean(~label), np.mean(label)]))
        return self

    def _frequencies(
        self, counts: npt.NDArray[np.int64], codes: npt.NDArray[np.int64], label: Mask
    ) -> CategoricalNB:
        if not self.plain:
            return CategoricalNB(min_categories=counts).fit(codes, label)
        model = CategoricalNB(min_categories=counts, alpha=1e-10, force_alpha=True).fit(codes, label)
        model.feature_log_prob_ = [
            np.where(seen == 0, np.log(UNSEEN), logs)
            for seen, logs in zip(model.category_count_, model.feature_log_prob_, strict=True)
        ]
        return model

    def _split(self, numeric: Array, codes: npt.NDArray[np.int64]) -> tuple[Array, npt.NDArray[np.int64]]:
        two = (numeric[:, self.binary] > self.middle).astype(np.int64)
        return numeric[:, ~self.binary], np.hstack([two, codes])

    def predict(self, numeric: Array, codes: npt.NDArray[np.int64]) -> Array:
        numeric, codes = self._split(numeric, codes)
        joint = np.zeros((numeric.shape[0], 2)) + self.log_prior
        if self.gaussian is not None:
            joint += self.gaussian.predict_joint_log_proba(numeric) - self.log_prior
        if self.categorical is not None:
            joint += self.categorical.predict_joint_log_proba(codes) - self.log_prior
        return np.asarray(expit(joint[:, 1] - joint[:, 0]))
