"""DG and DGG as in their paper's comparison: calibration data from repeated splits of the training rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.reproduction.classifiers import Classifier
from benchmarks.reproduction.data import Data, Mask
from benchmarks.reproduction.methods import measures_of
from calibrators.core.arrays import Array
from calibrators.generated.dgg import DGG
from calibrators.isotonic.calibrator import Isotonic
from calibrators.measures.assessment import best_threshold
from pipeline.generate.folds import TRAINED, Folds, RowKeys

KIND = "nb_plain"
"""Kind of the classifier."""
TARGET = 5000
"""Minimum number of generated calibration rows."""
HELD_OUT = 0.1
"""Share of the training rows held out to calibrate IR."""


class _Scheme(NamedTuple):
    model: Classifier
    calibrate: Callable[[Array], Array]
    rows: int


def generated_rows(
    seed: int, train: Data, test: Data, categories: npt.NDArray[np.int64]
) -> Iterator[tuple[str, int, Classifier, dict[str, Any]]]:
    """Yield name, number of calibration rows, classifier and measures of each scheme.

    The threshold of the classification rate is the best one on the calibrated training scores.
    """
    for name, scheme in _schemes(seed, train, categories).items():
        threshold = best_threshold(_predict(scheme, train), train.label).value
        probability = _predict(scheme, test)
        rate = float(np.mean((probability >= threshold) == test.label))
        yield name, scheme.rows, scheme.model, {**measures_of(probability, test.label), "rate": rate}


def _predict(scheme: _Scheme, data: Data) -> Array:
    return scheme.calibrate(scheme.model.scores(data).probability)


def _schemes(seed: int, train: Data, categories: npt.NDArray[np.int64]) -> dict[str, _Scheme]:
    model = Classifier(KIND).fit(train, categories)
    count = round(HELD_OUT * train.label.size)
    order = np.random.default_rng([seed, count]).permutation(train.label.size)
    held_out, others = train.take(order[:count]), train.take(order[count:])
    smaller = Classifier(KIND).fit(others, categories)
    ir = Isotonic(ends=0).fit(smaller.scores(held_out).probability, held_out.label)
    scores, label = generate(seed, train, categories)
    return {
        "raw": _Scheme(model, np.asarray, 0),
        "ir": _Scheme(smaller, ir.predict, count),
        "dg": _Scheme(model, Isotonic(ends=0).fit(scores, label).predict, label.size),
        "dgg_generated": _Scheme(model, DGG(ends=0).fit(scores, label).predict, label.size),
    }


def generate(seed: int, train: Data, categories: npt.NDArray[np.int64]) -> tuple[Array, Mask]:
    """Return scores and labels of rows that the classifier was not trained on, from repeated 70/30 splits."""
    keys = RowKeys(row=np.arange(train.label.size, dtype=np.uint64), label=train.label)
    folds = Folds(train_fraction=0.7, seed=seed)
    scores: list[Array] = []
    labels: list[Mask] = []
    while sum(label.size for label in labels) < TARGET:
        trained = folds.fold(len(labels), keys).parts(keys) == TRAINED
        scored = train.take(~trained)
        scores.append(Classifier(KIND).fit(train.take(trained), categories).scores(scored).probability)
        labels.append(scored.label)
    return np.concatenate(scores), np.concatenate(labels)
