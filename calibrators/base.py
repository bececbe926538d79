"""Base class of all calibrators: their contract, and the checks of their input.

A calibrator sees *points*: one entry per distinct score, ascending, with the weight and the positives of the
observations that share it. It fits in *passes*: sweeps that turn each part of the points into a small state and
combine the states in score order. In memory there is one part; a score table has many, which several processes may
read. The calibrator does not know the parts, so its result cannot depend on them.
"""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from calibrators.core.arrays import Array
from calibrators.core.map import CalibrationMap, MapBlockRanges
from calibrators.core.passes import Pass, Passes, Points, collapse_rows, column_of, in_memory, run_passes

if TYPE_CHECKING:
    from calibrators.core.fine_cells import FineCells
    from calibrators.core.pointwise import Pointwise

_PART_BYTES = 8192
"""Bytes of a part's state besides its blocks: sums as expansions, end points."""


class Line(NamedTuple):
    """Exact log odds of a map: shift + slope * x.

    of : choice of x: 1 is the score, 2 the log odds of the score clipped to [2**-53, 1 - 2**-53]
    """

    of: int
    shift: float
    slope: float


@dataclass(frozen=True)
class Needs:
    """Requirements of a calibrator's fit and properties of its maps, which follow from its parameters.

    Attributes
    ----------
    one_pass : whether the fit takes exactly one pass; then a score table need not be written
    fit_before_segments : whether `for_segments` can be called only after the fit
    resampling : whether the map of sampled observations must be turned into that of all. Else `_passes` itself returns
        it: exactly, as the sample's odds times the sampling rate
    constant_rows : whether the map is constant within each of its rows with observations
    posterior : whether `posterior_` gives intervals of the probabilities
    partial_pooling : whether segments' maps can be pooled with this map, which then has `block_ranges`
    """

    one_pass: bool = False
    fit_before_segments: bool = False
    resampling: bool = True
    constant_rows: bool = False
    posterior: bool = False
    partial_pooling: bool = False


class Sampling(NamedTuple):
    """Sampling of observations: it belongs to the data, so it is given with them.

    rate : the kept share of the negatives divided by that of the positives: a map is then for all rows. See
        `calibrators.core.sampling`
    heaviest : largest weight of an observation if weights are sampling weights: cross-validation and checks treat this
        much weight as one observation. 1 if weights are counts
    """

    rate: float = 1.0
    heaviest: float = 1.0


class Parameters:
    """Base of objects whose parameters are the keywords of `__init__`, stored unchanged.

    scikit-learn treats it as an estimator: `clone`, searches, pipelines, metadata routing. It is not its
    `BaseEstimator`, whose import takes four times as long as that of all a fit needs.
    """

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        if cls.__init__ is object.__init__:
            return {}
        signature = inspect.signature(cls.__init__)
        return {name: p.default for name, p in signature.parameters.items() if name != "self"}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name.

        deep : whether to include nested parameters, as name__nested_name
        """
        params: dict[str, Any] = {}
        for name in sorted(self._defaults()):
            value = getattr(self, name)
            if deep and hasattr(value, "get_params") and not isinstance(value, type):
                params |= {f"{name}__{nested}": inner for nested, inner in value.get_params().items()}
            params[name] = value
        return params

    def set_params(self, **params: Any) -> Self:
        """Set parameters, also nested ones as name__nested_name.

        Raises
        ------
        ValueError
            For a name that is not a parameter; then nothing is set.
        """
        names = sorted(self._defaults())
        unknown = sorted({name.partition("__")[0] for name in params} - set(names))
        if unknown:
            raise ValueError(
                f"expected parameters of {type(self).__name__}, {', '.join(names) or 'which has none'}, found "
                f"{', '.join(unknown)}"
            )
        nested: dict[str, dict[str, Any]] = {}
        for key, value in params.items():
            name, separator, inner = key.partition("__")
            if separator:
                nested.setdefault(name, {})[inner] = value
            else:
                setattr(self, name, value)
        for name, values in nested.items():
            getattr(self, name).set_params(**values)
        return self

    def __repr__(self) -> str:
        shown = []
        for name, default in self._defaults().items():
            value = getattr(self, name)
            # Parameters may be arrays or estimators, for which `==` does not return a bool.
            if value is not default and repr(value) != repr(default):
                shown.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def __sklearn_tags__(self) -> Any:
        """Tags for `sklearn.utils.get_tags`: a regressor and transformer of one column."""
        from sklearn.utils import InputTags, RegressorTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type="regressor",
            regressor_tags=RegressorTags(),
            transformer_tags=TransformerTags(),
            target_tags=TargetTags(required=True),
            input_tags=InputTags(one_d_array=True, two_d_array=False),
        )

    def set_fit_request(self, *, sample_weight: bool | str | None) -> Self:
        """Say whether meta-estimators of scikit-learn pass `sample_weight` to `fit`: see its metadata routing.

        sample_weight : as in scikit-learn: True, False, None (an error if it is given), or another name
        """
        request = self.get_metadata_routing()
        request.fit.add_request(param="sample_weight", alias=sample_weight)
        self._metadata_request = request  # which `clone` keeps
        return self

    def get_metadata_routing(self) -> Any:
        """Return the `sklearn.utils.metadata_routing.MetadataRequest` of the estimator."""
        from sklearn.utils.metadata_routing import MetadataRequest

        if hasattr(self, "_metadata_request"):
            return copy.deepcopy(self._metadata_request)
        request = MetadataRequest(type(self).__name__)
        request.fit.add_request(param="sample_weight", alias=None)
        return request


NOT_SAMPLED = Sampling()


class Calibrator(Parameters, ABC):
    """A calibrator of binary scores: `fit(X, y)`, `predict(X)`, as scikit-learn's `IsotonicRegression` has them.

    It counts as a regressor, since `predict` returns probabilities. Subclasses take their parameters in `__init__` as
    scikit-learn does, and implement `_passes`. They may implement `check_parameters`.

    Attributes
    ----------
    calibration_map_ : CalibrationMap
        The fitted map, which `predict` applies.
    n_observations_ : float
        Sum of the weights.
    """

    needs: Needs = Needs()

    sampling_: Sampling = NOT_SAMPLED
    """Sampling of the observations of the fit."""

    line_: Line | None = None
    """Result instead of `calibration_map_`, if `in_lines` was called and the log odds are a line."""

    fine_cells_: FineCells | None = None
    """Fine cells of the observations, if the fit gathers them."""

    posterior_: Pointwise

    calibration_map_: CalibrationMap

    def fit(
        self,
        X: npt.ArrayLike,
        y: npt.ArrayLike,
        sample_weight: npt.ArrayLike | None = None,
        sampling: Sampling = NOT_SAMPLED,
    ) -> Self:
        """Fit to observations in any order.

        Parameters
        ----------
        X : array-like of numbers, shape (n,) or (n, 1), finite, n >= 1
            Scores.
        y : array-like, shape (n,), bool or numbers in {0, 1}
            Labels.
        sample_weight : array-like, shape (n,), from 1e-100 to 1e100, or 0; default 1
            A weight of 2 equals a repeated row; a row of weight 0 is left out.
        sampling : Sampling
            How the observations were sampled. By default they are all there are, and weights are counts.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For input or parameters outside these ranges.

        Notes
        -----
        O(n log n) for the sort, plus the time of `fit_points`.
        """
        return self.fit_points(collapse_rows(X, y, sample_weight), sampling)

    def fit_points(self, points: Points, sampling: Sampling = NOT_SAMPLED) -> Self:
        """Fit to points in memory, which `collapse` has checked."""
        return self.fit_passes(in_memory(points), sampling)

    def fit_passes(self, run: Callable[[Pass], Any], sampling: Sampling = NOT_SAMPLED) -> Self:
        """Fit to a score table: `run` executes each pass over its parts."""
        self.check_parameters()
        self.calibration_map_ = run_passes(self.passes(sampling), run)
        self.n_observations_ = float(self.calibration_map_.weight.sum())
        return self

    def first_pass(self) -> Pass:
        """Return the first pass of `fit_passes`, which depends only on the parameters."""
        self.check_parameters()
        return next(self._passes())

    def predict(self, X: npt.ArrayLike) -> Array:
        """Calibrate scores.

        Parameters
        ----------
        X : a number, or an array-like of numbers of any shape
            Scores. NaN has the probability NaN.

        Returns
        -------
        float64 array, in the shape of `X`, but (n,) for (n, 1); a float64 for a number
            Calibrated probabilities, in [0, 1].

        Raises
        ------
        sklearn.exceptions.NotFittedError
        """
        if not self.__sklearn_is_fitted__():
            from sklearn.exceptions import NotFittedError

            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit first")
        probabilities: Array = self.calibration_map_.predict(column_of(X))
        return probabilities

    def transform(self, X: npt.ArrayLike) -> Array:
        """Calibrate scores, as `predict` does.

        Parameters
        ----------
        X : array-like of numbers, shape (n,) or (n, 1)
            Scores.

        Returns
        -------
        float64 array, shape (n,), in [0, 1]
        """
        return self.predict(X)

    def fit_transform(
        self, X: npt.ArrayLike, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None
    ) -> Array:
        """Fit to scores and labels, and calibrate these scores.

        Parameters
        ----------
        X, y, sample_weight : array-like
            As for `fit`.

        Returns
        -------
        float64 array, shape (n,), in [0, 1]
        """
        return self.fit(X, y, sample_weight).transform(X)

    def predict_proba(self, X: npt.ArrayLike) -> Array:
        """Compute the probabilities of both labels.

        Parameters
        ----------
        X : array-like of numbers, shape (n,) or (n, 1)
            Scores.

        Returns
        -------
        float64 array, shape (n, 2), in [0, 1]
            Each row adds up to 1; the second column is `predict`.
        """
        positive = np.atleast_1d(self.predict(X))
        return np.stack([1.0 - positive, positive], axis=-1)

    def score(self, X: npt.ArrayLike, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None) -> float:
        """Compute R2 of the probabilities, the score of scikit-learn's regressors: 1 - Brier score / variance of y.

        Parameters
        ----------
        X, y, sample_weight : array-like
            As for `fit`.

        Returns
        -------
        float <= 1
        """
        from sklearn.metrics import r2_score

        return float(r2_score(y, self.predict(X), sample_weight=sample_weight))

    def __sklearn_is_fitted__(self) -> bool:
        """Tell scikit-learn whether the calibrator is fitted."""
        return hasattr(self, "calibration_map_")

    def check_parameters(self) -> None:
        """Raise ValueError if a parameter is out of range; the message gives its name, its range and its value."""

    def facts(self) -> dict[str, Any]:
        """Return facts of the fit for readers of the map, as JSON values; empty for most methods."""
        return {}

    def gathers(self, points: int, parts: int, *, weighted: bool = False) -> float:
        """Bound the memory in bytes that the states of all parts of a score table take in one process.

        Parameters
        ----------
        points : int >= 0
            Upper bound of the number of distinct scores.
        parts : int >= 1
            Number of parts of the table.
        weighted : bool, default False
            Whether observations may have weights other than 1.

        Returns
        -------
        float >= 0

        Notes
        -----
        The states are pooled blocks, usually some thousands per part, at most one per point.
        """
        return 56.0 * points + _PART_BYTES * parts

    def path_facts(self) -> dict[str, Any]:
        """Return facts on the course of the fit, as JSON values. Unlike `facts` they may depend on the parts."""
        return {}

    def for_segments(self) -> Calibrator:
        """Return the calibrator for segments of the same observations; by default this one."""
        return self

    def block_ranges(self) -> MapBlockRanges:
        """Return the fitted map as parent curve of the segments' maps."""
        raise NotImplementedError

    def in_lines(self, *, falling: bool) -> Calibrator:
        """Return a calibrator that sets `line_` and no map if the log odds are a line; by default this one.

        falling : whether this includes falling lines
        """
        return self

    def passes(self, sampling: Sampling = NOT_SAMPLED) -> Passes:
        """Yield the passes that the fit needs, receive their results, return the map for all rows."""
        self.sampling_ = sampling
        fitted = yield from self._passes()
        if sampling.rate == 1.0 or not self.needs.resampling:
            return fitted
        from calibrators.core.sampling import resampling_passes

        return (yield from resampling_passes(fitted, sampling.rate))

    @abstractmethod
    def _passes(self) -> Passes:
        """Yield the passes that the fit needs, receive their results, return the map."""
