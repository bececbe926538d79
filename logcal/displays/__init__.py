"""Pictures for Python, as scikit-learn's displays are: computed once, drawn on any matplotlib axes.

The reports' figures are drawn by them, too. matplotlib is imported when something is drawn.
"""

from logcal.displays.maps import MapDisplay
from logcal.displays.reliability import HistogramDisplay, ReliabilityDisplay

__all__ = ["HistogramDisplay", "MapDisplay", "ReliabilityDisplay"]
