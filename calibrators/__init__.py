"""Calibrators of binary scores: arrays in, a calibration map out. No files, no tables, no cluster."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibrators.arithmetic.calibration_map import CalibrationMap as CalibrationMap
    from calibrators.arithmetic.passes import Points as Points
    from calibrators.arithmetic.passes import collapse as collapse
    from calibrators.methods.acp import ACP as ACP
    from calibrators.methods.auto import Auto as Auto
    from calibrators.methods.base import Calibrator as Calibrator
    from calibrators.methods.bayesian_binning import ABB as ABB
    from calibrators.methods.bayesian_binning import SBB as SBB
    from calibrators.methods.bbq import BBQ as BBQ
    from calibrators.methods.bbq import HistogramBinning as HistogramBinning
    from calibrators.methods.beta import Beta as Beta
    from calibrators.methods.classifier import CalibratedClassifier as CalibratedClassifier
    from calibrators.methods.dgg import DGG as DGG
    from calibrators.methods.dgg import Grouped as Grouped
    from calibrators.methods.enir import ENIR as ENIR
    from calibrators.methods.isotonic import Isotonic as Isotonic
    from calibrators.methods.isotonic import project_isotonic as project_isotonic
    from calibrators.methods.near_isotonic_regression import NearIsotonic as NearIsotonic
    from calibrators.methods.platt import Platt as Platt
    from calibrators.methods.smooth import Smooth as Smooth
    from calibrators.methods.solution_path import near_isotonic_path as near_isotonic_path

METHODS = {
    "isotonic": "Isotonic",
    "histogram": "HistogramBinning",
    "platt": "Platt",
    "near_isotonic": "NearIsotonic",
    "enir": "ENIR",
    "bbq": "BBQ",
    "sbb": "SBB",
    "abb": "ABB",
    "dg": "Isotonic",
    "dgg": "DGG",
    "beta": "Beta",
    "smooth": "Smooth",
    "auto": "Auto",
}
"""Names of methods in configurations, and their classes."""
COMPARED = ("auto", "isotonic", "platt", "histogram", "enir", "bbq", "abb")
"""Methods of a comparison by default."""

_CLASSES = {
    "arithmetic.calibration_map": ("CalibrationMap",),
    "arithmetic.passes": ("Points", "collapse"),
    "methods.acp": ("ACP",),
    "methods.auto": ("Auto",),
    "methods.base": ("Calibrator",),
    "methods.bayesian_binning": ("ABB", "SBB"),
    "methods.bbq": ("BBQ", "HistogramBinning"),
    "methods.beta": ("Beta",),
    "methods.classifier": ("CalibratedClassifier",),
    "methods.dgg": ("DGG", "Grouped"),
    "methods.enir": ("ENIR",),
    "methods.isotonic": ("Isotonic", "project_isotonic"),
    "methods.near_isotonic_regression": ("NearIsotonic",),
    "methods.platt": ("Platt",),
    "methods.smooth": ("Smooth",),
    "methods.solution_path": ("near_isotonic_path",),
}
_MODULES = {name: f"calibrators.{module}" for module, names in _CLASSES.items() for name in names}

__all__ = sorted(_MODULES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    # Calibrators need scikit-learn, which takes a second to import; applying a map to scores does not.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
