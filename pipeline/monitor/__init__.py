"""Monitoring of a published table's calibration, day by day."""
