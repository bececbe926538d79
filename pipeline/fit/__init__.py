"""Fitting calibrators to logs and to their segments."""
