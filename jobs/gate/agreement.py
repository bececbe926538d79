"""The gate's check that a table agrees with the rows that it was fitted to: what is wrong, in words."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from jobs.config.jobs import FitConfig
from logcal.errors import counted, range_text
from pipeline.fit.self_check import FALLBACKS

_ACCEPT = "or accept the difference with gate.agreement=false"


def remedy(config: FitConfig) -> str:
    """Say what to do about a table that does not agree with its rows."""
    follows = config.calibrator.method in ("auto", "isotonic") and not config.calibrator.params.get("strict")
    if not follows or not config.log.segment:
        return f"Use another calibrator.method: auto and isotonic follow the rows; {_ACCEPT}"
    if config.segments.shrinkage == "none":
        return f"Use segments.shrinkage=auto, so that each segment adjusts its parent's map; {_ACCEPT}"
    return f"Use other columns in log.segment, or another order of them; {_ACCEPT}"


def disagreement(agreement: dict[str, Any] | None) -> str | None:
    """Describe where a table does not agree with its rows; None if it does, or was not checked.

    agreement : the manifest's facts, see `pipeline.fit.self_check`
    """
    if not agreement:
        return None
    levels = itertools.chain(*map(_level, agreement.get("levels", ())))
    shared = [text for _, text in _shared(agreement.get("shared_maps"))[0][:1]]
    found = [*_ranges(agreement["ranges"]), *shared, *levels]
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
        more = f" (and in {counted(others, 'other segment')})" if others else ""
        texts.append(f"{_segment_text(worst)}{more}")
    return texts + [text for _, text in _together(level)]


def _shared(shared: dict[str, Any] | None) -> tuple[list[tuple[float, str]], int]:
    """Return the excess and the description of the named misfits of maps that segments share, and the number of all."""
    found, count = (shared["misfits"], shared["segments_with_misfits"]) if shared else ([], 0)
    if not found and shared and (misfit := shared["all_by_score"]) and _excess(misfit) > 1:
        found, count = [{"segment": None, **misfit}], 1
    return [(_excess(misfit), _users_text(misfit)) for misfit in found], count


def _users_text(misfit: dict[str, Any]) -> str:
    whose = "a parent"
    if misfit["segment"] is not None:
        whose = f"segment {_name(misfit)}" if misfit["segment"] else "all rows"
    return f"in the segments without a map of their own, which use the map of {whose}, {_range_text(misfit)}"


def _together(level: dict[str, Any]) -> list[tuple[float, str]]:
    """Return the excess and the description of the misfits of all segments together."""
    texts = {"all_by_score": _range_text, "all_by_size": _size_text}
    return [
        (_excess(misfit), f"in all segments together {text(misfit)}")
        for key, text in texts.items()
        if (misfit := level[key]) and _excess(misfit) > 1
    ]


def _segment_text(misfit: dict[str, Any]) -> str:
    return f"in segment {_name(misfit)} {_range_text(misfit)}"


def _name(misfit: dict[str, Any]) -> str:
    return ", ".join("null" if value is None else value for value in misfit["segment"])


def _excess(misfit: dict[str, Any]) -> float:
    return float(abs(misfit["deviance_residual"]) / misfit["limit"])


def fallback_text(agreement: dict[str, Any] | None) -> str | None:
    """Describe what replaced a map of method auto that did not agree with its rows; None if nothing did."""
    if not agreement or agreement["fallback"] is None:
        return None
    misfits = agreement["before_fallback"]["misfits"]
    return f"auto: {FALLBACKS[agreement['fallback']]}: {_range_text(misfits[0])}"


def fall_lines(manifest: dict[str, Any]) -> list[str]:
    """Describe in lines where the share of positives falls as the score rises, which no rising map can follow."""
    lines, fall = [], manifest.get("proven_fall")
    if fall:
        low, high = (
            f"{100 * fall[f'{side}_share']:.3g} % of the rows are positive for scores "
            + range_text(fall[f"{side}_first_score"], fall[f"{side}_last_score"])
            for side in ("lower", "upper")
        )
        lines.append(
            f"scores are not monotone: {low}, {high} ({fall['deviance_residual']:.1f} standard errors)"
        )
    levels = (manifest.get("agreement") or {}).get("levels", ())
    return lines + [
        f"scores are not monotone in segments of level {level['level']}: {_range_text(level['fall'])}"
        for level in levels
        if level.get("fall")
    ]


_MOST_LINES = 3


def agreement_lines(agreement: dict[str, Any] | None) -> list[str]:
    """Describe the check in lines: that a table agrees with its rows, or its three largest misfits; and the fallback.

    agreement : the manifest's facts; None or empty: there are none
    """
    if not agreement:
        return []
    ranges, levels = agreement["ranges"], agreement.get("levels", [])
    if ranges is None and not levels:
        return ["not checked against its rows: they are too few for a map"]
    found, count = _misfits(ranges, agreement.get("shared_maps"), levels)
    lines = [f"does not agree with its rows: {text}" for _, text in found[:_MOST_LINES]]
    if count > _MOST_LINES:
        lines.append(f"does not agree with its rows: and in {count - _MOST_LINES:,} more ranges or segments")
    fallback = fallback_text(agreement)
    return (lines or [_largest_text(ranges, levels)]) + ([] if fallback is None else [fallback])


def _misfits(
    ranges: dict[str, Any] | None, shared: dict[str, Any] | None, levels: Sequence[dict[str, Any]]
) -> tuple[list[tuple[float, str]], int]:
    """Return the excess and the description of the named misfits, largest first, and the number of all."""
    of_ranges = ranges["misfits"] if ranges else []
    found = [(_excess(misfit), _range_text(misfit)) for misfit in of_ranges]
    of_shared, count = _shared(shared)
    found, count = found + of_shared, count + len(of_ranges)
    for level in levels:
        together = _together(level)
        found += [(_excess(misfit), _segment_text(misfit)) for misfit in level["misfits"]] + together
        count += level["segments_with_misfits"] + len(together)
    return sorted(found, key=lambda entry: -entry[0]), count


def _largest_text(ranges: dict[str, Any] | None, levels: Sequence[dict[str, Any]]) -> str:
    """Describe the largest difference of a table that agrees with its rows."""
    found = [(ranges["largest"], _range_text)] if ranges else []
    found += [(level["largest"], _segment_text) for level in levels]
    present = [(_excess(misfit), text(misfit)) for misfit, text in found if misfit is not None]
    if not present:
        return "agrees with its rows: no difference is large enough to count"
    excess, text = max(present, key=lambda entry: entry[0])
    return f"agrees with its rows: largest difference {excess:.2f} of its limit, {text}"


def _range_text(misfit: dict[str, Any]) -> str:
    low, high = misfit["first_score"], misfit["last_score"]
    if low is None and high is None:
        where = "for all scores"
    elif low is None or high is None:
        where = f"for scores up to {high:.4g}" if low is None else f"for scores from {low:.4g} on"
    else:
        where = f"for scores {range_text(low, high)}" if low != high else f"for the score {low:.6g}"
    return f"{where} {_difference(misfit)}"


def _size_text(misfit: dict[str, Any]) -> str:
    first, last = misfit["first_score"], misfit["last_score"]
    return f"for segments of {first:,.6g} to {last:,.6g} rows {_difference(misfit)}"


def _difference(misfit: dict[str, Any]) -> str:
    return (
        f"it expects {misfit['expected']:,.6g} positives, but {misfit['positives']:,.6g} of "
        f"{misfit['weight']:,.10g} rows are positive ({abs(misfit['deviance_residual']):.1f} standard errors)"
    )
