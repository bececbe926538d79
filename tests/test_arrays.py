"""Columns made without pandas, against Arrow's own."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logcal.arrow_columns import column_of, nullable_column

KINDS = {
    pa.string(): st.text("ab\0é🦓"),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float64(): st.floats(allow_nan=False),
}


@pytest.mark.parametrize("kind", KINDS, ids=str)
@given(data=st.data())
def test_columns_are_those_that_arrow_makes(kind, data):
    values = data.draw(st.lists(st.none() | KINDS[kind], max_size=20))
    found = column_of(values, kind)
    found.validate(full=True)
    assert found.equals(pa.array(values, kind))


@pytest.mark.parametrize("values", [[], [1.5], [math.nan], [0.0, math.nan, -math.inf] * 7])
def test_what_is_nan_is_null(values):
    found = nullable_column(np.array(values, np.float64))
    found.validate(full=True)
    assert found.equals(pa.array([None if math.isnan(v) else v for v in values], pa.float64()))
