"""Compiled loops that take and return arrays, without checks of their arguments; the callers check."""
