"""Calibrators of binary scores: arrays in, a calibration map out. No files, no tables, no cluster."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibrators.acp import ACP
    from calibrators.base import Calibrator
    from calibrators.bayesian_binning import ABB, SBB
    from calibrators.bbq import BBQ
    from calibrators.beta import Beta
    from calibrators.calibration_map import CalibrationMap
    from calibrators.classifier import CalibratedClassifier
    from calibrators.dgg import DGG, Grouped
    from calibrators.enir import ENIR
    from calibrators.histogram import HistogramBinning
    from calibrators.isotonic import Isotonic
    from calibrators.monotone import project_isotonic
    from calibrators.near_isotonic import NearIsotonic
    from calibrators.near_isotonic_path import near_isotonic_path
    from calibrators.passes import Points, collapse
    from calibrators.platt import Platt

__all__ = [
    "ABB",
    "ACP",
    "BBQ",
    "DGG",
    "ENIR",
    "SBB",
    "Beta",
    "CalibratedClassifier",
    "CalibrationMap",
    "Calibrator",
    "Grouped",
    "HistogramBinning",
    "Isotonic",
    "NearIsotonic",
    "Platt",
    "Points",
    "collapse",
    "near_isotonic_path",
    "project_isotonic",
]

_MODULES = {
    "ABB": "calibrators.bayesian_binning",
    "ACP": "calibrators.acp",
    "BBQ": "calibrators.bbq",
    "Beta": "calibrators.beta",
    "CalibratedClassifier": "calibrators.classifier",
    "CalibrationMap": "calibrators.calibration_map",
    "Calibrator": "calibrators.base",
    "DGG": "calibrators.dgg",
    "ENIR": "calibrators.enir",
    "Grouped": "calibrators.dgg",
    "HistogramBinning": "calibrators.histogram",
    "Isotonic": "calibrators.isotonic",
    "NearIsotonic": "calibrators.near_isotonic",
    "Platt": "calibrators.platt",
    "Points": "calibrators.passes",
    "SBB": "calibrators.bayesian_binning",
    "collapse": "calibrators.passes",
    "near_isotonic_path": "calibrators.near_isotonic_path",
    "project_isotonic": "calibrators.monotone",
}


def __getattr__(name: str) -> Any:
    # Calibrators need scikit-learn, which takes a second to import; applying a map to scores does not.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
