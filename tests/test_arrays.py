"""Columns made without pandas, against Arrow's own."""

import datetime as dt
import math
import subprocess
import sys

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


@pytest.mark.system
@pytest.mark.skipif(int(pa.__version__.partition(".")[0]) < 26, reason="PyArrow 20 imports it to make arrays")
def test_a_fit_of_segments_does_not_import_pandas(tmp_path):
    """It takes some tenths of a second to import."""
    rows = 500
    columns = {
        "score": pa.array([i / rows for i in range(rows)]),
        "label": pa.array([i % 3 == 0 for i in range(rows)]),
        "model": pa.array([f"m{i % 4}" for i in range(rows)]),
        "day": pa.array([dt.date(2026, 1, 1 + i % 2) for i in range(rows)]),
    }
    pa.parquet.write_table(pa.table(columns), tmp_path / "log.parquet")
    settings = {
        "log.path": tmp_path / "log.parquet",
        "log.segment": "[model, day]",
        "segments.min_rows": 1,
        "segments.min_positives": 1,
        "store.path": tmp_path / "store",
        "store.table": "t",
        "gate": "{min_rows: 0, min_positives: 0, ranking: false, holdout: none}",
        "scratch": tmp_path,
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    code = (
        "import sys\nfrom jobs.cli import main\ntry:\n    main()\nexcept SystemExit as end:\n"
        "    print(end.code, sorted({'pandas', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "fit", *words], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr


@pytest.mark.parametrize("values", [[], [1.5], [math.nan], [0.0, math.nan, -math.inf] * 7])
def test_what_is_nan_is_null(values):
    found = nullable_column(np.array(values, np.float64))
    found.validate(full=True)
    assert found.equals(pa.array([None if math.isnan(v) else v for v in values], pa.float64()))
