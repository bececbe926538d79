"""Monitoring of a published table: evidence of miscalibration by day, and its history over versions."""
