"""Score transforms."""

import hashlib

import numpy as np
import pytest

from logcal.errors import ConfigError
from logcal.schema import apply_transform

GRID = np.arange(-800 * 64, 800 * 64 + 1) / 64


def test_none_changes_nothing_but_the_type():
    scores = np.array([3, -1, 7], dtype=np.int16)
    result = apply_transform(scores, "none")
    assert result.dtype == np.float64
    assert result.tolist() == [3.0, -1.0, 7.0]


def test_sigmoid_is_within_two_units_in_the_last_place():
    result = apply_transform(GRID, "sigmoid")
    x = GRID.astype(np.longdouble)
    e = np.exp(-np.abs(x))
    expected = np.where(x >= 0, 1 / (1 + e), e / (1 + e))
    error = np.abs(result - expected) / np.spacing(np.maximum(result, 5e-324))
    assert error.max() <= 2.0
    assert (np.diff(result) >= 0).all()


def test_sigmoid_has_the_same_bits_on_every_machine():
    digest = hashlib.sha256(apply_transform(GRID, "sigmoid").astype("<f8").tobytes()).hexdigest()
    assert digest == "7c8efbca6ae0a852c2a82a168f1f9c98aac88a7b19a96bf6d29f74869f0b9b4b"


def test_sigmoid_at_the_ends():
    result = apply_transform([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e308, -1e308, -745.0], "sigmoid")
    np.testing.assert_array_equal(result, [np.nan, 1.0, 0.0, 0.5, 0.5, 1.0, 0.0, 5e-324])


def test_unknown_transform_is_named():
    with pytest.raises(ConfigError, match=r"log\.score_transform: expected one of none, sigmoid, found"):
        apply_transform([0.0], "logit")
