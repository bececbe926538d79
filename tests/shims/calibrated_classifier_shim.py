"""A pytest plugin: scikit-learn's own tests of CalibratedClassifierCV see logcal's classifier in its place.

The shim has scikit-learn's parameters and defaults; everything else is `calibrators.CalibratedClassifier`. No line of
scikit-learn's tests is copied: they are run from the package that is installed.
"""

from __future__ import annotations

from functools import partial

import sklearn.calibration
from sklearn.svm import LinearSVC

from calibrators import CalibratedClassifier, Isotonic, Platt

# Without finite ends isotonic regression is scikit-learn's.
_CALIBRATORS = {"sigmoid": Platt, "isotonic": partial(Isotonic, ends=0)}


class CalibratedClassifierCV(CalibratedClassifier):
    """With scikit-learn's signature."""

    def __init__(self, estimator=None, *, method="sigmoid", cv=None, n_jobs=None, ensemble="auto"):
        self.estimator = estimator
        self.method = method
        self.cv = cv
        self.n_jobs = n_jobs
        self.ensemble = ensemble

    @property
    def calibrator(self):
        if self.method not in _CALIBRATORS:
            raise ValueError(f"method: expected one of {sorted(_CALIBRATORS)}, found {self.method!r}")
        return _CALIBRATORS[self.method]()

    @property
    def response(self):
        return "decision_function" if hasattr(self._estimator(), "decision_function") else "predict_proba"

    def _estimator(self):
        return LinearSVC(random_state=0) if self.estimator is None else self.estimator


sklearn.calibration.CalibratedClassifierCV = CalibratedClassifierCV
