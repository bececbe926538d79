"""Histogram binning, and averages of such binnings (BBQ)."""
