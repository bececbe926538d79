"""Kinds of segment values: what a table was fitted to, beside what it is asked for."""

from __future__ import annotations

from collections.abc import Mapping


def segment_problems(fitted: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Say which segment columns have another kind of values than those that a table was fitted to.

    fitted, found : of each column its Arrow type, as text
    """
    problems = []
    for name, type_ in fitted.items():
        kinds = [kind_of(type_), kind_of(found[name])] if name in found else []
        if len(set(kinds)) == 2 and "null" not in kinds:
            problems.append(
                f"column '{name}': expected {kinds[0]} as the table's segments have ({type_}), found {kinds[1]} "
                f"({found[name]}): convert it, or fit to such a log"
            )
    return problems


def kind_of(type_: str) -> str:
    """The kind of values of an Arrow type: all kinds of text, and of whole numbers, are one."""
    if type_.startswith("dictionary<values="):
        type_ = type_.removeprefix("dictionary<values=")
    kinds = {"text": ("string", "large_string"), "whole numbers": ("int", "uint"), "booleans": ("bool",)}
    return next((kind for kind, starts in kinds.items() if type_.startswith(starts)), type_)
