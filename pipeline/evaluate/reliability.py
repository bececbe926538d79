"""The reliability table: predicted and observed, group by group, as Parquet."""

from __future__ import annotations

import pyarrow as pa

from calibrators.measures.assessment import Assessment
from logcal.arrow_columns import column_of
from pipeline import schema
from pipeline.evaluate.evaluation import Evaluation

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
