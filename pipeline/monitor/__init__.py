"""Watching whether a published table's probabilities still come true, day by day."""
