"""Measures of many columns at once: those of each alone, in one part or in several."""

from __future__ import annotations

import numpy as np
import pytest
from common import over

from calibrators.arithmetic.passes import Points, collapse
from calibrators.measures.certainty import certainty, error_bars
from calibrators.measures.decomposition import chance_error, debiased_squared_error
from calibrators.measures.predictions import MEASURES, assess
from pipeline.evaluate import segment_numbers
from pipeline.evaluate.evaluation import Sizes
from pipeline.sort.shuffle import Slices

EDGES = np.array([0.0, 1.0, 0.5, 0.1, 0.2, 0.3, 1e-70, 1e-300, 5e-324, 1 - 2**-53, np.nextafter(0.3, 1)])


def column(rng: np.random.Generator, weighted: bool = False) -> Points:
    """Rows of any kind: one alone, ties, many rows a prediction, one label, predictions at edges, scores."""
    rows = int(rng.integers(1, rng.choice([3, 12, 60, 900])))
    few = rng.random(rng.integers(1, 6))
    values = (EDGES, few, rng.random(400), np.round(rng.random(400), 2), 4 * rng.random(50) - 2)[
        rng.integers(5)
    ]
    score = rng.choice(values, rows)
    label = rng.random(rows) < rng.choice([0.0, 0.05, 0.5, 1.0])
    weight = rng.integers(1, 10 ** rng.integers(1, 6), rows).astype(float) if rng.integers(2) else None
    if weighted:
        weight = rng.gamma(2.0, size=rows) * 10.0 ** rng.integers(-3, 4)
    return collapse(score, label, weight)


def together(columns: list[Points]) -> Slices:
    starts = np.concatenate([[0], np.cumsum([one.score.size for one in columns])])
    return Slices([np.concatenate(each) for each in zip(*columns, strict=True)], starts)


def columns_of(seed: int, *, proper: bool, weighted: bool = False) -> list[Points]:
    rng = np.random.default_rng(seed)
    found = [column(rng, weighted) for _ in range(150)]
    return [one for one in found if not proper or (one.score[0] >= 0 and one.score[-1] <= 1)]


@pytest.mark.parametrize("weighted", [False, True])
def test_measures_are_those_of_each_column(weighted, monkeypatch):
    monkeypatch.setattr(segment_numbers, "ENOUGH", 10)
    columns = columns_of(3, proper=True, weighted=weighted)
    found = segment_numbers.segment_task_of(Sizes(), weighted, tests=True).small(together(columns))
    lines = 0
    for own, numbers in zip(columns, found, strict=True):
        row = dict(zip(segment_numbers.FIELDS, numbers.tolist(), strict=True))
        wanted, bars = assess(*own, rows=0 if weighted else None), error_bars(*own)
        values = {name: getattr(wanted.measures, name) for name in MEASURES}
        values |= {name: getattr(wanted, name) for name in ("mean_prediction", "weight", "positives")}
        values |= {name: getattr(bars, name) for name in ("auc_error", "spiegelhalter_z", "score_test_p")}
        values["chance_error"] = chance_error(wanted.by_frequency)
        values["debiased_squared_error"] = debiased_squared_error(wanted.by_frequency)
        if min(wanted.positives, wanted.weight - wanted.positives) >= 10:
            sure = certainty(*own)
            for loss in ("brier", "log_loss"):
                for part in ("miscalibration", "discrimination"):
                    values[f"{loss}_{part}"] = getattr(getattr(sure.decomposition, loss), part)
            for name in ("intercept", "intercept_error", "slope", "slope_error", "ici"):
                values[name] = getattr(sure.agreement, name)
            lines += sure.agreement.slope is not None
        for name, value in values.items():
            if name in row:
                # Of groups whose numbers have been rounded before.
                rtol = 1e-9 if name in ("chance_error", "debiased_squared_error") else 1e-11
                np.testing.assert_allclose(
                    row[name], np.nan if value is None else value, rtol=rtol, atol=1e-13, err_msg=name
                )
    assert lines > 10


@pytest.mark.parametrize(
    ("tests", "weighted", "rate"), [(False, False, 1.0), (True, False, 0.2), (True, True, 1.0)]
)
def test_a_segment_in_several_parts_is_measured_as_in_one(tests, weighted, rate, monkeypatch):
    monkeypatch.setattr(segment_numbers, "ENOUGH", 10)
    columns = columns_of(7, proper=tests, weighted=weighted)[:60]
    segment_task = segment_numbers.segment_task_of(Sizes(sampling_rate=rate), weighted, tests=tests)
    found = segment_task.small(together(columns))
    rng = np.random.default_rng(1)
    for own, numbers in zip(columns, found, strict=True):
        run = over(own, *rng.integers(0, own.score.size, 3))
        again = segment_task.large(own.score.size, run)[0]
        np.testing.assert_allclose(again, numbers, rtol=1e-11, atol=1e-13)


def test_no_segments_have_no_rows():
    none = Slices([np.empty(0)] * 3, np.array([0]))
    assert segment_numbers.segment_task_of(Sizes(), False, tests=True).small(none).shape == (
        0,
        len(segment_numbers.FIELDS),
    )
