"""Hive folders: values of columns that stand in the names of folders, such as `country=DE/`, and not in the files."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from logcal.arrow_columns import as_column

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""What a folder is called whose value is null."""

_NULL = -1


def hive_value(path: str, key: str) -> str | None:
    """The value that a file's folders have for a key, the nearest one's; None where they have none."""
    for part in path.split("/")[-2::-1]:
        name, equals, value = part.partition("=")
        if equals and unquote(name) == key:
            return unquote(value)
    return None


def with_keys(schema: pa.Schema, path: str, names: Iterable[str]) -> pa.Schema:
    """A file's schema, and as strings those of some columns that only its folders have."""
    for name in names:
        if name not in schema.names and hive_value(path, name) is not None:
            schema = schema.append(pa.field(name, pa.string()))
    return schema


def with_values(batch: pa.RecordBatch, path: str, names: Iterable[str]) -> pa.RecordBatch:
    """A batch of a file's rows, and as columns of strings those that only its folders have."""
    for name in names:
        if name in batch.schema.names:
            continue
        value = hive_value(path, name)
        known = [] if value is None or value == NO_VALUE else [value]
        dictionary = pa.array(known, pa.string())
        rows = batch.num_rows
        indices = as_column(np.zeros(rows, np.int32)) if known else pa.nulls(rows, pa.int32())
        batch = batch.append_column(name, pa.DictionaryArray.from_arrays(indices, dictionary))
    return batch
