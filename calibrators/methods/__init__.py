"""Calibrators: one file per family of methods, one contract (`base`)."""
