"""The gate's check that a table agrees with the rows that it was fitted to: what is wrong, in words."""

from __future__ import annotations

from typing import Any

from pipeline.fit.self_check import FALLBACKS

REMEDY = (
    "Use another calibrator.method: auto and isotonic follow the rows; or accept the difference with "
    "gate.agreement=false"
)


def disagreement(agreement: dict[str, Any] | None) -> str | None:
    """Describe in which ranges of scores a table does not agree with its rows; None if it does, or was not checked.

    agreement : the manifest's facts, see `pipeline.fit.self_check.Checked`
    """
    misfits = agreement["ranges"]["misfits"] if agreement else ()
    if not misfits:
        return None
    more = f", and {len(misfits) - 1} more such ranges" if len(misfits) > 1 else ""
    return f"expected a map that agrees with the rows it was fitted to, found that {_range_text(misfits[0])}{more}"


def fallback_text(agreement: dict[str, Any] | None) -> str | None:
    """Describe what replaced a map of method auto that did not agree with its rows; None if nothing did."""
    if not agreement or agreement["fallback"] is None:
        return None
    misfits = agreement["replaced"]["misfits"]
    return f"auto: {FALLBACKS[agreement['fallback']]}: {_range_text(misfits[0])}"


def _range_text(misfit: dict[str, Any]) -> str:
    low, high = misfit["first_score"], misfit["last_score"]
    where = f"for scores from {low:.4g} to {high:.4g}" if low != high else f"for the score {low:.6g}"
    return (
        f"{where} it expects {misfit['expected']:,.6g} positives, but {misfit['positives']:,.6g} of "
        f"{misfit['weight']:,.10g} rows are positive ({abs(misfit['root']):.1f} standard errors)"
    )
