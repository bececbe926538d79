"""Calibrators of binary scores: arrays in, a calibration map out. No files, no tables, no cluster."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibrators.acp import ACP as ACP
    from calibrators.auto.calibrator import Auto as Auto
    from calibrators.base import Calibrator as Calibrator
    from calibrators.bayesian_binning.abb import ABB as ABB
    from calibrators.bayesian_binning.sbb import SBB as SBB
    from calibrators.binning.bbq import BBQ as BBQ
    from calibrators.binning.histogram import HistogramBinning as HistogramBinning
    from calibrators.classifier import CalibratedClassifier as CalibratedClassifier
    from calibrators.core.map import CalibrationMap as CalibrationMap
    from calibrators.core.passes import Points as Points
    from calibrators.core.passes import collapse as collapse
    from calibrators.generated.dgg import DGG as DGG
    from calibrators.generated.dgg import Grouped as Grouped
    from calibrators.isotonic.calibrator import Isotonic as Isotonic
    from calibrators.isotonic.calibrator import project_isotonic as project_isotonic
    from calibrators.near_isotonic.calibrator import NearIsotonic as NearIsotonic
    from calibrators.near_isotonic.enir import ENIR as ENIR
    from calibrators.near_isotonic.path import near_isotonic_path as near_isotonic_path
    from calibrators.sigmoid.beta import Beta as Beta
    from calibrators.sigmoid.platt import Platt as Platt
    from calibrators.smooth.calibrator import Smooth as Smooth

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
    "core.map": ("CalibrationMap",),
    "core.passes": ("Points", "collapse"),
    "acp": ("ACP",),
    "auto.calibrator": ("Auto",),
    "base": ("Calibrator",),
    "bayesian_binning.abb": ("ABB",),
    "bayesian_binning.sbb": ("SBB",),
    "binning.bbq": ("BBQ",),
    "binning.histogram": ("HistogramBinning",),
    "sigmoid.beta": ("Beta",),
    "classifier": ("CalibratedClassifier",),
    "generated.dgg": ("DGG", "Grouped"),
    "near_isotonic.enir": ("ENIR",),
    "isotonic.calibrator": ("Isotonic", "project_isotonic"),
    "near_isotonic.calibrator": ("NearIsotonic",),
    "sigmoid.platt": ("Platt",),
    "smooth.calibrator": ("Smooth",),
    "near_isotonic.path": ("near_isotonic_path",),
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
