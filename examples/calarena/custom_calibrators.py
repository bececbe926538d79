"""logcal's calibrators in CalArena (Berta, Holzmüller, Bach & Jordan 2026, https://github.com/probkit/CalArena).

Replace CalArena's `custom_calibrators.py` by this file, download its benchmarks as its README says, install logcal in
its environment, and run

    python run_benchmark.py --benchmark tabrepo-binary --calibrator logcal-auto
    python run_benchmark.py --benchmark tabarena-binary --calibrator logcal-auto

It follows the interface in CalArena's README: `fit` and `predict_proba`, with probabilities of the positive class or of
both classes. It was not run with CalArena, whose benchmarks are a download of 1.7 GB.
"""

import numpy as np

from calibrators.auto.calibrator import Auto
from calibrators.smooth.calibrator import Smooth


class BinaryCalibrator:
    """Calibrator of the positive class's probability that predicts the probabilities of both classes."""

    def __init__(self, calibrator):
        self.calibrator = calibrator

    def fit(self, p_cal, y_cal):
        """Fit to calibration data."""
        self.calibrator.fit(_positive(p_cal), np.asarray(y_cal).astype(bool).ravel())
        return self

    def predict_proba(self, p_test):
        """Return probabilities, shape (n, 2)."""
        p = self.calibrator.predict(_positive(p_test))
        return np.stack([1 - p, p], axis=1)


def _positive(p):
    p = np.asarray(p, dtype=np.float64)
    return np.clip(p[:, 1] if p.ndim == 2 else p, 0.0, 1.0)


CUSTOM_CALIBRATORS = {
    "logcal-auto": lambda: BinaryCalibrator(Auto()),
    "logcal-smooth": lambda: BinaryCalibrator(Smooth()),
}
