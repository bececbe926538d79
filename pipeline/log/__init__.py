"""Prediction logs: which files and columns, which rows are usable, and what becomes of the others."""
