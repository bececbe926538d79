"""Copies of a log's files with calibrated probabilities added."""
