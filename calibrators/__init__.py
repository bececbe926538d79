"""Calibrators of binary scores: arrays in, a calibration map out. No files, no tables, no cluster."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibrators.base import Calibrator, Points, collapse
    from calibrators.calibration_map import CalibrationMap
    from calibrators.isotonic import Isotonic

__all__ = ["CalibrationMap", "Calibrator", "Isotonic", "Points", "collapse"]

_MODULES = {
    "CalibrationMap": "calibrators.calibration_map",
    "Calibrator": "calibrators.base",
    "Isotonic": "calibrators.isotonic",
    "Points": "calibrators.base",
    "collapse": "calibrators.base",
}


def __getattr__(name: str) -> Any:
    # Calibrators need scikit-learn, which takes a second to import; applying a map to scores does not.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
