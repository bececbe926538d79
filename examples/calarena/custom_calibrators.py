"""logcal's calibrators in CalArena (Berta, Holzmüller, Bach & Jordan 2026, https://github.com/probkit/CalArena).

Put this file in the place of CalArena's own `custom_calibrators.py`, download its benchmarks as its README says,
install logcal in its environment, and run

    python run_benchmark.py --benchmark tabrepo-binary --calibrator logcal-auto
    python run_benchmark.py --benchmark tabarena-binary --calibrator logcal-auto

It follows the interface that CalArena's README describes (`fit` and `predict_proba`, of probabilities of the positive
class or of both). It has not been run there: its benchmarks are 1.7 GB of downloads.
"""

import numpy as np

from calibrators.methods.auto import Auto
from calibrators.methods.smooth import Smooth


class OfTheScore:
    """A calibrator of the positive class's probability, with both classes' probabilities as its answer."""

    def __init__(self, calibrator):
        self.calibrator = calibrator

    def fit(self, p_cal, y_cal):
        """Fit to calibration data."""
        self.calibrator.fit(_positive(p_cal), np.asarray(y_cal).astype(bool).ravel())
        return self

    def predict_proba(self, p_test):
        """Probabilities, shape (n, 2)."""
        p = self.calibrator.predict(_positive(p_test))
        return np.stack([1 - p, p], axis=1)


def _positive(p):
    p = np.asarray(p, dtype=np.float64)
    return np.clip(p[:, 1] if p.ndim == 2 else p, 0.0, 1.0)


CUSTOM_CALIBRATORS = {
    "logcal-auto": lambda: OfTheScore(Auto()),
    "logcal-smooth": lambda: OfTheScore(Smooth()),
}
