"""Facts about labelled data, gathered in one pass over all rows before a classifier is trained on them.

The coordinator receives labels, 64-bit keys of rows and groups, times, and a few facts per column, but no features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logcal.arrow_columns import as_numpy, one_array
from logcal.errors import InputRejectedError, examples, listing
from pipeline.classifier.features import CATEGORY, Feature, FeatureTable, as_text, read_batches
from pipeline.execution import Executor
from pipeline.generate.folds import Keys, RowKeys, text_key
from pipeline.log.label_counts import LabelCounts, complete_counts, sum_labels
from pipeline.log.log_files import Piece
from pipeline.log.logs import LABEL_NULL, LABEL_OTHER, cut, label_codes, numbers

FEWEST_ROWS = 10
MOST_CATEGORIES = 1000
"""Most categories of one feature; a column with more is probably an identifier."""

_TASK_ROWS = 1 << 20
_MOST_EXAMPLES = 5


class FeatureFacts(NamedTuple):
    """Facts about a feature: counts of nulls (with NaN) and infinities; at most `MOST_CATEGORIES` + 1 categories."""

    nulls: int
    infinite: int
    categories: frozenset[str]

    def plus(self, other: FeatureFacts) -> FeatureFacts:
        """Combine the facts of two sets of rows."""
        return FeatureFacts(
            self.nulls + other.nulls, self.infinite + other.infinite, self.categories | other.categories
        )


class PieceFacts(NamedTuple):
    """Facts about some rows; all except the label codes are of rows that have a label.

    Attributes
    ----------
    label : label codes of all rows
    row, group : keys; None without such a column
    time : times; None without such a column
    others : examples of labels other than 0 and 1
    nulls : number of nulls by role
    columns : facts by feature
    labels : counts of joined labels, if labels were joined
    """

    label: npt.NDArray[np.uint8]
    row: Keys | None
    group: Keys | None
    time: npt.NDArray[Any] | None
    others: tuple[str, ...]
    nulls: dict[str, int]
    columns: dict[str, FeatureFacts]
    labels: LabelCounts | None = None

    @classmethod
    def of(cls, parts: Sequence[PieceFacts], labels: LabelCounts | None) -> PieceFacts:
        """Concatenate the facts of consecutive rows."""
        others = dict.fromkeys(text for part in parts for text in part.others)
        return cls(
            np.concatenate([part.label for part in parts]),
            _concatenated([part.row for part in parts]),
            _concatenated([part.group for part in parts]),
            _concatenated([part.time for part in parts]),
            tuple(others)[:_MOST_EXAMPLES],
            {role: sum(part.nulls[role] for part in parts) for role in parts[0].nulls},
            {
                name: reduce(FeatureFacts.plus, (part.columns[name] for part in parts))
                for name in parts[0].columns
            },
            labels,
        )


@dataclass(frozen=True)
class DataFacts:
    """Facts about all rows.

    Attributes
    ----------
    keys : keys of all rows that have a label, in the order of the data
    columns : facts by feature, of rows that have a label
    waiting : number of rows whose label is null (not known yet)
    labels : counts of joined labels, if labels were joined
    """

    keys: RowKeys
    columns: dict[str, FeatureFacts]
    waiting: int = 0
    labels: LabelCounts | None = None

    @property
    def rows(self) -> int:
        """Number of rows that have a label."""
        return self.keys.label.size

    @property
    def positives(self) -> int:
        """Number of rows with label 1."""
        return int(np.count_nonzero(self.keys.label))

    def has_nulls(self, names: Sequence[str]) -> list[str]:
        """Return the features that have nulls."""
        return [name for name in names if self.columns[name].nulls]


def fact_tasks(table: FeatureTable) -> list[tuple[Any, ...]]:
    """Return the arguments of the `piece_facts` tasks for all rows."""
    return [(table, piece) for pieces in cut(table.log, _TASK_ROWS) for piece in pieces]


def gather_facts(table: FeatureTable, executor: Executor) -> DataFacts:
    """Read all rows, gather their facts, and check what footers do not tell.

    A row whose label is null waits for it; its other values are ignored.

    Raises
    ------
    InputRejectedError
        No row has an outcome. Or all problems at once: fewer than 10 rows; labels other than 0 or 1, or all equal; a
        feature with only nulls, with infinite numbers or with too many categories; repeated row ids; nulls among row
        ids, groups or times; a single group.
    """
    pieces: list[PieceFacts] = executor.run("check", piece_facts, fact_tasks(table))
    label_counts = sum_labels([part.labels for part in pieces])
    label_counts = complete_counts(label_counts, table.log.columns.outcomes, matched=True)
    facts = PieceFacts.of(pieces, label_counts)
    positions = np.flatnonzero(facts.label != LABEL_NULL)
    label, waiting = facts.label[positions], facts.label.size - positions.size
    problems = [
        *_label_problems(table, label, facts.others, waiting),
        *_feature_problems(table.features, facts.columns, label.size),
    ]
    problems += [
        f"column '{getattr(table.roles, role)}' ($[{role}]): expected values, found {count:,} nulls"
        for role, count in facts.nulls.items()
        if count
    ]
    row = positions.astype(np.uint64) if facts.row is None else facts.row
    keys = RowKeys(row, label == 1, facts.group, facts.time)
    problems += _key_problems(table, keys)
    if problems:
        raise InputRejectedError(f"the data cannot be used.\n{listing(problems)}")
    return DataFacts(keys, facts.columns, waiting, label_counts)


def _concatenated(arrays: list[Any]) -> Any:
    return None if arrays[0] is None else np.concatenate(arrays)


def _label_problems(
    table: FeatureTable, label: npt.NDArray[np.uint8], others: Sequence[str], waiting: int
) -> list[str]:
    name = table.roles.label
    problems = []
    if label.size < FEWEST_ROWS:
        kind_of_rows = f"rows with a label (column '{name}', $[label])" if waiting else "rows"
        waiting_rows = f", and {waiting:,} that wait for theirs, which is null" if waiting else ""
        problems.append(f"expected at least {FEWEST_ROWS} {kind_of_rows}, found {label.size}{waiting_rows}")
    other = int(np.count_nonzero(label == LABEL_OTHER))
    if other:
        problems.append(
            f"column '{name}' ($[label]): expected two classes, 0 and 1, found {other:,} rows with other labels, "
            f"such as {examples(list(others))}: name a column with one class against the rest"
        )
    if label.size and label[0] in (0, 1) and np.all(label == label[0]):
        problems.append(
            f"column '{name}' ($[label]): expected labels of both classes, found {label.size:,} rows that all "
            f"have label {label[0]}"
        )
    return problems


def _feature_problems(features: Sequence[Feature], columns: dict[str, FeatureFacts], rows: int) -> list[str]:
    problems = []
    for name, kind in features:
        facts = columns[name]
        if facts.nulls == rows and rows:
            problems.append(f"column '{name}': expected values, found only nulls: leave it out ($[exclude])")
        if facts.infinite:
            problems.append(
                f"column '{name}': expected finite numbers, found {facts.infinite:,} infinite ones: replace them by "
                "nulls or leave the column out ($[exclude])"
            )
        if kind == CATEGORY and len(facts.categories) > MOST_CATEGORIES:
            problems.append(
                f"column '{name}': expected at most {MOST_CATEGORIES:,} categories, found more, such as "
                f"{examples(sorted(facts.categories), 3)}: leave it out ($[exclude]) or join categories"
            )
    return problems


def _key_problems(table: FeatureTable, keys: RowKeys) -> list[str]:
    roles, problems = table.roles, []
    if roles.row_id is not None:
        repeated = keys.row.size - np.unique(keys.row).size
        if repeated:
            problems.append(
                f"column '{roles.row_id}' ($[row_id]): expected a different value in each row, found {repeated:,} "
                "repeated values: name another column, or none to number the rows"
            )
    if keys.group is not None and np.unique(keys.group).size == 1:
        problems.append(
            f"column '{roles.group}' ($[group]): expected at least two groups, found one: no part would be left "
            "to score; choose another column or $[split]=row"
        )
    return problems


def piece_facts(table: FeatureTable, piece: Piece) -> PieceFacts:
    """Gather the facts of a piece."""
    counts = None if table.log.columns.labels is None else LabelCounts()
    batches = read_batches(table, piece.path, piece.row_groups, counts=counts)
    return PieceFacts.of([_batch_facts(table, batch) for batch in batches], counts)


def _batch_facts(table: FeatureTable, batch: pa.RecordBatch) -> PieceFacts:
    roles = table.roles
    assert roles.label is not None
    codes = label_codes(batch.column(roles.label))
    batch, label = labelled_rows(batch, codes), codes[codes != LABEL_NULL]
    invalid = np.flatnonzero(label == LABEL_OTHER)
    values = batch.column(roles.label).take(pa.array(invalid)).unique() if invalid.size else []
    columns = {role: getattr(roles, role) for role in ("row_id", "group", "time")}
    nulls = {role: batch.column(name).null_count for role, name in columns.items() if name is not None}
    time = times_of(batch, roles.time)
    if time is not None:
        nulls["time"] += int(np.count_nonzero(np.isnan(time)))
    return PieceFacts(
        codes,
        keys_of(batch, roles.row_id),
        keys_of(batch, roles.group),
        time,
        tuple(str(value) for value in list(values)[:_MOST_EXAMPLES]),
        nulls,
        {f.name: _column_facts(batch.column(f.name), f.kind) for f in table.features},
    )


def _column_facts(column: pa.Array, kind: str) -> FeatureFacts:
    if kind == CATEGORY:
        distinct = as_text(column).unique().drop_null().to_pylist()
        return FeatureFacts(column.null_count, 0, frozenset(distinct[: MOST_CATEGORIES + 1]))
    values = numbers(column)
    return FeatureFacts(
        int(np.count_nonzero(np.isnan(values))), int(np.count_nonzero(np.isinf(values))), frozenset()
    )


def labelled_rows(batch: pa.RecordBatch, codes: npt.NDArray[np.uint8]) -> pa.RecordBatch:
    """Return the rows of a batch that have a label, given its label codes."""
    has_label = codes != LABEL_NULL
    return batch if has_label.all() else batch.filter(pa.array(has_label))


def keys_of(batch: pa.RecordBatch | pa.Table, name: str | None) -> Keys | None:
    """Return 64-bit keys of a column of whole numbers, text or booleans; None without a column."""
    if name is None:
        return None
    column = decoded(batch.column(name))
    if pa.types.is_boolean(column.type) or pa.types.is_integer(column.type):
        filled = column.fill_null(0) if column.null_count else column
        return as_numpy(filled).astype(np.uint64)  # negative numbers keep their bits
    encoded = column.cast(pa.string()).fill_null("").dictionary_encode()
    distinct = np.array([text_key(text) for text in encoded.dictionary.to_pylist()], np.uint64)
    keys: Keys = distinct[as_numpy(encoded.indices)]
    return keys


def times_of(batch: pa.RecordBatch | pa.Table, name: str | None) -> npt.NDArray[Any] | None:
    """Convert a column of times to numbers in the same order: int64, or float64 for floats; None without a column."""
    if name is None:
        return None
    column = decoded(batch.column(name))
    if pa.types.is_temporal(column.type):
        width = {32: pa.int32(), 64: pa.int64()}[column.type.bit_width]
        column = column.view(width)
    if column.null_count:
        column = column.fill_null(0)
    values = as_numpy(column)
    return values.astype(np.float64 if values.dtype.kind == "f" else np.int64)


def decoded(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array without dictionary encoding."""
    if isinstance(column, pa.ChunkedArray):
        column = one_array(column)
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
