"""Comparison of calibration methods by cross-validation in memory, and its description in text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import calibrators
from calibrators.auto.cross_validation import RAW, CrossValidation, MethodResult, cross_validate
from calibrators.base import Calibrator
from calibrators.core.passes import collapse
from logcal.displays.view import drop_unlabelled
from logcal.errors import ConfigError, InputRejectedError

_FOLDS = 5
NEEDS_PROBABILITIES = ("bbq", "beta")
"""Methods that need scores in [0, 1]."""

SHOWN = {
    "log_loss": "Log loss",
    "brier": "Brier score",
    "ece_frequency": "ECE",
    "auc": "AUC",
}
"""Measures in the printed table, with their headings."""


@dataclass(frozen=True)
class MethodComparison:
    """Comparison of calibration methods; printed, it is a table with standard errors.

    Parameters
    ----------
    all_rows : CrossValidation
        Comparison on all rows.
    segments : dict of CrossValidation
        Comparison within each segment that has enough rows of either label; keys are tuples of segment values.
    too_few : tuple
        The other segments.
    notes : tuple of str
        Methods and rows that were left out, and why.
    """

    all_rows: CrossValidation
    segments: dict[tuple[Any, ...], CrossValidation]
    too_few: tuple[tuple[Any, ...], ...]
    notes: tuple[str, ...]

    @property
    def best(self) -> str | None:
        """The method with the lowest held-out log loss on all rows; None if all are infinite."""
        return self.all_rows.best("log_loss")

    def table(self) -> pa.Table:
        """Arrow table of the estimates.

        Returns
        -------
        pyarrow.Table
            One row per method and segment: segment (null for all rows), method, rows, and each measure with its
            standard error.
        """
        rows = []
        for key, result in [((), self.all_rows), *self.segments.items()]:
            for method in result.methods:
                row = {
                    "segment": ", ".join(map(str, key)) or None,
                    "method": method.name,
                    "rows": result.weight,
                }
                for name, estimate in method.estimates.items():
                    row |= {name: estimate.mean, f"{name}_error": estimate.error}
                loss = method.estimates["log_loss"]
                rows.append(row | {"excess": loss.excess, "excess_error": loss.excess_error})
        return pa.Table.from_pylist(rows)

    def __repr__(self) -> str:
        lines = [comparison_headline(self.all_rows), "", *comparison_lines(self.all_rows)]
        for key, result in self.segments.items():
            lines.append(f"{', '.join(map(str, key))}: {comparison_headline(result)}")
        if self.too_few:
            lines.append(f"segments with too few rows of a label: {len(self.too_few):,}")
        return "\n".join([*lines, *self.notes])


def compare(
    frame: Any,
    *,
    score: str = "score",
    label: str = "label",
    weight: str | None = None,
    segments: str | Sequence[str] = (),
    methods: Mapping[str, Calibrator] | Sequence[str] | None = None,
) -> MethodComparison:
    """Compare calibration methods by cross-validation, as the command `logcal compare` does for a log.

    Parameters
    ----------
    frame : data frame of pandas or Polars, Arrow table, or mapping from names to array-likes, of n rows
    score : name of the column of scores: numbers, finite
    label : name of the column of labels: booleans, or numbers in {0, 1}; rows whose label is null are left out
    weight : name of the column of weights: numbers > 0 that count rows; None: every row counts once
    segments : names of segment columns: methods are also compared within each segment
    methods : calibrators by name, or names of methods with their defaults; None: auto, isotonic, platt, histogram,
        enir, bbq and abb

    Returns
    -------
    MethodComparison
        With five folds. If scores are probabilities, the first method is "before": the scores without calibration.
        O(n log n) time, O(n) memory.

    Raises
    ------
    ConfigError
        The frame has no such column, or a method is unknown.
    InputRejectedError
        A column has other values, or there are fewer than ten rows of a label.

    Examples
    --------
    >>> import logcal
    >>> frame = {"score": [0.1, 0.2, 0.8, 0.9] * 50, "label": [0, 0, 1, 1] * 49 + [1, 1, 0, 0]}
    >>> logcal.compare(frame, methods={"platt": logcal.Platt()}).best
    'platt'
    """
    names = (segments,) if isinstance(segments, str) else tuple(segments)
    columns = {name: _column(frame, name) for name in (score, label, weight, *names) if name is not None}
    chosen = methods if isinstance(methods, Mapping) else _calibrators(methods or calibrators.COMPARED)
    values = [None if weight is None else columns[weight], *(columns[name] for name in names)]
    try:
        labels, scores, weights, *keys = drop_unlabelled(columns[label], columns[score], *values)
        suited, notes = suitable(chosen, float(np.min(scores)), float(np.max(scores)))
        if not suited:
            raise ConfigError(f"methods: no method is left; {notes[-1]}")
        all_rows = cross_validate(collapse(scores, labels, weights), suited, folds=_FOLDS)
    except (TypeError, ValueError) as error:
        raise InputRejectedError(f"the rows do not suit the comparison: {error}") from None
    results: dict[tuple[Any, ...], CrossValidation] = {}
    too_few = []
    for key, rows in _groups(keys):
        row_weights = None if weights is None else np.asarray(weights)[rows]
        points = collapse(np.asarray(scores)[rows], np.asarray(labels)[rows], row_weights)
        positives, total = points.positives.sum(), points.weight.sum()
        if min(positives, total - positives) < 2 * _FOLDS:
            too_few.append(key)
        else:
            results[key] = cross_validate(points, suited, folds=_FOLDS)
    return MethodComparison(all_rows, results, tuple(too_few), tuple(notes))


def _calibrators(names: Sequence[str]) -> dict[str, Calibrator]:
    if unknown := [name for name in names if name not in calibrators.METHODS]:
        methods = ", ".join(calibrators.METHODS)
        raise ConfigError(
            f"methods: expected calibrators by name, or names among {methods}, found {unknown[0]!r}"
        )
    return {name: getattr(calibrators, calibrators.METHODS[name])() for name in names}


def _column(frame: Any, name: str) -> Any:
    try:
        return np.asarray(frame[name])
    except (KeyError, pa.ArrowInvalid):
        raise ConfigError(f"expected a frame with the column '{name}', found none: name another") from None


def _groups(columns: Sequence[Any]) -> list[tuple[tuple[Any, ...], Any]]:
    """Return the keys of segments with the indices of their rows, in order of the keys."""
    if not columns:
        return []
    encoded = [pa.array(column, from_pandas=True).dictionary_encode("encode") for column in columns]
    codes = np.stack([column.indices.to_numpy(zero_copy_only=False) for column in encoded])
    kinds, owner = np.unique(codes, axis=1, return_inverse=True)
    order = np.argsort(owner, kind="stable")
    bounds = np.searchsorted(owner[order], np.arange(kinds.shape[1] + 1))
    values = [column.dictionary.to_pylist() for column in encoded]
    keys = [tuple(value[code] for value, code in zip(values, kind, strict=True)) for kind in kinds.T]
    groups = [(key, order[bounds[i] : bounds[i + 1]]) for i, key in enumerate(keys)]
    return sorted(groups, key=lambda pair: [(value is None, str(value)) for value in pair[0]])


def suitable(
    chosen: Mapping[str, Calibrator], lowest: float, highest: float
) -> tuple[dict[str, Calibrator], list[str]]:
    """Select the methods that can use scores of this range; return a note for each that cannot."""
    if 0 <= lowest <= highest <= 1:
        return dict(chosen), []
    notes = [
        f"{name} was left out: it needs scores in [0, 1], found {lowest:g} to {highest:g}"
        for name in NEEDS_PROBABILITIES
        if name in chosen
    ]
    return {name: chosen[name] for name in chosen if name not in NEEDS_PROBABILITIES}, notes


def label_of(name: str) -> str:
    """Return a method's name for reports."""
    return "no calibration" if name == RAW else name


def comparison_headline(result: CrossValidation) -> str:
    """Name the method with the lowest log loss and those that are not measurably different, in one sentence."""
    best = result.best("log_loss")
    if best is None:
        return "No method has a finite log loss: each gave probability 0 to a label that occurred."
    near = [method.name for method in result.methods if method.name != best and _is_near(method)]
    loss = next(m for m in result.methods if m.name == best).estimates["log_loss"].mean
    subject = "Uncalibrated scores have" if best == RAW else f"{best} has"
    text = f"{subject} the lowest held-out log loss ({loss:.4f})"
    if not near:
        return f"{text}; every other one is above it by more than two standard errors of the difference."
    names = f"{', '.join(near[:-1])} and {near[-1]} are" if len(near) > 1 else f"{near[0]} is"
    return f"{text}; {names} within two standard errors of it."


def _is_near(method: MethodResult) -> bool:
    """Tell whether a method's log loss exceeds the lowest one by at most two standard errors of the difference."""
    estimate = method.estimates["log_loss"]
    if estimate.excess is None or estimate.excess_error is None or method.name == RAW:
        return False
    return estimate.excess <= 2 * estimate.excess_error


def comparison_lines(result: CrossValidation) -> list[str]:
    """Format a table with a row per method, with standard errors; a star marks the best values of each measure."""
    width = max(len(label_of(method.name)) for method in result.methods)
    best = {measure: result.all_best(measure) for measure in SHOWN}
    heads = [*SHOWN.values(), "Log loss above best"]
    lines = [f"{'':{width}}" + "".join(f"{label:>20}" for label in heads)]
    for method in result.methods:
        cells = []
        for measure in SHOWN:
            estimate = method.estimates[measure]
            star = "*" if method.name in best[measure] else ""
            if estimate.mean is None:
                cells.append("–")
            elif math.isinf(estimate.mean):
                cells.append("infinite")
            else:
                error = "" if estimate.error is None else f" ±{estimate.error:.4f}"
                cells.append(f"{star}{estimate.mean:.4f}{error}")
        loss = method.estimates["log_loss"]
        lead = (
            "–"
            if loss.excess_error is None or not loss.excess
            else f"{loss.excess:.5f} ±{loss.excess_error:.5f}"
        )
        lines.append(f"{label_of(method.name):{width}}" + "".join(f"{cell:>20}" for cell in [*cells, lead]))
    return [*lines, "*: the best; ±: one standard error"]
