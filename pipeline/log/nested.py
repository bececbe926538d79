"""Fields of structs as columns: `pred.score` is the field `score` of the column `pred`; a column of that name wins."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa


def with_fields(schema: pa.Schema, names: Iterable[str]) -> pa.Schema:
    """Add to a file's schema those of the named columns that are fields of structs."""
    for name in dict.fromkeys(names):
        if name not in schema.names and (kind := _field_type(schema, name)) is not None:
            schema = schema.append(pa.field(name, kind))
    return schema


def _field_type(schema: pa.Schema, name: str) -> pa.DataType | None:
    column, *fields = name.split(".")
    if not fields or schema.names.count(column) != 1:
        return None
    kind = schema.field(column).type
    for field in fields:
        if not pa.types.is_struct(kind) or kind.get_field_index(field) < 0:
            return None
        kind = kind.field(field).type
    return kind


def with_columns(batch: pa.RecordBatch, names: Iterable[str]) -> pa.RecordBatch:
    """Add to a batch, which has the structs, the columns that `with_fields` adds to the schema."""
    for name in names:
        if name in batch.schema.names or _field_type(batch.schema, name) is None:
            continue
        # Imported here because it takes some hundredths of a second, and few logs have structs.
        import pyarrow.compute as pc

        column, *fields = name.split(".")
        batch = batch.append_column(name, pc.struct_field(batch.column(column), fields))
    return batch
