"""Calibrators of binary scores: arrays in, a calibration map out. No files, no tables, no cluster."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibrators.arithmetic.calibration_map import CalibrationMap
    from calibrators.arithmetic.passes import Points, collapse
    from calibrators.methods.acp import ACP
    from calibrators.methods.auto import Auto
    from calibrators.methods.base import Calibrator
    from calibrators.methods.bayesian_binning import ABB, SBB
    from calibrators.methods.bbq import BBQ
    from calibrators.methods.beta import Beta
    from calibrators.methods.classifier import CalibratedClassifier
    from calibrators.methods.dgg import DGG, Grouped
    from calibrators.methods.enir import ENIR
    from calibrators.methods.histogram import HistogramBinning
    from calibrators.methods.isotonic import Isotonic
    from calibrators.methods.monotone import project_isotonic
    from calibrators.methods.near_isotonic_regression import NearIsotonic
    from calibrators.methods.platt import Platt
    from calibrators.methods.smooth import Smooth
    from calibrators.methods.solution_path import near_isotonic_path

__all__ = [
    "ABB",
    "ACP",
    "BBQ",
    "DGG",
    "ENIR",
    "SBB",
    "Auto",
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
    "Smooth",
    "collapse",
    "near_isotonic_path",
    "project_isotonic",
]

COMPARED = {
    "auto": "Auto",
    "isotonic": "Isotonic",
    "platt": "Platt",
    "histogram": "HistogramBinning",
    "enir": "ENIR",
    "bbq": "BBQ",
    "abb": "ABB",
}
"""Methods that comparisons compare unless others are named, and their classes."""

_MODULES = {
    "ABB": "calibrators.methods.bayesian_binning",
    "ACP": "calibrators.methods.acp",
    "Auto": "calibrators.methods.auto",
    "BBQ": "calibrators.methods.bbq",
    "Beta": "calibrators.methods.beta",
    "CalibratedClassifier": "calibrators.methods.classifier",
    "CalibrationMap": "calibrators.arithmetic.calibration_map",
    "Calibrator": "calibrators.methods.base",
    "DGG": "calibrators.methods.dgg",
    "ENIR": "calibrators.methods.enir",
    "Grouped": "calibrators.methods.dgg",
    "HistogramBinning": "calibrators.methods.histogram",
    "Isotonic": "calibrators.methods.isotonic",
    "NearIsotonic": "calibrators.methods.near_isotonic_regression",
    "Platt": "calibrators.methods.platt",
    "Points": "calibrators.arithmetic.passes",
    "SBB": "calibrators.methods.bayesian_binning",
    "Smooth": "calibrators.methods.smooth",
    "collapse": "calibrators.arithmetic.passes",
    "near_isotonic_path": "calibrators.methods.solution_path",
    "project_isotonic": "calibrators.methods.monotone",
}


def __getattr__(name: str) -> Any:
    # Calibrators need scikit-learn, which takes a second to import; applying a map to scores does not.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
