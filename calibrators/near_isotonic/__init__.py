"""Near-isotonic regression, and the average over its path (ENIR)."""
