"""Adaptive calibration of predictions (ACP)."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.special import expit, ndtri
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from calibrators.core.arrays import Array, Integers
from calibrators.core.cumulative import Counts, counts_at, gather_pass, layout_of, part_totals
from calibrators.core.passes import Pass, Points, collapse_rows, in_memory


class ACP(BaseEstimator):
    """Adaptive calibration of predictions: each prediction's interval is its bin.

    The calibrated probability of a prediction with the interval [lower, upper] (a 95 % confidence interval, say) is
    the frequency of positives among the calibration scores in it, both ends included. A prediction whose interval
    contains no calibration score is not changed. This is not a map of the score alone, so there is no lookup table:
    the fitted object contains the cumulative counts at all distinct scores, 24 bytes each, and a prediction takes two
    binary searches.

    Attributes
    ----------
    scores_ : float64 array, shape (m,): the distinct calibration scores, ascending
    counts_ : Counts: cumulative weight and positives before each score, and in total; shape (m + 1,)
    n_observations_ : float: sum of the weights

    See Also
    --------
    confidence_intervals : The intervals of a logistic regression.

    References
    ----------
    Jiang, Osl, Kim & Ohno-Machado (2012), "Calibrating predictive model estimates to support personalized medicine",
    Journal of the American Medical Informatics Association 19(2), 263-274, doi:10.1136/amiajnl-2011-000291.

    Examples
    --------
    >>> from calibrators.acp import ACP
    >>> acp = ACP().fit([0.1, 0.2, 0.3, 0.6, 0.7], [0, 0, 1, 1, 1])
    >>> acp.predict([0.2, 0.65], lower=[0.1, 0.62], upper=[0.3, 0.68]).round(3)
    array([0.333, 0.65 ])
    """

    scores_: Array
    counts_: Counts
    n_observations_: float

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None) -> Self:
        """Fit to predictions in any order.

        Parameters
        ----------
        X : array-like of numbers, shape (n,) or (n, 1), in [0, 1], n >= 1
            Predicted probabilities.
        y : array-like, shape (n,), bool or numbers in {0, 1}
            Labels.
        sample_weight : array-like, shape (n,), from 1e-100 to 1e100, or 0; default 1
            A weight of 2 equals a repeated row; a row of weight 0 is left out.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For input outside these ranges.

        Notes
        -----
        O(n log n).
        """
        return self.fit_points(collapse_rows(X, y, sample_weight))

    def fit_points(self, points: Points) -> Self:
        """Fit to points in memory, which `collapse` has checked."""
        return self.fit_passes(in_memory(points))

    def fit_passes(self, run: Callable[[Pass], Any]) -> Self:
        """Fit to a score table: `run` executes the pass that gathers all points of its parts."""
        points: Points = run(gather_pass())
        layout = layout_of([part_totals(points)])
        layout.check_probabilities("ACP")
        self.scores_, self.n_observations_ = points.score, layout.weight
        self.counts_ = counts_at(layout, 0, points, np.arange(points.score.size + 1))
        return self

    def predict(self, scores: npt.ArrayLike, lower: npt.ArrayLike, upper: npt.ArrayLike) -> Array:
        """Calibrate predictions with their intervals.

        Parameters
        ----------
        scores : array-like of numbers, any shape, in [0, 1]: predicted probabilities
        lower, upper : array-like of numbers of the same shape, lower <= upper: each prediction's interval

        Returns
        -------
        float64 array, in the shape of `scores`
            In [0, 1]; NaN where the score, lower or upper is NaN.

        Raises
        ------
        ValueError
            If shapes differ, a score lies outside [0, 1] or a lower end above its upper end.
        sklearn.exceptions.NotFittedError

        Notes
        -----
        O(log m) a prediction.
        """
        if not hasattr(self, "counts_"):
            raise NotFittedError("this ACP is not fitted yet: call fit first")
        s, low, high = (np.asarray(x, dtype=np.float64) for x in (scores, lower, upper))
        _check_intervals(s, low, high)
        i = np.searchsorted(self.scores_, low, side="left")
        j = np.searchsorted(self.scores_, high, side="right")
        weight = _between(self.counts_.weight, self.counts_.weight_low, i, j)
        positives = _between(self.counts_.positives, self.counts_.positives_low, i, j)
        filled = weight > 0
        level = np.where(filled, np.minimum(positives / np.where(filled, weight, 1.0), 1.0), s)
        return np.where(np.isnan(s) | np.isnan(low) | np.isnan(high), np.nan, level)


def _between(high: Array, low: Array, i: Integers, j: Integers) -> Array:
    return np.maximum((high[j] - high[i]) + (low[j] - low[i]), 0.0)


def _check_intervals(scores: Array, lower: Array, upper: Array) -> None:
    if not scores.shape == lower.shape == upper.shape:
        raise ValueError(
            f"expected scores, lower and upper of one shape, found {scores.shape}, {lower.shape} and {upper.shape}"
        )
    outside = np.flatnonzero((scores < 0) | (scores > 1))
    if outside.size:
        raise ValueError(
            f"scores: expected probabilities in [0, 1], found {outside.size} others, "
            f"the first {scores.flat[outside[0]]} at index {outside[0]}"
        )
    reversed_ = np.flatnonzero(lower > upper)
    if reversed_.size:
        first = reversed_[0]
        raise ValueError(
            f"lower: expected numbers <= upper, found {reversed_.size} above it, "
            f"the first {lower.flat[first]} > {upper.flat[first]} at index {first}"
        )


def coefficient_covariance(model: Any, X: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None) -> Array:
    """Compute the covariance of a binary logistic regression's coefficients: its inverse information matrix.

    Parameters
    ----------
    model : sklearn.linear_model.LogisticRegression, fitted, without an L1 penalty
    X : array-like, shape (n, features): the training data
    sample_weight : array-like, shape (n,), > 0; default 1
        Weights of the training, multiplied by the class weights if the model has any.

    Returns
    -------
    float64 array, shape (features + 1, features + 1), or (features, features) without an intercept
        In the order of the coefficients, the intercept last. The information matrix includes an L2 penalty.

    Raises
    ------
    ValueError
        For a model of more than two classes, with an L1 penalty, with class weights but no sample_weight, and for
        singular information (collinear features without a penalty).
    """
    if model.coef_.shape[0] != 1:
        raise ValueError(f"model: expected two classes, found {model.classes_.size}")
    if getattr(model, "penalty", None) == "l1" or (getattr(model, "l1_ratio", None) or 0) > 0:
        raise ValueError(
            "model: expected no L1 penalty, found one: this covariance does not apply to its coefficients"
        )
    if model.class_weight is not None and sample_weight is None:
        raise ValueError(
            "sample_weight: expected, because the model has class_weight: give the product of both"
        )
    design = _design(model, X)
    weight = np.ones(design.shape[0]) if sample_weight is None else np.asarray(sample_weight, np.float64)
    p = expit(design @ _coefficients(model))
    information = (design * (weight * p * (1 - p))[:, None]).T @ design
    information[np.diag_indices_from(information)] += _penalty(model, information.shape[0])
    # A squared pivot of the Cholesky factor is the information of a feature that earlier features do not explain.
    try:
        factor = np.linalg.cholesky(information)
        singular = bool(np.min(np.diag(factor) ** 2 / np.diag(information)) < 1e-10)
    except np.linalg.LinAlgError:
        singular = True
    if singular:
        raise ValueError(
            "X: expected linearly independent features, found singular information: drop some or use a penalty"
        )
    root = np.linalg.inv(factor)
    return np.asarray(root.T @ root)


def confidence_intervals(
    model: Any, covariance: Array, X: npt.ArrayLike, confidence: float = 0.95
) -> tuple[Array, Array, Array]:
    """Predict probabilities of a logistic regression with their confidence intervals.

    These are Wald intervals of the linear predictor, mapped by the sigmoid.

    Parameters
    ----------
    model : sklearn.linear_model.LogisticRegression, fitted, of two classes
    covariance : float64 array: the model's `coefficient_covariance`
    X : array-like, shape (n, features)
    confidence : float in (0, 1), default 0.95

    Returns
    -------
    probability, lower, upper : float64 arrays, shape (n,), in [0, 1]: arguments of `ACP.predict`

    Raises
    ------
    ValueError
        For a confidence outside (0, 1).

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> from calibrators.acp import coefficient_covariance, confidence_intervals
    >>> X, y = np.arange(8.0)[:, None], [0, 0, 1, 0, 1, 0, 1, 1]
    >>> model = LogisticRegression().fit(X, y)
    >>> p, lower, upper = confidence_intervals(model, coefficient_covariance(model, X), [[3.5]])
    >>> p.round(2), lower.round(2), upper.round(2)
    (array([0.5]), array([0.17]), array([0.83]))
    """
    if not isinstance(confidence, Real) or not 0 < confidence < 1:
        raise ValueError(f"confidence: expected a number in (0, 1), found {confidence!r}")
    design = _design(model, X)
    centre = design @ _coefficients(model)
    half_width = ndtri((1 + confidence) / 2) * np.sqrt(np.einsum("ij,jk,ik->i", design, covariance, design))
    return expit(centre), expit(centre - half_width), expit(centre + half_width)


def _design(model: Any, X: npt.ArrayLike) -> Array:
    design = np.asarray(X, dtype=np.float64)
    return np.column_stack([design, np.ones(design.shape[0])]) if model.fit_intercept else design


def _coefficients(model: Any) -> Array:
    return np.append(model.coef_[0], model.intercept_) if model.fit_intercept else model.coef_[0]


def _penalty(model: Any, size: int) -> Array:
    """Contribution of the L2 penalty to the diagonal of the information."""
    if getattr(model, "penalty", "deprecated") is None or np.isinf(model.C):
        return np.zeros(size)
    penalty = np.full(size, 1.0 / model.C)
    if model.fit_intercept:
        # Only liblinear penalises the intercept.
        penalty[-1] = 1.0 / (model.C * model.intercept_scaling**2) if model.solver == "liblinear" else 0.0
    return penalty
