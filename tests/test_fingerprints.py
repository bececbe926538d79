"""Fingerprints of tables with segments are those of one JSON text, however it is put together."""

from __future__ import annotations

import datetime as dt
import hashlib
import json

import numpy as np
import pyarrow as pa
import pytest

from logcal import fingerprints, schema
from logcal.fingerprints import as_json, segmented_fingerprint

FACTS = {"method": "isotonic", "segments": ["a"]}
TEXTS = ["plain", "", None, 'a "quotation"', "back\\slash", "line\n", "\x7f", "Zürich", "名前", "😀", "null"]


def expected(types, keys, rows, maps, segments):
    """As the format says it: `json.dumps` of Python's lists."""
    digest = hashlib.sha256(f"1\n{as_json(FACTS)}\n".encode())
    lists = [list(key) for key in zip(*(column.to_pylist() for column in keys), strict=True)]
    digest.update(json.dumps([[str(kind) for kind in types], lists, rows.tolist()], default=str).encode())
    for column in maps.values():
        digest.update(column.tobytes())
    for name, column in zip(segments.schema.names, segments.columns, strict=True):
        digest.update(json.dumps([name, column.to_pylist()], default=str).encode())
    return digest.hexdigest()


def columns_of(rng, n):
    """Columns of each type, with nulls."""
    numbers = np.concatenate([rng.normal(size=n), [0.0, -0.0, 1.0, 1e-7, 1e300, 5e-324, 1e16, 0.1]])[-n:]
    days = [dt.date(1970, 1, 1) + dt.timedelta(days=int(day)) for day in rng.integers(-900, 9000, n)]
    ends = np.array([-(2**63), 2**63 - 1, 0, -1])
    columns = [
        pa.array(rng.choice(np.array(TEXTS, object), n).tolist(), pa.string()),
        pa.array([f"name-{i}" for i in range(n)], pa.string()),
        pa.array(rng.choice(ends, n), pa.int64()),
        pa.array(rng.integers(0, 2**64, n, np.uint64), pa.uint64()),
        pa.array((rng.random(n) < 0.5).tolist(), pa.bool_()),
        pa.array(days, pa.date32()),
        pa.array(numbers, pa.float64()),
        pa.array(np.zeros(n), pa.float64()),
        pa.nulls(n, pa.string()),
    ]
    gone = pa.array(rng.random(n) < 0.2)
    return [
        *columns,
        *(
            pa.array([None if o else v for v, o in zip(c.to_pylist(), gone.to_pylist(), strict=True)], c.type)
            for c in columns[1:6]
        ),
    ]


@pytest.mark.parametrize("n", [1, 7, 8, 9, 40])
@pytest.mark.parametrize("together", [1, 8, 1 << 16])
def test_the_fingerprint_is_that_of_one_text(monkeypatch, n, together):
    monkeypatch.setattr(fingerprints, "_AT_ONCE", together)
    rng = np.random.default_rng(n)
    columns = columns_of(rng, n)
    segments = pa.table({str(i): column for i, column in enumerate(columns)})
    maps = {name: rng.normal(size=3) for name in schema.LOOKUP_TABLE.names}
    rows = rng.integers(0, 9, n)
    for keys in ([columns[0]], [columns[1]], [columns[0], columns[2], columns[5]], columns):
        types = [column.type for column in keys]
        found = segmented_fingerprint(FACTS, types, keys, rows, maps, segments)
        assert found == expected(types, keys, rows, maps, segments)
        halves = pa.concat_tables([segments.slice(0, n // 2), segments.slice(n // 2)])
        assert segmented_fingerprint(FACTS, types, keys, rows, maps, halves) == found


def test_parts_of_columns_are_read_as_they_are():
    names = pa.array(["x", *TEXTS, "y"], pa.string()).slice(1, len(TEXTS))
    segments = pa.table({"a": names, "b": pa.array(np.arange(20.0)).slice(3, len(TEXTS))})
    maps = {name: np.ones(1) for name in schema.LOOKUP_TABLE.names}
    rows = np.arange(len(TEXTS))
    found = segmented_fingerprint(FACTS, [names.type], [names], rows, maps, segments)
    assert found == expected([names.type], [names], rows, maps, segments)
