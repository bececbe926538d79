"""Displays like scikit-learn's: computed once, drawn on any matplotlib axes.

Reports use them for their figures, too. matplotlib is imported when something is drawn.
"""

from logcal.displays.maps import MapDisplay
from logcal.displays.reliability import HistogramDisplay, ReliabilityDisplay

__all__ = ["HistogramDisplay", "MapDisplay", "ReliabilityDisplay"]
