"""Unusable rows: their reasons, counts and examples, and the quarantine files."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from calibrators.core.arrays import Mask
from calibrators.core.passes import HIGHEST_WEIGHT, LOWEST_WEIGHT
from logcal.arrow_columns import null_mask, nullable_column
from logcal.errors import InputRejectedError, NothingToDoError
from pipeline import schema
from pipeline.files.blobs import writing
from pipeline.files.folders import Folder
from pipeline.files.output import Output
from pipeline.log.logs import (
    DAY_INVALID,
    DAY_NULL,
    DAY_OUT_OF_RANGE,
    LABEL_NULL,
    LABEL_OTHER,
    Columns,
    Rows,
    numbers,
)

EXAMPLES = 5

BAD_PARTS = "bad-*.parquet"
"""Pattern of the names of bad rows' files in scratch space (`write_part`)."""

DAY_OUT = "day_out_of_range"
"""Reason of rows with days that cannot be; see `pipeline.log.windows.day_limits`."""

_USABLE, _WAITING = -1, -2


@dataclass(frozen=True)
class RowRules:
    """Rules for unusable rows.

    Parameters
    ----------
    quarantine : whether to continue without them; otherwise one bad row rejects the log
    max_fraction : in [0, 1]: a larger fraction of bad rows rejects the log even with `quarantine`
    keep : whether to write the bad rows as Parquet
    matched : whether at least one row must have an outcome, if labels are joined
    """

    quarantine: bool = False
    max_fraction: float = 0.01
    keep: bool = False
    matched: bool = True


class Example(NamedTuple):
    """Example of a bad row."""

    file: str
    row: int
    value: str

    def __str__(self) -> str:
        return f"{self.value} at {self.file} row {self.row}"


@dataclass
class BadRows:
    """Counts and examples of bad rows by reason code; `merge` adds those of other rows."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[Example]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Number of bad rows."""
        return sum(self.counts.values())

    def merge(self, other: BadRows) -> None:
        """Add the bad rows of later rows."""
        for reason, count in other.counts.items():
            self.counts[reason] = self.counts.get(reason, 0) + count
            merged = self.examples.setdefault(reason, [])
            merged += other.examples[reason][: EXAMPLES - len(merged)]

    def in_order(self) -> dict[str, int]:
        """Return counts by reason, in the order of the reason codes."""
        return {reason: self.counts[reason] for reason in schema.REASONS if reason in self.counts}


def usable(rows: Rows) -> Mask:
    """Return a mask of the usable rows of a batch; days are not checked (see `find_bad`)."""
    good = np.isfinite(rows.score) & (rows.label <= 1)
    if rows.weight is not None:
        good &= (rows.weight >= LOWEST_WEIGHT) & (rows.weight <= HIGHEST_WEIGHT)
    return good


def find_bad(rows: Rows, columns: Columns, file: str, subset: Mask | None = None) -> tuple[BadRows, pa.Table]:
    """Find the bad rows of a batch: count each under its first reason, and return them as a quarantine table.

    Rows without a label are waiting for it and not bad.

    subset : mask of the rows to check; None: all
    """
    score, weight, day = rows.score, rows.weight, rows.day
    tests = {
        "score_null": null_mask(rows.batch.column(columns.score)),
        "score_nan": np.isnan(score),
        "score_infinite": np.isinf(score),
        "label_not_0_or_1": rows.label == LABEL_OTHER,
    }
    if weight is not None and columns.weight is not None:
        tests |= {
            "weight_null": null_mask(rows.batch.column(columns.weight)),
            "weight_nan": np.isnan(weight),
            "weight_infinite": np.isinf(weight),
            "weight_not_positive": weight <= 0,
            "weight_out_of_range": (weight < LOWEST_WEIGHT) | (weight > HIGHEST_WEIGHT),
        }
    if day is not None:
        tests |= {
            "date_null": day == DAY_NULL,
            "date_invalid": day == DAY_INVALID,
            DAY_OUT: day == DAY_OUT_OF_RANGE,
        }
    # A row without a label is waiting, even if its other values are bad.
    reason = np.where(rows.label == LABEL_NULL, np.int8(_WAITING), np.int8(_USABLE))
    names = list(tests)
    for code, failed in enumerate(tests.values()):
        reason[(reason == _USABLE) & failed] = code
    if subset is not None:
        reason[~subset] = _USABLE
    bad = np.flatnonzero(reason >= 0)
    bad_rows = BadRows()
    for code, name in enumerate(names):
        indices = np.flatnonzero(reason == code)
        if indices.size:
            bad_rows.counts[name] = int(indices.size)
            column = getattr(columns, "date" if name == DAY_OUT else name.partition("_")[0])
            bad_rows.examples[name] = [
                Example(file, rows.first_row + int(i), f"{column}={rows.batch.column(column)[int(i)]}")
                for i in indices[:EXAMPLES]
            ]
    return bad_rows, _quarantine_table(rows, columns, file, bad, [names[c] for c in reason[bad]])


def _quarantine_table(rows: Rows, columns: Columns, file: str, bad: Any, reasons: list[str]) -> pa.Table:
    def take(name: str | None) -> pa.Array:
        if name is None:
            return pa.nulls(bad.size, pa.float64())
        column = rows.batch.column(name).take(pa.array(bad))
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_decimal(column.type):
            return nullable_column(numbers(column))
        return column.cast(pa.float64(), safe=False)

    data = [
        # A path need not be valid UTF-8.
        pa.array([file.encode("utf-8", "backslashreplace").decode()] * bad.size, pa.string()),
        pa.array(rows.first_row + bad, pa.int64()),
        pa.array(reasons, pa.string()),
        take(columns.score),
        take(columns.label),
        take(columns.weight),
    ]
    return pa.Table.from_arrays(data, schema=schema.QUARANTINE)


_MOST_OTHER_LABELS = 0.1
"""Fraction of rows with labels other than 0 and 1 above which the outcome itself is taken to be not binary."""


def check(bad: BadRows, rows: int, rules: RowRules) -> None:
    """Reject the log if it has more bad rows than the rules allow.

    Raises
    ------
    InputRejectedError
        The message has the count and examples for each reason, and advice.
    """
    if bad.total == 0 or (rules.quarantine and bad.total <= rules.max_fraction * rows):
        return
    lines = [
        f"- {reason}: {count:,} rows, such as {'; '.join(map(str, bad.examples[reason]))}"
        for reason, count in bad.in_order().items()
    ]
    other_labels = bad.in_order().get("label_not_0_or_1", 0)
    if other_labels > _MOST_OTHER_LABELS * rows:
        head = (
            f"logcal calibrates binary outcomes: labels must be 0 or 1, and {other_labels:,} of {rows:,} rows have "
            "others. Name the column of the outcome ($[label]); for a model of several classes make a label such as "
            "'the top class was right'; to labels that are probabilities fit calibrators in Python (both in "
            "docs/faq.md)."
        )
    elif rules.quarantine:
        head = (
            f"{bad.total:,} of {rows:,} rows cannot be used, more than $[max_bad_fraction] = "
            f"{rules.max_fraction:g} allows: correct the log or raise the limit."
        )
    else:
        days = " Days must lie between 1990 and $[newest]." if DAY_OUT in bad.counts else ""
        head = (
            f"{bad.total:,} of {rows:,} rows cannot be used: expected finite scores, labels 0 or 1, and weights "
            f"from 1e-100 to 1e100.{days} Correct the log, or set $[on_bad_rows]=quarantine to go on without these "
            "rows."
        )
    raise InputRejectedError("\n".join([head, *lines]))


def waiting(rows: int) -> str:
    """Return a phrase with the number of rows that wait for their label, to append to a sentence; '' for none."""
    return f" ({rows:,} of them wait for their label)" if rows else ""


def write_part(tables: list[pa.Table], path: str) -> None:
    """Write a task's bad rows; a repeated task writes the same file again."""
    with writing(path) as file:
        pq.write_table(pa.concat_tables(tables), file)


def check_output(output: Output, run_id: str) -> None:
    """Check that a run's bad rows can be written to `output`, without changing anything.

    Raises
    ------
    ConfigError
        The folder has other contents, or is not writable.
    """
    with suppress(NothingToDoError):
        output.check(run_id)


def copy_parts(scratch: str, output: Output, run_id: str) -> int:
    """Copy the bad rows that tasks wrote in scratch space to `output`; return the number of files.

    Files from an earlier attempt at the same run, which failed later, are kept.

    Raises
    ------
    ConfigError, TemporaryError
        `output` is not writable.
    """
    folder = Folder.at(scratch)
    parts = folder.matching(BAD_PARTS)
    names = [f"part-{i:05d}.parquet" for i in range(len(parts))]
    with suppress(NothingToDoError), output.writing(run_id, names) as staging:
        for part, name in zip(parts, names, strict=True):
            staging.folder.copy(folder, part, name)
        staging.files += names
        staging.facts = {"files": names}
    return len(parts)
