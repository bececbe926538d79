"""Labelled data: Parquet files with feature columns, read as data frames for scikit-learn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logcal.arrow_columns import one_array
from logcal.errors import examples
from pipeline.labels.outcomes import Outcomes
from pipeline.log import log_files
from pipeline.log.column_types import type_of
from pipeline.log.label_counts import LabelCounts
from pipeline.log.log_files import open_parquet
from pipeline.log.logs import BATCH_ROWS, Columns, Log, numbers, open_files

if TYPE_CHECKING:
    import pandas as pd

NUMBER, CATEGORY = "number", "category"


class Feature(NamedTuple):
    """A feature column: `kind` is 'number' (booleans too) or 'category' (text)."""

    name: str
    kind: str


@dataclass(frozen=True)
class Roles:
    """Roles of the columns.

    Parameters
    ----------
    label : the label, or None if there is none
    features : the features; None: all columns without another role
    exclude : columns that are not features, if `features` is None
    categories : features to treat as categories whatever their type
    row_id, group, time : see `pipeline.generate.folds`; row_id None: the row's position in the data
    keep : columns to copy to the generated log
    """

    label: str | None
    features: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    row_id: str | None = None
    group: str | None = None
    time: str | None = None
    keep: tuple[str, ...] = ()

    def named(self) -> Iterator[tuple[str, str]]:
        """Yield each named column and the role that names it."""
        for role in _ROLES:
            name = getattr(self, role)
            if name is not None:
                yield name, f"$[{role}]"
        for role in ("features", "exclude", "categories", "keep"):
            for name in getattr(self, role) or ():
                yield name, f"$[{role}]"


@dataclass(frozen=True)
class FeatureTable:
    """Labelled data whose footers have been read and checked.

    Attributes
    ----------
    log : its files and columns
    features : features in the order of the columns, or of `Roles.features`
    schema : Arrow types of all used columns
    starts : number of rows before each file, by path
    """

    log: Log
    roles: Roles
    features: tuple[Feature, ...]
    schema: pa.Schema
    starts: dict[str, int] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The columns to read."""
        roles, labels = self.roles, self.log.columns.labels
        others = [roles.label, roles.row_id, roles.group, roles.time, *roles.keep]
        if labels is not None:
            others = [*others[1:], *labels.source.columns]
        return list(dict.fromkeys([*(f.name for f in self.features), *(n for n in others if n is not None)]))

    @property
    def numbers(self) -> list[str]:
        """Names of the numeric features."""
        return [f.name for f in self.features if f.kind == NUMBER]

    @property
    def categories(self) -> list[str]:
        """Names of the categorical features."""
        return [f.name for f in self.features if f.kind == CATEGORY]


def open_features(
    paths: str | Sequence[str],
    roles: Roles,
    *,
    trained_features: Sequence[Feature] | None = None,
    labels: Outcomes | None = None,
) -> FeatureTable:
    """Find the files of labelled data, read their footers, and check all that footers tell.

    Parameters
    ----------
    paths : path, directory, glob or fsspec URL, or several
    roles : roles of the columns
    trained_features : the features and kinds that a classifier was trained with
    labels : where the labels are, if not in the data; `roles.label` is the name that they get

    Raises
    ------
    InputRejectedError
        All problems at once: no files; a file that is not Parquet; a column that is missing, has an unusable type, or
        differs in kind between files; no features; no rows.
    """
    opened = open_files(paths)
    schemas = opened.schemas
    name = str(roles.label)
    if labels is not None:  # neither keys nor a label column in the data are features
        present = {column for _, schema in schemas for column in schema.names}
        others = [column for column in (*labels.source.columns, name) if column in present]
        roles = replace(roles, label=None, exclude=tuple(dict.fromkeys([*roles.exclude, *others])))
    if not schemas:
        opened.check("data", paths, ())
    features, schema, problems = check_features(schemas, roles, trained_features)
    opened.check("data", paths, problems)
    columns = Columns(roles.label or features[0].name, roles.label)
    log = opened.log(columns, {f.name: str(f.type) for f in schema})
    if labels is not None:
        log = replace(log, columns=replace(columns, label=name, labels=labels.opened(log, schemas)))
        roles = replace(roles, label=name)
        schema = schema.append(pa.field(name, pa.float64()))
    ends = accumulate((file.rows for file in log.files), initial=0)
    starts = {file.path: start for file, start in zip(log.files, ends, strict=False)}
    return FeatureTable(log, roles, tuple(features), schema, starts)


def check_features(
    schemas: Sequence[tuple[str, pa.Schema]], roles: Roles, trained: Sequence[Feature] | None
) -> tuple[list[Feature], pa.Schema, list[str]]:
    """Return the features, the types of all used columns, and the problems found."""
    first = schemas[0][1]
    roles_by_name = dict(roles.named())
    assigned = {name for name, role in roles.named() if role != "$[categories]"}
    others = [name for name in first.names if name not in assigned]
    names = others if roles.features is None else list(roles.features)
    if trained is not None:
        names = [feature.name for feature in trained]
    for name in names:
        roles_by_name.setdefault(name, "a feature of $[paths]")
    kinds = dict(trained) if trained is not None else {}
    checked = {name: type_of(name, role, schemas) for name, role in roles_by_name.items()}
    types = {name: kind for name, (kind, _) in checked.items() if kind is not None}
    problems = [problem for _, problem in checked.values()]
    features = []
    for name in names:
        if name in types:
            kind, problem = _feature_kind(name, types[name], roles, kinds.get(name))
            problems.append(problem)
            features.append(Feature(name, kind))
    problems += [_role_problem(roles, role, types) for role in _ROLES]
    if not names:
        problems.append(
            f"expected feature columns, found none besides {examples(list(roles_by_name), 5)}: set $[features]"
        )
    return features, pa.schema(list(types.items())), [problem for problem in problems if problem]


def _feature_kind(name: str, dtype: pa.DataType, roles: Roles, trained: str | None) -> tuple[str, str]:
    """Return a feature's kind, and the problem with it, if any."""
    value_type = dtype.value_type if pa.types.is_dictionary(dtype) else dtype
    numeric = _is_number(value_type) or pa.types.is_boolean(value_type)
    codes = name in roles.categories and (pa.types.is_integer(value_type) or pa.types.is_boolean(value_type))
    categorical = _is_text(value_type) or pa.types.is_dictionary(dtype) or codes
    if name in roles.categories and not categorical:
        return CATEGORY, f"column '{name}' ($[categories]): expected text or whole numbers, found {dtype}"
    kind = CATEGORY if categorical else NUMBER
    if pa.types.is_null(dtype):
        return kind, f"column '{name}': expected values, found only nulls: leave it out ($[exclude])"
    if not (numeric or categorical):
        return kind, (
            f"column '{name}': expected a feature of numbers, booleans or text, found {dtype}: leave it out "
            "($[exclude]), or convert it"
        )
    if trained not in (None, kind) and not (trained == CATEGORY and pa.types.is_integer(value_type)):
        return kind, f"column '{name}': the classifier was trained with a {trained} here, found {dtype}"
    return trained or kind, ""


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(kind) and not pa.types.is_duration(kind))


_ROLES: dict[str, tuple[str, tuple[Callable[[pa.DataType], bool], ...]]] = {
    "label": ("booleans, or numbers 0 and 1", (_is_number, pa.types.is_boolean)),
    "row_id": ("whole numbers or text", (pa.types.is_integer, _is_text)),
    "group": ("whole numbers, text or booleans", (pa.types.is_integer, _is_text, pa.types.is_boolean)),
    "time": ("timestamps, dates or numbers", (_is_number, _is_time)),
}
"""Values of a role's column, and the types that have them."""


def _role_problem(roles: Roles, role: str, types: dict[str, pa.DataType]) -> str:
    name = getattr(roles, role)
    if name is None or name not in types:
        return ""
    expected, predicates = _ROLES[role]
    value_type = types[name].value_type if pa.types.is_dictionary(types[name]) else types[name]
    if any(fits(value_type) for fits in predicates):
        return ""
    return f"column '{name}' ($[{role}]): expected {expected}, found {types[name]}"


def read_batches(
    table: FeatureTable,
    path: str,
    row_groups: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    counts: LabelCounts | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read a file's rows batch by batch, only the used columns.

    counts : counts of joined labels, updated

    Raises
    ------
    InputRejectedError
        The file was changed, is truncated, or has pages that cannot be decoded.
    """
    log = table.log
    state = next(file.state for file in log.files if file.path == path)
    with open_parquet(log.filesystem, path, state) as parquet:
        chosen = range(parquet.num_row_groups) if row_groups is None else row_groups
        columns = table.names if names is None else names
        batches = log_files.read_batches(parquet, path, columns, chosen, BATCH_ROWS)
        if names is not None or log.columns.labels is None:
            yield from batches
            return
        matching = log.columns.labels.matching()
        for batch in batches:
            joined = matching.join(batch)
            if counts is not None:
                counts.add(joined)
            yield batch.append_column(str(log.columns.label), joined.column)
        if counts is not None:
            counts.outcomes += matching.outcome_rows


def as_frame(table: pa.Table | pa.RecordBatch, features: Sequence[Feature]) -> pd.DataFrame:
    """Convert rows to the data frame that a classifier gets.

    Numbers and booleans become float64, nulls NaN; categories become text, nulls None.
    """
    import pandas as pd

    columns = {}
    for name, kind in features:
        column = table.column(name)
        if isinstance(column, pa.ChunkedArray):
            column = one_array(column)
        columns[name] = numbers(column) if kind == NUMBER else pd.Series(_texts(column), dtype=object)
    return pd.DataFrame(columns, copy=False)


def _texts(column: pa.Array) -> npt.NDArray[np.object_]:
    encoded = as_text(column).dictionary_encode()
    values = np.array([*encoded.dictionary.to_pylist(), None], dtype=object)
    texts: npt.NDArray[np.object_] = values[encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
    return texts


def as_text(column: pa.Array) -> pa.Array:
    """Convert a column of text, booleans or whole numbers to text."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(pa.string())
