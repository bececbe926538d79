"""Words and tables of the report: the tiles, the measures, methods, segments, groups."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from calibrators.measures.assessment import Assessment, Measures
from logcal.arrow_columns import column_of
from pipeline import schema
from pipeline.evaluate.evaluation import MEASURE_FACTS, Evaluation
from pipeline.evaluate.page import number_text


def size_sentence(evaluation: Evaluation) -> str:
    """State the number of rows that were measured."""
    share = f"{100 * evaluation.positives / evaluation.weight:.3g} %"
    rows = evaluation.rows
    if rows is None:
        return f"Total weight {number_text(evaluation.weight)}; {share} of it has label 1."
    weight = f" of total weight {number_text(evaluation.weight)}" if evaluation.before.weighted else ""
    return f"Measured on {rows:,} rows{weight}; {share} have label 1."


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


def segment_name(values: Sequence[str | None]) -> str:
    """A segment's values as one name."""
    return ", ".join("null" if value is None else value for value in values)


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
