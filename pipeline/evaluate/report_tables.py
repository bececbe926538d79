"""Words and tables of the report: the tiles, the measures, methods, segments, groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from calibrators.measures.assessment import Assessment, Measures, ReliabilityBin
from calibrators.measures.decomposition import chance_error
from calibrators.measures.error_bars import ErrorBars
from logcal.arrow_columns import column_of
from pipeline import schema
from pipeline.evaluate.evaluation import MEASURE_FACTS, Change, Evaluation
from pipeline.evaluate.page import MISSING, interval_text, measure_text, number_text, share_text
from pipeline.evaluate.significance import excess_error, judge, points
from pipeline.table.segment_maps import SOURCES


@dataclass(frozen=True)
class _Cell:
    """A number in a table, as text; `best` sets it off."""

    text: str
    best: bool = False


def size_sentence(evaluation: Evaluation) -> str:
    """State the number of rows that were measured."""
    share = f"{100 * evaluation.positives / evaluation.weight:.3g} %"
    rows = evaluation.rows
    if rows is None:
        return f"Total weight {number_text(evaluation.weight)}; {share} of it has label 1."
    weight = f" of total weight {number_text(evaluation.weight)}" if evaluation.before.weighted else ""
    return f"Measured on {rows:,} rows{weight}; {share} have label 1."


def tiles(evaluation: Evaluation) -> list[dict[str, str]]:
    """The numbers at the top."""
    measures, raw, bars = evaluation.after.measures, evaluation.before.measures, evaluation.bars_after
    loss = (
        measures.reasons.get("log_loss")
        or f"price of confident mistakes; the raw scores: {measure_text(raw.log_loss)}"
    )
    ranking = "how well rows with label 1 are put above the others"
    if bars is not None and bars.auc_low is not None and bars.auc_high is not None:
        ranking += f"; 95 % interval {bars.auc_low:.3f} to {bars.auc_high:.3f}"
    return [
        *_totals_tile(evaluation.after, bars),
        *_error_tile(evaluation.after, raw),
        _plain_tile("Log loss", measure_text(measures.log_loss), loss),
        _plain_tile("Ranking (AUC)", measure_text(measures.auc), ranking),
    ]


def _totals_tile(after: Assessment, bars: ErrorBars | None) -> list[dict[str, str]]:
    if bars is None or bars.expected is None:
        return []
    verdict = judge(after, bars)
    interval = ""
    if bars.ratio is not None and bars.ratio_low is not None and bars.ratio_high is not None:
        interval = (
            f"; observed over predicted {bars.ratio:.3g} ({bars.ratio_low:.3g} to {bars.ratio_high:.3g})"
        )
    tile = {
        "label": "Predicted : observed",
        "value": " : ".join(_unbroken(total / after.weight) for total in (bars.expected, bars.observed)),
        "hint": f"all rows together{interval}",
        "verdict": {"low": "too low", "high": "too high"}.get(verdict.kind, "within chance"),
        "kind": "bad" if verdict.kind in ("low", "high") else "good",
    }
    return [tile]


def _unbroken(share: float) -> str:
    """A share whose sign of percent stays beside it."""
    return share_text(share).replace(" ", "\u00a0")


def _error_tile(after: Assessment, raw: Measures) -> list[dict[str, str]]:
    if after.measures.ece_frequency is None:
        return []
    beyond = excess_error(after.by_frequency) > 0
    was = "" if raw.ece_frequency is None else f"; the raw scores: {points(raw.ece_frequency)} %"
    tile = {
        "label": "Calibration error (ECE)",
        "value": f"{points(after.measures.ece_frequency)} %",
        "hint": f"by chance alone about {points(chance_error(after.by_frequency))} %{was}",
        "verdict": "beyond chance" if beyond else "within chance",
        "kind": "bad" if beyond else "good",
    }
    return [tile]


def _plain_tile(label: str, value: str, hint: str) -> dict[str, str]:
    return {"label": label, "value": value, "hint": hint, "verdict": "", "kind": ""}


def change_row(change: Change) -> dict[str, str]:
    """A measure before and after."""
    difference = MISSING
    if change.difference is not None:
        difference = f"{change.difference:+.4f}".replace("-", "−")
        if float(difference.replace("−", "-")) == 0:
            difference = "0.0000"
    return {
        "label": change.facts.label,
        "meaning": change.facts.meaning,
        "better": "higher" if change.facts.higher_is_better else "lower",
        "before": measure_text(change.before),
        "after": measure_text(change.after),
        "difference": difference,
        "verdict": change.verdict,
    }


def reasons(before: Measures, after: Measures) -> list[str]:
    """Why measures are missing or infinite, each reason once."""
    lines: dict[str, list[str]] = {}
    for side, measures in (("before", before), ("after", after)):
        for name, reason in measures.reasons.items():
            lines.setdefault(f"{side} calibration: {reason}.", []).append(MEASURE_FACTS[name].label)
    return [
        f"{labels[0] if len(labels) == 1 else f'{len(labels)} measures'} {reason}"
        for reason, labels in lines.items()
    ]


def method_rows(
    evaluation: Evaluation, method: str, others: Mapping[str, Measures]
) -> list[dict[str, Any]] | None:
    """A row a method, with the best of each measure set off; None without others."""
    if not others:
        return None
    rows = {"before calibration": evaluation.before.measures, method: evaluation.after.measures, **others}
    table = []
    best = {name: _best(name, list(rows.values())) for name in MEASURE_FACTS}
    for label, measures in rows.items():
        values = [(name, getattr(measures, name)) for name in MEASURE_FACTS]
        cells = [
            _Cell(measure_text(value), value is not None and value == best[name]) for name, value in values
        ]
        table.append({"label": label, "cells": cells})
    return table


def _best(name: str, rows: list[Measures]) -> float | None:
    values = [value for value in (getattr(measures, name) for measures in rows) if value is not None]
    if not values:
        return None
    return max(values) if MEASURE_FACTS[name].higher_is_better else min(values)


def segment_name(values: Sequence[str | None]) -> str:
    """A segment's values as one name."""
    return ", ".join("null" if value is None else value for value in values)


def segment_facts(facts: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Facts for the section on segments; None without segments."""
    if facts is None:
        return None
    worst = [
        {
            "name": segment_name(row["segment"]),
            "rows": f"{row['rows']:,}",
            "positives": f"{row['rows_positive']:,}",
            "fitted_on": row["fitted_on"],
            "flagged": bool(row["beyond_chance_after"]),
            "cells": [
                measure_text(row[f"{name}_{side}"])
                for name in ("ece_frequency", "beyond_chance", "log_loss")
                for side in ("before", "after")
            ],
        }
        for row in facts["worst"]
    ]
    numbers = {
        name: f"{facts[name]:,}"
        for name in ("count", "unseen_rows", "beyond_chance_before", "beyond_chance_after")
    }
    kinds = ", ".join(f"{count:,} {SOURCES.get(kind, kind)}" for kind, count in facts["fitted_on"].items())
    return {**numbers, "columns": ", ".join(facts["columns"]), "fitted_on": kinds, "worst": worst}


def paired_groups(before: Sequence[ReliabilityBin], after: Sequence[ReliabilityBin]) -> list[dict[str, Any]]:
    """Rows of the reliability table, before beside after."""
    pairs = zip(before, after, strict=True) if before else ((None, group) for group in after)
    return [
        {"number": i, "range": _range(group_after), "before": _bin(group), "after": _bin(group_after)}
        for i, (group, group_after) in enumerate(pairs, 1)
    ]


def _range(group: ReliabilityBin) -> str:
    return interval_text(group.lower, group.upper)


def _bin(group: ReliabilityBin | None) -> dict[str, str] | None:
    if group is None:
        return None
    if group.frequency is None or group.mean_prediction is None:
        return {"weight": "0", "range": "", "predicted": "", "observed": "", "interval": "", "outside": ""}
    assert group.interval_low is not None
    assert group.interval_high is not None
    inside = group.interval_low <= group.mean_prediction <= group.interval_high
    return {
        "weight": number_text(group.weight),
        "range": _range(group),
        "predicted": share_text(group.mean_prediction),
        "observed": share_text(group.frequency),
        "interval": interval_text(group.interval_low, group.interval_high),
        "outside": "" if inside else "outside",
    }


# The reliability table: predicted and observed, group by group, as Parquet.

RELIABILITY_FILE = "reliability.parquet"


def reliability_table(evaluation: Evaluation) -> pa.Table:
    """A row a group, before and after calibration, by equal counts and by equal width, in this order."""
    rows = [
        (side, kind, i, *(getattr(group, name) for name in schema.RELIABILITY.names[3:]))
        for side, found in (("before", evaluation.before), ("after", evaluation.after))
        for kind, groups in _kinds(found)
        for i, group in enumerate(groups)
    ]
    columns = list(zip(*rows, strict=True)) or [()] * len(schema.RELIABILITY)
    arrays = [column_of(list(c), f.type) for c, f in zip(columns, schema.RELIABILITY, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema.RELIABILITY)


def _kinds(found: Assessment) -> tuple[tuple[str, tuple[object, ...]], ...]:
    return (("frequency", found.by_frequency), ("width", found.by_width))
