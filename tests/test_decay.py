"""Decay: a window with a half-life equals a fit of the raw log whose rows have the factors as weights."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.config.jobs import FitConfig
from pipeline.sort.decay import factor
from tests.test_day_parts import put, rows_of
from tests.test_windows import content, manifest, run, window

KINDS = {
    "isotonic": {},
    "bbq": {"calibrator": {"method": "bbq"}},
    "grid": {"score_table": {"grid": "1e-2"}},
    "segments": {"log": {"segment": ["model"]}, "segments": {"min_rows": 20, "min_positives": 2}},
    "platt and segments": {
        "log": {"segment": ["model"]},
        "segments": {"min_rows": 20, "min_positives": 2},
        "calibrator": {"method": "platt"},
    },
}


def with_factors(table: pa.Table, age: int, half_life: int, weights=None) -> pa.Table:
    own = np.ones(table.num_rows) if weights is None else weights
    return table.set_column(table.column_names.index("w"), "w", pa.array(own * factor(age, half_life)))


def merged(kind: str) -> dict:
    sections = KINDS[kind]
    return {**sections, "log": {**sections.get("log", {}), "weight": "w"}}


@pytest.mark.parametrize("kind", KINDS)
def test_equals_a_weighted_fit(tmp_path, kind):
    for day in range(5):
        put(tmp_path / "log", day, "a", rows_of(day, rows=300))
        put(tmp_path / "raw-log", day, "a", with_factors(rows_of(day, rows=300), 4 - day, 3))
    found = run(tmp_path, tmp_path / "log", window=window("5d", half_life="3d"), **KINDS[kind])
    expected = run(tmp_path, tmp_path / "raw-log", "raw", **merged(kind))
    assert content(found) == content(expected)
    assert manifest(found)["window"]["half_life"] == 3
    # It was kept as it is: without a half-life nothing is sorted again.
    plain = run(tmp_path, tmp_path / "log", window=window("5d"), **KINDS[kind])
    assert plain["window"]["days_sorted"] == 0
    assert content(plain) == content(run(tmp_path, tmp_path / "log", "plain", **KINDS[kind]))


def test_rows_with_weights_of_their_own(tmp_path):
    rng = np.random.default_rng(0)
    for day in range(3):
        weights = rng.integers(1, 1000, 200) / 8
        table = rows_of(day, rows=200)
        put(tmp_path / "log", day, "a", table.set_column(2, "w", pa.array(weights)))
        put(tmp_path / "raw-log", day, "a", with_factors(table, 2 - day, 1, weights))
    weighted = {"log": {"weight": "w"}}
    found = run(tmp_path, tmp_path / "log", window=window("3d", half_life="1d"), **weighted)
    assert content(found) == content(run(tmp_path, tmp_path / "raw-log", "raw", **weighted))


@given(st.integers(0, 300), st.integers(1, 400))
def test_factors_have_sixteen_bits_and_are_next_to_exact(age, half_life):
    found = factor(age, half_life)
    assert 0 < found <= 1
    assert Fraction(found).numerator < 2**16 + 1
    assert found == pytest.approx(2.0 ** (-age / half_life), rel=2.0**-16)
    assert factor(age + 1, half_life) <= found


def test_it_only_goes_with_a_window():
    with pytest.raises(ValueError, match="only goes with"):
        FitConfig.model_validate(
            {"log": {"path": "log"}, "store": {"path": "store", "table": "t"}, "window": {"half_life": "7d"}}
        )


def test_a_half_life_that_makes_rows_vanish_is_refused(tmp_path):
    put(tmp_path / "log", 0, "a", rows_of(0))
    with pytest.raises(ValueError, match="at least a 300th"):
        run(tmp_path, tmp_path / "log", window=window("301d", half_life="1d"))
