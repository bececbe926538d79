"""Measuring a table on a log, and the report of it."""
