"""Installations without logcal's dependencies: numpy and pyarrow are enough to apply tables."""

from __future__ import annotations


def needed(what: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return the error for a feature whose package is not installed. what : the feature, such as 'logcal.Platt'."""
    package = (error.name or "a package").partition(".")[0]
    return ModuleNotFoundError(
        f"{what} needs {package}, which is not installed: `pip install logcal` without --no-deps has all that it needs",
        name=error.name,
    )
