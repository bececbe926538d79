"""Calibration on data generated from the labels: groups (DGG)."""
