"""The gate's check that a table agrees with the rows that it was fitted to: what is wrong, in words."""

from __future__ import annotations

import itertools
from typing import Any

from logcal.errors import counted
from pipeline.fit.self_check import FALLBACKS

REMEDY = (
    "Use another calibrator.method: auto and isotonic follow the rows; or accept the difference with "
    "gate.agreement=false"
)


def disagreement(agreement: dict[str, Any] | None) -> str | None:
    """Describe where a table does not agree with its rows; None if it does, or was not checked.

    agreement : the manifest's facts, see `pipeline.fit.self_check`
    """
    if not agreement:
        return None
    found = [*_ranges(agreement["ranges"]), *itertools.chain(*map(_level, agreement.get("levels", ())))]
    if not found:
        return None
    return f"expected a map that agrees with the rows it was fitted to, found that {'; '.join(found)}"


def _ranges(ranges: dict[str, Any] | None) -> list[str]:
    misfits = ranges["misfits"] if ranges else ()
    more = f" (and in {counted(len(misfits) - 1, 'other range')})" if len(misfits) > 1 else ""
    return [f"{_range_text(misfits[0])}{more}"] if misfits else []


def _level(level: dict[str, Any]) -> list[str]:
    """Describe the misfits of a level's segments."""
    texts = []
    if level["misfits"]:
        worst, others = level["misfits"][0], level["segments_with_misfits"] - 1
        name = ", ".join("null" if value is None else value for value in worst["segment"])
        more = f" (and in {counted(others, 'other segment')})" if others else ""
        texts.append(f"in segment {name} {_range_text(worst)}{more}")
    together = {"all_by_score": _range_text, "all_by_size": _size_text}
    for key, text in together.items():
        if (misfit := level[key]) and abs(misfit["root"]) > misfit["limit"]:
            texts.append(f"in all segments together {text(misfit)}")
    return texts


def fallback_text(agreement: dict[str, Any] | None) -> str | None:
    """Describe what replaced a map of method auto that did not agree with its rows; None if nothing did."""
    if not agreement or agreement["fallback"] is None:
        return None
    misfits = agreement["replaced"]["misfits"]
    return f"auto: {FALLBACKS[agreement['fallback']]}: {_range_text(misfits[0])}"


def _range_text(misfit: dict[str, Any]) -> str:
    low, high = misfit["first_score"], misfit["last_score"]
    if low is None and high is None:
        where = "for all scores"
    elif low is None or high is None:
        where = f"for scores up to {high:.4g}" if low is None else f"for scores from {low:.4g} on"
    else:
        where = f"for scores from {low:.4g} to {high:.4g}" if low != high else f"for the score {low:.6g}"
    return f"{where} {_difference(misfit)}"


def _size_text(misfit: dict[str, Any]) -> str:
    first, last = misfit["first_score"], misfit["last_score"]
    return f"for segments of {first:,.6g} to {last:,.6g} rows {_difference(misfit)}"


def _difference(misfit: dict[str, Any]) -> str:
    return (
        f"it expects {misfit['expected']:,.6g} positives, but {misfit['positives']:,.6g} of "
        f"{misfit['weight']:,.10g} rows are positive ({abs(misfit['root']):.1f} standard errors)"
    )
