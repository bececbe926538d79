"""Compiled loops over rows of logs, runs and segments: arrays in, arrays out, no checks. Their callers check."""
