"""Compiled loops over segments' rows."""
