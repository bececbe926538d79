"""Points, passes over the parts of a score table, and checks of observations, for calibrators and measures.

This module does not import scikit-learn, because every worker process imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from calibrators.core import keys, sorting
from calibrators.core.arrays import Array, Mask
from calibrators.core.map import CalibrationMap
from calibrators.core.sorting import stable_order

LOWEST_WEIGHT, HIGHEST_WEIGHT = 1e-100, 1e100
"""Range of weights of observations: products of two sums of such weights neither overflow nor underflow."""


class Points(NamedTuple):
    """Distinct scores with weight and positives: observations with ties added up.

    Attributes
    ----------
    score : float64 array, shape (m,), strictly ascending, finite
    weight : float64 array, shape (m,), > 0: the correctly rounded sum of the weights at the score
    positives : float64 array, shape (m,), in [0, weight]: the same for the positive labels
    """

    score: Array
    weight: Array
    positives: Array


_BLOCK = 1 << 15


def blocks_of(points: Points) -> Iterator[Points]:
    """Yield the points in blocks whose temporary arrays stay in the processor's cache.

    Arrays as long as a part would be new memory, whose first use costs more than most sums.
    """
    for start in range(0, points.score.size, _BLOCK):
        yield Points(*(column[start : start + _BLOCK] for column in points))


@dataclass(frozen=True)
class Pass:
    """One sweep over the parts of a score table.

    Parameters
    ----------
    chunk : callable
        Takes the points of a part (never empty) and returns a small state. Picklable and pure.
    combine : callable
        Takes the list of the parts' states, in ascending order of their scores, and returns the result of the pass.
        The result must not depend on the division into parts.
    join : callable, optional
        Takes the states of neighbouring parts, in order, and returns one for all of them, smaller than they are
        together; `combine` gives the same result for it.
    only : frozenset of float, optional
        The first scores of the parts that the pass needs; None for all. An executor may skip the other parts;
        `combine` then gets fewer states.
    """

    chunk: Callable[[Points], Any]
    combine: Callable[[list[Any]], Any]
    only: frozenset[float] | None = None
    join: Callable[[list[Any]], Any] | None = None


def merge_passes(requests: Sequence[Pass]) -> Pass:
    """Merge passes into one that yields the list of their results, in order."""
    needed = [request.only for request in requests if request.only is not None]
    joins = [request.join for request in requests if request.join is not None]
    return Pass(
        chunk=partial(_apply_chunks, [request.chunk for request in requests]),
        combine=partial(_combine_each, [request.combine for request in requests]),
        only=frozenset().union(*needed) if len(needed) == len(requests) else None,
        join=partial(_combine_each, joins) if len(joins) == len(requests) else None,
    )


def _apply_chunks(chunks: list[Callable[[Points], Any]], points: Points) -> list[Any]:
    return [chunk(points) for chunk in chunks]


def _combine_each(combines: list[Callable[[list[Any]], Any]], states: list[list[Any]]) -> list[Any]:
    return [combine([state[i] for state in states]) for i, combine in enumerate(combines)]


def share_sweeps(*generators: Generator[Pass, Any, Any]) -> Generator[Pass, Any, tuple[Any, ...]]:
    """Run several generators of passes with shared sweeps over the parts; return their results in order."""
    results: list[Any] = [None] * len(generators)
    answers: dict[int, Any] = dict.fromkeys(range(len(generators)))
    while True:
        requests = {}
        for i, answer in answers.items():
            try:
                requests[i] = generators[i].send(answer)
            except StopIteration as stop:
                results[i] = stop.value
        if not requests:
            return tuple(results)
        states = yield merge_passes(list(requests.values()))
        answers = dict(zip(requests, states, strict=True))


Passes = Generator[Pass, Any, CalibrationMap]
T = TypeVar("T")


def run_passes(passes: Generator[Pass, Any, T], run: Callable[[Pass], Any]) -> T:
    """Carry out each pass of a generator with `run`; return the generator's result."""
    try:
        request = next(passes)
        while True:
            request = passes.send(run(request))
    except StopIteration as stop:
        result: T = stop.value
        return result


def run_in_memory(passes: Generator[Pass, Any, T], points: Points) -> T:
    """Carry out a generator's passes over points in memory, as one part."""
    return run_passes(passes, in_memory(points))


def in_memory(points: Points) -> Callable[[Pass], Any]:
    """Return a function that carries out a pass over points in memory, as one part."""
    return lambda request: request.combine([request.chunk(points)])


def collapse(
    scores: npt.ArrayLike, labels: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None
) -> Points:
    """Check observations and add up ties.

    Parameters
    ----------
    scores : array-like of numbers, shape (n,), finite, n >= 1
    labels : array-like, shape (n,), bool or numbers in {0, 1}
    sample_weight : array-like, shape (n,), finite, > 0; default 1
        A weight of 2 equals a repeated row.

    Returns
    -------
    Points
        -0.0 counts as 0.0. Independent of the order of the observations: sums of weights are exact before
        they are rounded once. O(n log n) time, O(n) memory.

    Raises
    ------
    ValueError
        If the observations are invalid; the message says what was expected and what was found.
    """
    s = check_scores(scores)
    z = check_labels(labels, s.size)
    if sample_weight is None:
        sums = keys.add_rows(s, z.astype(np.int32), by_code=False)
        return Points(sums.score, sums.weight, sums.positives)
    w = check_weights(sample_weight, s.size)
    order = stable_order(s)
    s, w, z = s[order], w[order], z[order]
    # Correct rounding is monotone, so positives <= weight survives it.
    return Points(*sorting.sum_ties(s, w, np.where(z, w, 0.0)))


def collapse_rows(X: npt.ArrayLike, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None) -> Points:
    """Check observations as scikit-learn's estimators are given them, and add up ties.

    X : scores, as in `collapse`, or of shape (n, 1). y : labels
    sample_weight : as in `collapse`; a row of weight 0 is left out
    """
    scores = check_scores(column_of(X))
    labels = check_labels(y, scores.size)
    if sample_weight is not None:
        weight = np.asarray(sample_weight)
        used = weight != 0 if weight.shape == scores.shape else np.True_
        if not used.any():
            raise ValueError(
                f"sample_weight: expected a weight above zero, found zero for all of {scores.size} rows"
            )
        if not used.all():
            scores, labels, sample_weight = scores[used], labels[used], weight[used]
    return collapse(scores, labels, sample_weight)


def column_of(X: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return an array, without its second dimension if that has one column."""
    values = np.asarray(X)
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def check_number(
    name: str, value: Any, expected: str, low: float, high: float = sys.float_info.max, *, whole: bool = False
) -> None:
    """Raise ValueError unless a parameter is a number from low to high. expected : description for the message."""
    kind = Integral if whole else Real
    if not isinstance(value, kind) or isinstance(value, bool) or not low <= float(value) <= high:
        raise ValueError(f"{name}: expected {expected}, found {value!r}")


def check_choice(name: str, value: Any, *choices: Any) -> None:
    """Raise ValueError unless a parameter is one of the choices."""
    if not any(value is choice or (isinstance(choice, str) and value == choice) for choice in choices):
        *others, last = map(repr, choices)
        raise ValueError(f"{name}: expected {', '.join(others)} or {last}, found {value!r}")


def check_scores(scores: npt.ArrayLike) -> Array:
    """Check scores; return them as a float64 array of shape (n,), n >= 1, finite, without -0.0."""
    s = np.asarray(scores)
    if s.ndim != 1 or s.size == 0:
        raise ValueError(f"scores: expected shape (n,) or (n, 1) with n >= 1, found shape {s.shape}")
    if s.dtype.kind not in "fiub":
        raise ValueError(f"scores: expected numbers, found dtype {s.dtype}")
    s = s.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(s))
    if bad.size:
        raise ValueError(
            f"scores: expected finite numbers, found {bad.size} NaN or infinite, the first at index {bad[0]}"
        )
    s += 0.0
    return s


def check_labels(labels: npt.ArrayLike, n: int) -> Mask:
    """Check labels; return them as a boolean array of shape (n,)."""
    z = np.asarray(labels)
    if z.shape != (n,):
        raise ValueError(f"labels: expected shape ({n},) as the scores have, found {z.shape}")
    if z.dtype.kind == "b":
        return z
    if z.dtype.kind not in "fiu":
        raise ValueError(f"labels: expected bool or numbers in {{0, 1}}, found dtype {z.dtype}")
    ones: Mask = z == 1
    bad = np.flatnonzero(~(ones | (z == 0)))
    if bad.size:
        raise ValueError(
            f"labels: expected 0 or 1, found {bad.size} others, the first {z[bad[0]]} at index {bad[0]}"
        )
    return ones


def check_weights(sample_weight: npt.ArrayLike, n: int) -> Array:
    """Check weights; return them as a float64 array of shape (n,)."""
    w = np.asarray(sample_weight)
    if w.shape != (n,):
        raise ValueError(f"sample_weight: expected shape ({n},) as the scores have, found {w.shape}")
    if w.dtype.kind not in "fiub":
        raise ValueError(f"sample_weight: expected numbers, found dtype {w.dtype}")
    w = w.astype(np.float64)
    bad = np.flatnonzero(~((w >= LOWEST_WEIGHT) & (w <= HIGHEST_WEIGHT)))
    if bad.size:
        raise ValueError(
            f"sample_weight: expected numbers from {LOWEST_WEIGHT:g} to {HIGHEST_WEIGHT:g}, found {bad.size} others, "
            f"the first {w[bad[0]]} at index {bad[0]}"
        )
    return w


class Blocks(NamedTuple):
    """Isotonic blocks; float64 arrays, shape (blocks,), ascending. Sums are double-doubles (high + low)."""

    first: Array
    last: Array
    weight: Array
    weight_low: Array
    positives: Array
    positives_low: Array

    @property
    def level(self) -> Array:
        """Frequency of positives in each block, in [0, 1]."""
        return np.minimum(self.positives / self.weight, 1.0)
