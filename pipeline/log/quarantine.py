"""Rows that cannot be used: their reasons, counts and examples, and where they are kept."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from calibrators.arithmetic.passes import HIGHEST_WEIGHT, LOWEST_WEIGHT
from logcal.arrow_columns import null_mask
from logcal.errors import InputRejectedError, NothingToDoError
from pipeline import schema
from pipeline.files.blobs import writing
from pipeline.files.folders import Folder
from pipeline.files.output import Output
from pipeline.log.logs import DAY_INVALID, DAY_NULL, LABEL_NULL, LABEL_OTHER, Columns, Rows

EXAMPLES = 5

BAD_PARTS = "bad-*.parquet"
"""Pattern of the files that `write_part` writes in scratch space."""

_USABLE, _WAITING = -1, -2


@dataclass(frozen=True)
class RowRules:
    """Rules for rows that cannot be used.

    Parameters
    ----------
    quarantine : whether to go on without them; otherwise one bad row rejects the log.
    max_fraction : of all rows, in [0, 1]: more bad rows than this reject the log all the same.
    keep : whether to write the bad rows as Parquet.
    matched : whether some row must have an outcome, where labels are joined
    """

    quarantine: bool = False
    max_fraction: float = 0.01
    keep: bool = False
    matched: bool = True


class Example(NamedTuple):
    """A bad row."""

    file: str
    row: int
    value: str

    def __str__(self) -> str:
        return f"{self.value} at {self.file} row {self.row}"


@dataclass
class BadRows:
    """Counts and examples by reason code; those of disjoint rows add up with `merge`."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[Example]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Bad rows in all."""
        return sum(self.counts.values())

    def merge(self, other: BadRows) -> None:
        """Add the bad rows of rows that come after these."""
        for reason, count in other.counts.items():
            self.counts[reason] = self.counts.get(reason, 0) + count
            kept = self.examples.setdefault(reason, [])
            kept += other.examples[reason][: EXAMPLES - len(kept)]

    def in_order(self) -> dict[str, int]:
        """Counts in the order of the reason codes."""
        return {reason: self.counts[reason] for reason in schema.REASONS if reason in self.counts}


def usable(rows: Rows) -> npt.NDArray[np.bool_]:
    """Tell which rows of a batch can be used, wherever their day is known: see `find_bad`."""
    good = np.isfinite(rows.score) & (rows.label <= 1)
    if rows.weight is not None:
        good &= (rows.weight >= LOWEST_WEIGHT) & (rows.weight <= HIGHEST_WEIGHT)
    return good


def find_bad(
    rows: Rows, columns: Columns, file: str, among: npt.NDArray[np.bool_] | None = None
) -> tuple[BadRows, pa.Table]:
    """The rows of a batch that cannot be used, each under its first reason, and as a quarantine table.

    Rows without a label are not among them: they are waiting for it.

    among : the rows to look at; None: all.
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
        tests |= {"date_null": day == DAY_NULL, "date_invalid": day == DAY_INVALID}
    # Whatever else is the matter with it, a row without a label is waiting for it.
    reason = np.where(rows.label == LABEL_NULL, np.int8(_WAITING), np.int8(_USABLE))
    names = list(tests)
    for code, hit in enumerate(tests.values()):
        reason[(reason == _USABLE) & hit] = code
    if among is not None:
        reason[~among] = _USABLE
    bad = np.flatnonzero(reason >= 0)
    found = BadRows()
    for code, name in enumerate(names):
        hits = np.flatnonzero(reason == code)
        if hits.size:
            found.counts[name] = int(hits.size)
            column = getattr(columns, name.partition("_")[0])
            found.examples[name] = [
                Example(file, rows.first_row + int(i), f"{column}={rows.batch.column(column)[int(i)]}")
                for i in hits[:EXAMPLES]
            ]
    return found, _table(rows, columns, file, bad, [names[c] for c in reason[bad]])


def _table(rows: Rows, columns: Columns, file: str, bad: Any, reasons: list[str]) -> pa.Table:
    def taken(name: str | None) -> pa.Array:
        if name is None:
            return pa.nulls(bad.size, pa.float64())
        column = rows.batch.column(name).take(pa.array(bad))
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        return column.cast(pa.float64(), safe=False)

    data = [
        # A name need not be UTF-8.
        pa.array([file.encode("utf-8", "backslashreplace").decode()] * bad.size, pa.string()),
        pa.array(rows.first_row + bad, pa.int64()),
        pa.array(reasons, pa.string()),
        taken(columns.score),
        taken(columns.label),
        taken(columns.weight),
    ]
    return pa.Table.from_arrays(data, schema=schema.QUARANTINE)


_OTHER_OUTCOMES = 0.1
"""Share of rows with other labels above which the log is one of other outcomes, and no row of it is just bad."""


def check(bad: BadRows, rows: int, rules: RowRules) -> None:
    """Reject the log if its bad rows are more than the rules allow.

    Raises
    ------
    InputRejectedError
        With the count and examples of each reason, and what to do.
    """
    if bad.total == 0 or (rules.quarantine and bad.total <= rules.max_fraction * rows):
        return
    lines = [
        f"- {reason}: {count:,} rows, such as {'; '.join(map(str, bad.examples[reason]))}"
        for reason, count in bad.in_order().items()
    ]
    other_labels = bad.in_order().get("label_not_0_or_1", 0)
    if other_labels > _OTHER_OUTCOMES * rows:
        head = (
            f"logcal calibrates binary outcomes: labels must be 0 or 1, and {other_labels:,} of {rows:,} rows have "
            "others. Name the column of the outcome (log.label); for a model of several classes make a label such as "
            "'the top class was right' (docs/faq.md)."
        )
    elif rules.quarantine:
        head = (
            f"{bad.total:,} of {rows:,} rows cannot be used, more than log.max_bad_fraction = "
            f"{rules.max_fraction:g} allows: correct the log or raise the limit."
        )
    else:
        head = (
            f"{bad.total:,} of {rows:,} rows cannot be used: expected finite scores, labels 0 or 1, and weights "
            "from 1e-100 to 1e100. Correct the log, or set log.on_bad_rows=quarantine to go on without these rows."
        )
    raise InputRejectedError("\n".join([head, *lines]))


def waiting(rows: int) -> str:
    """State the number of rows that wait for their label, to end a sentence on rows with."""
    return f" ({rows:,} of them wait for their label)" if rows else ""


def write_part(tables: list[pa.Table], path: str) -> None:
    """Write a task's bad rows; a repeated task writes the same file again."""
    with writing(path) as file:
        pq.write_table(pa.concat_tables(tables), file)


def check_place(output: Output, run_id: str) -> None:
    """Check that a run's bad rows can be kept in `output`; nothing is changed.

    Raises
    ------
    ConfigError
        Something else is there, or it cannot be written to.
    """
    with suppress(NothingToDoError):
        output.check(run_id)


def keep_parts(scratch: str, output: Output, run_id: str) -> int:
    """Move the bad rows that tasks left in scratch to their place; return the number of files.

    They stay where an earlier attempt at the same run, which failed later on, has already left them.

    Raises
    ------
    ConfigError, TemporaryError
        The place cannot be written to.
    """
    place = Folder.at(scratch)
    parts = place.matching(BAD_PARTS)
    names = [f"part-{i:05d}.parquet" for i in range(len(parts))]
    with suppress(NothingToDoError), output.writing(run_id, names) as staging:
        for part, name in zip(parts, names, strict=True):
            staging.copy(place, part, name)
        staging.files += names
        staging.facts = {"files": names}
    return len(parts)
