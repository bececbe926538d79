"""The contract of every calibrator, and the checks of its input.

A calibrator sees *points*: one entry per distinct score, ascending, with the weight and the positives of the
observations that share it. It fits in *passes*: sweeps that turn each part of the points into a small state and
combine the states in score order. In memory there is one part; a score table has many, which several processes may
read. The calibrator does not know the parts, so its result cannot depend on them.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy.typing as npt

from calibrators.arithmetic.calibration_map import CalibrationMap
from calibrators.arithmetic.passes import Array, Pass, Passes, Points, collapse, in_memory, run_passes

if TYPE_CHECKING:
    from calibrators.arithmetic.pointwise import Pointwise

_PART_BYTES = 8192
"""Bytes of a part's other results: sums as expansions, its ends."""


class Line(NamedTuple):
    """Log-odds of a map, exactly: shift + slope * x.

    of : x: 1 the score, 2 its log-odds, held in [2**-53, 1 - 2**-53]
    """

    of: int
    shift: float
    slope: float


class MapBlockRanges(NamedTuple):
    """Neighbouring block ranges of scores within which a fitted map is constant, or is taken to be.

    edges : float64 array, ascending: where each begins. level : float64 array, in [0, 1], ascending: the map's mean in
    each, of the observations, before `sampling_rate`. weight : float64 array, > 0: of the observations in each
    """

    edges: Array
    level: Array
    weight: Array


class Parameters:
    """Base of objects whose parameters are the keywords of `__init__`, stored as given.

    `sklearn.base.clone`, `set_params` of what contains it, and searches over parameters treat it as an estimator.
    """

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        if cls.__init__ is object.__init__:
            return {}
        signature = inspect.signature(cls.__init__)
        return {name: p.default for name, p in signature.parameters.items() if name != "self"}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name.

        deep : also those of parameters that have parameters themselves, as name__their_name
        """
        found: dict[str, Any] = {}
        for name in sorted(self._defaults()):
            value = getattr(self, name)
            if deep and hasattr(value, "get_params") and not isinstance(value, type):
                found |= {f"{name}__{inner}": own for inner, own in value.get_params().items()}
            found[name] = value
        return found

    def set_params(self, **params: Any) -> Self:
        """Set parameters, also name__their_name.

        Raises
        ------
        ValueError
            For a name that is no parameter; nothing is set then.
        """
        names = sorted(self._defaults())
        wrong = sorted({name.partition("__")[0] for name in params} - set(names))
        if wrong:
            raise ValueError(
                f"expected parameters of {type(self).__name__}, {', '.join(names) or 'which has none'}, found "
                f"{', '.join(wrong)}"
            )
        inner: dict[str, dict[str, Any]] = {}
        for name, value in params.items():
            own, nested, rest = name.partition("__")
            if nested:
                inner.setdefault(own, {})[rest] = value
            else:
                setattr(self, own, value)
        for own, values in inner.items():
            getattr(self, own).set_params(**values)
        return self

    def __repr__(self) -> str:
        shown = []
        for name, default in self._defaults().items():
            value = getattr(self, name)
            # Parameters may be arrays or estimators, which `==` does not settle.
            if value is not default and repr(value) != repr(default):
                shown.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def __sklearn_tags__(self) -> Any:
        """Tags for `sklearn.utils.get_tags`."""
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=True),
            input_tags=InputTags(one_d_array=True, two_d_array=False),
        )


class Calibrator(Parameters, ABC):
    """A calibrator of binary scores: `fit(scores, labels)`, `predict(scores)`.

    Subclasses take their parameters in `__init__` as scikit-learn does, and implement `_passes`. They may
    implement `check_parameters`.

    Attributes
    ----------
    calibration_map_ : CalibrationMap
        The fitted map; `predict` is its `predict`.
    n_observations_ : float
        Sum of the weights.
    """

    single_pass: bool = False
    """True if `_passes` asks for exactly one pass: then a score table need not be written."""

    fitted_for_segments: bool = False
    """True if `for_segments` can be asked only after the fit."""

    sampling_rate: float = 1.0
    """The share of negatives that the observations are a sample of, over that of positives: the map is then for all
    rows. See `calibrators.arithmetic.sampling`. No parameter: it belongs to the data."""

    heaviest: float = 1.0
    """The largest weight of an observation, where weights are sampling weights: cross-validation deals so much weight
    as one observation. 1 where weights are counts. No parameter: it belongs to the data, and is known after the first
    pass."""

    fits_all_rows: bool = False
    """True if `_passes` gives the map of all rows already: exactly, since their odds are the others' times the rate."""

    line_: Line | None = None
    """Result instead of `calibration_map_`, if `in_lines` asked for it and the log-odds are a line."""

    has_posterior: bool = False
    """True if `posterior_` gives intervals of the probabilities."""

    posterior_: Pointwise

    calibration_map_: CalibrationMap

    def fit(
        self, scores: npt.ArrayLike, labels: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None
    ) -> Self:
        """Fit to observations in any order.

        Parameters
        ----------
        scores : array-like of numbers, shape (n,), finite, n >= 1
        labels : array-like, shape (n,), bool or numbers in {0, 1}
        sample_weight : array-like, shape (n,), from 1e-100 to 1e100; default 1. A weight of 2 equals a repeated row.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For input or parameters outside these ranges.

        Notes
        -----
        O(n log n) for the sort, then what `fit_points` costs.
        """
        return self.fit_points(collapse(scores, labels, sample_weight))

    def fit_points(self, points: Points) -> Self:
        """Fit to points in memory (checked by the caller: `collapse` makes them)."""
        return self.fit_passes(in_memory(points))

    def fit_passes(self, run: Callable[[Pass], Any]) -> Self:
        """Fit with passes that `run` carries out over the parts of a score table."""
        self.check_parameters()
        self.calibration_map_ = run_passes(self._passes_for_all_rows(), run)
        self.n_observations_ = float(self.calibration_map_.weight.sum())
        return self

    def first_pass(self) -> Pass:
        """The pass that `fit_passes` asks for first: it depends on the parameters alone."""
        self.check_parameters()
        return next(self._passes())

    def predict(self, scores: npt.ArrayLike) -> Array:
        """Calibrated probabilities of scores.

        Parameters
        ----------
        scores : a number, or an array-like of numbers of any shape
            NaN has the probability NaN.

        Returns
        -------
        float64 array, in the shape of `scores`; of a number a float64
            In [0, 1].

        Raises
        ------
        sklearn.exceptions.NotFittedError
        """
        if not hasattr(self, "calibration_map_"):
            from sklearn.exceptions import NotFittedError

            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit first")
        probabilities: Array = self.calibration_map_.predict(scores)
        return probabilities

    def check_parameters(self) -> None:
        """Raise ValueError, naming the parameter, its range and what was given, if one is out of range."""

    def facts(self) -> dict[str, Any]:
        """Facts of the fit for readers of the map, as JSON values; empty for most methods."""
        return {}

    def gathers(self, points: int, parts: int, *, weighted: bool = False) -> float:
        """Upper bound of the bytes that one process holds in a pass: the states of all parts of a score table.

        Parameters
        ----------
        points : int >= 0
            Distinct scores at most.
        parts : int >= 1
            Of the table.
        weighted : bool, default False
            Whether observations may have weights other than 1.

        Returns
        -------
        float >= 0

        Notes
        -----
        Pooled blocks, usually some thousands per part; if labels never fall as scores rise, nothing is pooled.
        """
        return 56.0 * points + _PART_BYTES * parts

    def path_facts(self) -> dict[str, Any]:
        """Course of the fit, as JSON values; unlike `facts` it may depend on how points were divided into parts."""
        return {}

    def for_segments(self) -> Calibrator:
        """The calibrator for segments of the observations that this one is fitted to: itself, as a rule."""
        return self

    @property
    def supports_partial_pooling(self) -> bool:
        """True if segments' maps can be pooled with this one; `block_ranges` are where it is nearly constant."""
        return False

    def block_ranges(self) -> MapBlockRanges:
        """Parent curve of the segments' maps, once it is fitted."""
        raise NotImplementedError

    def in_lines(self, *, falling: bool) -> Calibrator:
        """A calibrator that gives only a line if its map's log-odds are one: see `line_`. Itself, as a rule.

        falling : also where the line falls
        """
        return self

    def _passes_for_all_rows(self) -> Passes:
        fitted = yield from self._passes()
        if self.sampling_rate == 1.0 or self.fits_all_rows:
            return fitted
        from calibrators.arithmetic.sampling import resampling_passes

        return (yield from resampling_passes(fitted, self.sampling_rate))

    @abstractmethod
    def _passes(self) -> Passes:
        """Yield the passes needed, receive their results, return the map."""
