"""Prediction logs: files, columns, usable rows, and the treatment of the others."""
