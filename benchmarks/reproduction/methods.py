"""The calibration methods of the experiments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

from benchmarks.reproduction.classifiers import Scores
from benchmarks.reproduction.data import Mask
from calibrators.acp import ACP
from calibrators.auto.calibrator import CANDIDATES, Auto
from calibrators.bayesian_binning.abb import ABB
from calibrators.bayesian_binning.sbb import SBB
from calibrators.binning.bbq import BBQ
from calibrators.binning.histogram import HistogramBinning
from calibrators.core.arrays import Array
from calibrators.generated.dgg import DGG
from calibrators.isotonic.calibrator import Isotonic
from calibrators.measures.in_memory import Measures, measure
from calibrators.near_isotonic.calibrator import NearIsotonic
from calibrators.near_isotonic.enir import ENIR
from calibrators.sigmoid.platt import Platt

CLIP = 1e-15
"""Clipping distance of probabilities from 0 and 1 before the log loss, so that its means are finite; rows whose label
has probability 0 are counted."""

CALIBRATORS: dict[str, Callable[[], Any]] = {
    "isotonic": lambda: Isotonic(ends=0),
    "centred": lambda: Isotonic(strict=True, ends=0),
    "near_isotonic": lambda: NearIsotonic(shrink=0),
    "histogram": HistogramBinning,
    "platt": Platt,
    "bbq": lambda: BBQ(cuts="frequency"),
    "bbq_authors": lambda: BBQ(reference="authors"),
    "enir": lambda: ENIR(shrink=0),
    "enir_authors": lambda: ENIR(reference="authors"),
    "sbb": lambda: SBB(cuts="frequency"),
    "abb": lambda: ABB(cuts="frequency"),
    "dgg": lambda: DGG(ends=0),
    "auto": lambda: Auto(tuple(CANDIDATES), ends=0),
}
"""Methods of this project that use only the score; isotonic methods without corrected ends, as in the papers."""

NAMES = {
    "base": "base",
    "isotonic": "IsoReg",
    "centred": "centred isotonic",
    "near_isotonic": "near-isotonic, lambda 1",
    "histogram": "Hist",
    "platt": "Platt",
    "bbq": "BBQ",
    "bbq_authors": "BBQ (authors)",
    "enir": "ENIR",
    "enir_authors": "ENIR (authors)",
    "sbb": "SBB",
    "abb": "ABB",
    "acp": "ACP",
    "dgg": "grouped isotonic",
    "auto": "auto",
    "sklearn_isotonic": "scikit-learn isotonic",
    "sklearn_sigmoid": "scikit-learn sigmoid",
    "raw": "Raw",
    "ir": "IR",
    "dg": "DG",
    "dgg_generated": "DGG",
}
"""Names in the tables."""


class Calibration(NamedTuple):
    """Scores with labels to calibrate with, and scores to calibrate."""

    scores: Scores
    label: Mask
    test: Scores


def calibrate(method: str, job: Calibration) -> tuple[Array, str]:
    """Return the calibrated probabilities of the test scores, and the choice of `auto` ('' for other methods)."""
    if method == "base":
        return job.test.probability, ""
    if method == "acp":
        assert job.test.lower is not None
        assert job.test.upper is not None
        fitted = ACP().fit(job.scores.probability, job.label)
        return fitted.predict(job.test.probability, job.test.lower, job.test.upper), ""
    if method.startswith("sklearn_"):
        return _scikit_learn(method.removeprefix("sklearn_"), job), ""
    calibrator = CALIBRATORS[method]().fit(job.scores.probability, job.label)
    return calibrator.predict(job.test.probability), getattr(calibrator, "chosen_", "")


class _Identity(ClassifierMixin, BaseEstimator):
    """Classifier whose only feature is its score: scikit-learn calibrates classifiers, not scores."""

    def fit(self, X: Array, y: Mask) -> _Identity:
        self.classes_ = np.array([False, True])
        return self

    def decision_function(self, X: Array) -> Array:
        return X[:, 0]

    def predict(self, X: Array) -> Mask:
        return X[:, 0] > 0


def _scikit_learn(method: str, job: Calibration) -> Array:
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    column, test = job.scores.margin[:, None], job.test.margin[:, None]
    frozen = FrozenEstimator(_Identity().fit(column, job.label))
    rows = np.arange(job.label.size)
    # The classifier is not trained, so one fold has all rows.
    fitted = CalibratedClassifierCV(frozen, method=method, ensemble=False, cv=[(rows, rows)])
    fitted.fit(column, job.label)
    return np.asarray(fitted.predict_proba(test)[:, 1])


def measures_of(probability: Array, label: Mask) -> dict[str, Any]:
    """Return the measures of probabilities, by column of the results."""
    measures: Measures = measure(label.astype(np.float64), probability)
    ece_label, mce_label = label_order_errors(probability, label)
    of_label = np.where(label, probability, 1 - probability)
    clipped = np.clip(of_label, CLIP, 1 - CLIP)
    return {
        "auc": measures.auc if measures.auc is not None else np.nan,
        "accuracy": measures.accuracy,
        "rmse": measures.rmse,
        "ece": measures.ece_frequency,
        "mce": measures.mce_frequency,
        "ece_width": measures.ece_width,
        "mce_width": measures.mce_width,
        "ece_label": ece_label,
        "mce_label": mce_label,
        "log_loss": float(-np.mean(np.log(clipped))),
        "infinite": int(np.sum(of_label <= 0)),
    }


def label_order_errors(probability: Array, label: Mask, groups: int = 10) -> tuple[float, float]:
    """Compute ECE and MCE as in the papers' code: equal-frequency groups of rows sorted by score, then label.

    The groups cut ties, with negatives before positives, so methods with few levels seem badly calibrated. Only for
    comparison with the papers.
    """
    order = np.lexsort((label, probability))
    gaps, weights = [], []
    for rows in np.array_split(order, groups):
        if rows.size:
            gaps.append(abs(float(np.mean(label[rows])) - float(np.mean(probability[rows]))))
            weights.append(rows.size)
    return float(np.average(gaps, weights=weights)), max(gaps)
