"""Calibrators of binary scores: arrays in, a calibration map out. No files, no tables, no cluster."""

from calibrators.base import Calibrator, Points, collapse
from calibrators.calibration_map import CalibrationMap
from calibrators.isotonic import Isotonic

__all__ = ["CalibrationMap", "Calibrator", "Isotonic", "Points", "collapse"]
