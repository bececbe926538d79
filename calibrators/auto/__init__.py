"""The automatic choice of a calibration, and the comparison of calibrators by cross-validation."""
