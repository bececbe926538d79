"""Labelled data: a Parquet data set of feature columns, read as data frames for scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logcal.errors import examples
from pipeline.log import log_files
from pipeline.log.label_counts import LabelCounts
from pipeline.log.log_files import open_parquet
from pipeline.log.logs import BATCH_ROWS, Columns, Log, numbers, open_files, type_of
from pipeline.log.outcomes import Outcomes

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
    label : the label, or None where there is none
    features : the features; None: all columns without another role
    exclude : with `features` None, columns that are none
    categories : features that are categories whatever their type
    row_id, group, time : see `pipeline.generate.folds`; row_id None: the row's place in the data
    keep : columns to copy to what is written
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
        """Each named column with the setting that names it."""
        for role in ("label", "row_id", "group", "time"):
            name = getattr(self, role)
            if name is not None:
                yield name, f"data.{role}"
        for role in ("features", "exclude", "categories", "keep"):
            for name in getattr(self, role) or ():
                yield name, f"data.{role}"


@dataclass(frozen=True)
class FeatureTable:
    """A data set whose footers have been read and checked.

    Attributes
    ----------
    log : its files, as jobs know them
    features : in the order of the columns, or as they were named
    starts : the first row of each file, in all
    schema : Arrow types of all used columns
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
        """Features that are numbers."""
        return [f.name for f in self.features if f.kind == NUMBER]

    @property
    def categories(self) -> list[str]:
        """Features that are categories."""
        return [f.name for f in self.features if f.kind == CATEGORY]


def open_features(
    paths: str | Sequence[str],
    roles: Roles,
    *,
    setting: str = "data",
    known: Sequence[Feature] | None = None,
    labels: Outcomes | None = None,
) -> FeatureTable:
    """Find a data set's files, read their footers, and check everything that footers can tell.

    Parameters
    ----------
    paths : path, directory, glob or fsspec URL, or several
    roles : of the columns
    setting : section of the configuration that names them, for messages
    known : the features that a classifier was trained with; theirs are the kinds then
    labels : where labels are, if not in the data: `roles.label` is what they are called

    Raises
    ------
    InputRejectedError
        All problems at once: no files; a file that is not Parquet; a column that is missing, has a type that cannot
        be used, or differs in kind between files; no features; no rows.
    """
    opened = open_files(paths, f"{setting}.path")
    schemas = opened.schemas
    name = str(roles.label)
    if labels is not None:  # neither a key nor a label of the data's own is a feature
        there = {column for _, schema in schemas for column in schema.names}
        others = [column for column in (*labels.source.columns, name) if column in there]
        roles = replace(roles, label=None, exclude=tuple(dict.fromkeys([*roles.exclude, *others])))
    if not schemas:
        opened.check("data", paths, ())
    features, schema, problems = check_features(schemas, roles, setting, known)
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
    schemas: Sequence[tuple[str, pa.Schema]], roles: Roles, setting: str, known: Sequence[Feature] | None
) -> tuple[list[Feature], pa.Schema, list[str]]:
    """The features, the types of all used columns, and what is wrong with them."""
    first = schemas[0][1]
    wanted = dict(roles.named())
    taken = {name for name, role in roles.named() if role != "data.categories"}
    others = [name for name in first.names if name not in taken]
    names = others if roles.features is None else list(roles.features)
    if known is not None:
        names = [feature.name for feature in known]
    for name in names:
        wanted.setdefault(name, f"a feature of {setting}.path")
    kinds = dict(known) if known is not None else {}
    found = {name: type_of(name, role, schemas) for name, role in wanted.items()}
    types = {name: kind for name, (kind, _) in found.items() if kind is not None}
    problems = [problem for _, problem in found.values()]
    features = []
    for name in names:
        if name in types:
            kind, problem = _feature_kind(name, types[name], roles, kinds.get(name))
            problems.append(problem)
            features.append(Feature(name, kind))
    problems += [_role_problem(roles, role, types) for role in ("label", "row_id", "group", "time")]
    if not names:
        problems.append(
            f"expected feature columns, found none beside {examples(list(wanted), 5)}: set data.features"
        )
    return features, pa.schema(list(types.items())), [problem for problem in problems if problem]


def _feature_kind(name: str, kind: pa.DataType, roles: Roles, known: str | None) -> tuple[str, str]:
    """A feature's kind, and what is wrong with it."""
    values = kind.value_type if pa.types.is_dictionary(kind) else kind
    number = _is_number(values) or pa.types.is_boolean(values)
    codes = name in roles.categories and (pa.types.is_integer(values) or pa.types.is_boolean(values))
    category = _is_text(values) or pa.types.is_dictionary(kind) or codes
    if name in roles.categories and not category:
        return CATEGORY, f"column '{name}' (data.categories): expected text or whole numbers, found {kind}"
    found = CATEGORY if category else NUMBER
    if pa.types.is_null(kind):
        return found, f"column '{name}': expected values, found nulls alone: leave it out (data.exclude)"
    if not (number or category):
        return found, (
            f"column '{name}': expected a feature of numbers, booleans or text, found {kind}: leave it out "
            "(data.exclude), or convert it"
        )
    if known is not None and known != found and not (known == CATEGORY and pa.types.is_integer(values)):
        return found, f"column '{name}': the classifier was trained with a {known} here, found {kind}"
    return known or found, ""


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


_ROLE_TYPES = {
    "label": "booleans, or numbers 0 and 1",
    "row_id": "whole numbers or text",
    "group": "whole numbers, text or booleans",
    "time": "timestamps, dates or numbers",
}


def _role_problem(roles: Roles, role: str, types: dict[str, pa.DataType]) -> str:
    name = getattr(roles, role)
    if name is None or name not in types:
        return ""
    kind = types[name].value_type if pa.types.is_dictionary(types[name]) else types[name]
    number, text = _is_number(kind), _is_text(kind)
    fits = {
        "label": number or pa.types.is_boolean(kind),
        "row_id": pa.types.is_integer(kind) or text,
        "group": pa.types.is_integer(kind) or text or pa.types.is_boolean(kind),
        "time": number or (pa.types.is_temporal(kind) and not pa.types.is_duration(kind)),
    }[role]
    if fits:
        return ""
    return f"column '{name}' (data.{role}): expected {_ROLE_TYPES[role]}, found {types[name]}"


def read_batches(
    table: FeatureTable,
    path: str,
    row_groups: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    counts: LabelCounts | None = None,
) -> Iterator[pa.RecordBatch]:
    """A file's rows, batch by batch, with only the used columns read.

    counts : of labels that are joined, to add to

    Raises
    ------
    InputRejectedError
        The file was changed, breaks off, or its pages do not decode.
    """
    log = table.log
    seen = next(file.seen for file in log.files if file.path == path)
    with open_parquet(log.filesystem, path, seen) as parquet:
        groups = range(parquet.num_row_groups) if row_groups is None else row_groups
        columns = table.names if names is None else names
        batches = log_files.read_batches(parquet, path, columns, groups, BATCH_ROWS)
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
    """Rows as a classifier sees them.

    Returns
    -------
    pandas.DataFrame
        Numbers and booleans are float64, NaN where null; categories are text, None where null.
    """
    import pandas as pd

    columns = {}
    for name, kind in features:
        column = table.column(name)
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        columns[name] = numbers(column) if kind == NUMBER else pd.Series(_texts(column), dtype=object)
    return pd.DataFrame(columns, copy=False)


def _texts(column: pa.Array) -> npt.NDArray[np.object_]:
    encoded = as_text(column).dictionary_encode()
    values = np.array([*encoded.dictionary.to_pylist(), None], dtype=object)
    found: npt.NDArray[np.object_] = values[encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
    return found


def as_text(column: pa.Array) -> pa.Array:
    """A column of text, booleans or whole numbers as text."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(pa.string())
