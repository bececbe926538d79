"""Compiled loops of the near-isotonic path."""
