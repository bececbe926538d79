"""Python interface: published tables, jobs, calibrators and measures.

    >>> import logcal
    >>> table = logcal.load("store", "ads")                      # doctest: +SKIP
    >>> table.predict(0.9)                                       # doctest: +SKIP
    >>> table.predict([0.9, 0.2], segments={"country": "de"})    # doctest: +SKIP

A table needs numpy and pyarrow. Compiled code is imported with the first million scores, calibrators when they are
first used. `run` runs a job, `compare` compares methods on a data frame.
"""

import importlib
from typing import TYPE_CHECKING, Any

from logcal import own_packages
from logcal.version import __version__ as __version__

if TYPE_CHECKING:
    import calibrators.measures.in_memory as measures
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
    from logcal.comparison import MethodComparison, compare
    from logcal.displays import HistogramDisplay, MapDisplay, ReliabilityDisplay
    from logcal.runs import RunOutcome, graph, run
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
    "MethodComparison",
    "NearIsotonic",
    "Platt",
    "Points",
    "ReliabilityDisplay",
    "RunOutcome",
    "Smooth",
    "Table",
    "Threshold",
    "collapse",
    "compare",
    "graph",
    "load",
    "measures",
    "near_isotonic_path",
    "project_isotonic",
    "run",
]


_MODULES = {
    **dict.fromkeys(("Table", "Threshold", "load"), "logcal.table"),
    **dict.fromkeys(("HistogramDisplay", "MapDisplay", "ReliabilityDisplay"), "logcal.displays"),
    **dict.fromkeys(("MethodComparison", "compare"), "logcal.comparison"),
    **dict.fromkeys(("RunOutcome", "graph", "run"), "logcal.runs"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        with own_packages.importing():
            if name == "measures":
                return importlib.import_module("calibrators.measures.in_memory")
            return getattr(importlib.import_module(_MODULES.get(name, "calibrators")), name)
    except ModuleNotFoundError as error:
        from logcal.slim import needed

        raise needed(f"logcal.{name}", error) from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
