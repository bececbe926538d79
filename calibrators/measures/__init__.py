"""Measures of predictions with their errors, decompositions and comparisons."""
