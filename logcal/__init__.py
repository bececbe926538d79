"""What applications import: `load`, to apply published tables to scores; the calibrators and the measures.

    >>> import logcal
    >>> table = logcal.load("store", "ads")                      # doctest: +SKIP
    >>> table.predict(0.9)                                       # doctest: +SKIP
    >>> table.predict([0.9, 0.2], segments={"country": "de"})    # doctest: +SKIP

A table needs numpy and pyarrow; what is compiled is imported with the first million scores, and the calibrators when
they are first named.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import calibrators.measures.predictions as measures
    from calibrators import (
        ABB,
        ACP,
        BBQ,
        DGG,
        ENIR,
        SBB,
        Auto,
        Beta,
        CalibratedClassifier,
        CalibrationMap,
        Calibrator,
        Grouped,
        HistogramBinning,
        Isotonic,
        NearIsotonic,
        Platt,
        Points,
        Smooth,
        collapse,
        near_isotonic_path,
        project_isotonic,
    )
    from logcal.displays import HistogramDisplay, MapDisplay, ReliabilityDisplay
    from logcal.table import Table, Threshold, load

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
    "HistogramDisplay",
    "Isotonic",
    "MapDisplay",
    "NearIsotonic",
    "Platt",
    "Points",
    "ReliabilityDisplay",
    "Smooth",
    "Table",
    "Threshold",
    "collapse",
    "load",
    "measures",
    "near_isotonic_path",
    "project_isotonic",
]


def __getattr__(name: str) -> Any:
    if name in ("Table", "Threshold", "load"):
        return getattr(importlib.import_module("logcal.table"), name)
    if name.endswith("Display") and name in __all__:
        return getattr(importlib.import_module("logcal.displays"), name)
    if name == "measures":
        return importlib.import_module("calibrators.measures.predictions")
    if name in __all__:
        return getattr(importlib.import_module("calibrators"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
