"""The evaluation on real score tables, in any number of parts, and the sentences that say what changed."""

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from common import evaluate, over, write_lookup

from calibrators import CalibrationMap, Isotonic
from calibrators.arithmetic.passes import collapse
from calibrators.measures.predictions import Assessment, Measures, assess
from pipeline.evaluate.evaluation import (
    MEASURE_FACTS,
    Evaluation,
    change_errors,
    changes,
    headline,
    jsonable,
    points,
    ranking,
    run_document,
)
from pipeline.execution import InlineExecutor
from pipeline.files.records import to_json
from pipeline.log.logs import Columns, open_log
from pipeline.sort import run_files
from pipeline.sort.score_table import SortPlan, build_score_table
from pipeline.table.lookup_table import Predictor


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(5)
    score = rng.beta(0.6, 1.2, 6000).round(3)
    return score, (rng.random(6000) < score**1.7).astype(np.int8), rng.gamma(2.0, size=6000)


@pytest.fixture
def log(data, tmp_path):
    score, label, weight = data
    (tmp_path / "log").mkdir()
    for i in range(3):
        rows = slice(2000 * i, 2000 * (i + 1))
        table = {"score": score[rows], "label": label[rows], "weight": weight[rows]}
        pq.write_table(pa.table(table), tmp_path / "log" / f"{i}.parquet")
    return str(tmp_path / "log")


def table_runner(log, folder, *, weight=None, bytes_each=2000, lookup=None):
    folder.mkdir()
    plan = SortPlan(folder, write=folder / "table", run_rows=1000, bucket_bytes=bytes_each, lookup=lookup)
    table, _ = build_score_table(open_log(log, Columns("score", "label", weight)), plan, InlineExecutor())
    return table, partial(table.run, executor=InlineExecutor())


@pytest.mark.parametrize("weighted", [False, True])
def test_a_table_in_parts_gives_the_bits_of_memory(data, log, tmp_path, weighted, monkeypatch):
    monkeypatch.setattr(run_files, "SAMPLE_STRIDE", 16)
    score, label, weight = data
    weight = weight if weighted else None
    table, run = table_runner(log, tmp_path / "a", weight="weight" if weighted else None)
    assert len(table.parts) > 5
    assert [part.first for part in table.parts] == sorted(part.first for part in table.parts)
    fitted = Isotonic().fit(score[::2], label[::2]).calibration_map_
    found = evaluate(run, Predictor(write_lookup(tmp_path / "lookup.parquet", fitted)), rows=table.used)
    whole, run_whole = table_runner(
        log, tmp_path / "b", weight="weight" if weighted else None, bytes_each=1 << 20
    )
    assert len(whole.parts) == 1
    assert found == evaluate(run_whole, fitted, rows=table.used)
    assert found == evaluate(run_whole, fitted.predict, rows=table.used)
    positives = label if weight is None else label * weight
    for side, p in ((found.before, score), (found.after, fitted.predict(score))):
        expected = assess(p, weight, positives, rows=score.size).measures
        for name in MEASURE_FACTS:
            assert getattr(side.measures, name) == pytest.approx(getattr(expected, name), rel=1e-12)
    assert found.before.weighted is weighted
    assert (found.rows, found.weight) == (6000, found.after.weight)


def test_a_map_that_decreases_needs_a_table_of_its_own(data, log, tmp_path):
    score, label, _ = data
    falling = CalibrationMap.from_bins(np.array([0.5]), np.array([0.8, 0.2]), np.ones(2), np.ones(2))
    _, run = table_runner(log, tmp_path / "a")
    with pytest.raises(ValueError, match="do not decrease"):
        evaluate(run, falling)
    _, run_after = table_runner(
        log, tmp_path / "b", lookup=write_lookup(tmp_path / "lookup.parquet", falling)
    )
    found = evaluate(run, run_after=run_after, rows=6000)
    assert found.before == assess(score, None, label, rows=6000)
    assert found.after == assess(falling.predict(score), None, label, rows=6000)


def test_tables_of_different_rows_are_refused():
    def run_of(labels):
        return over(collapse(np.linspace(0, 1, len(labels)), labels))

    with pytest.raises(ValueError, match=r"same rows, found positives 1\.0 before and 2\.0 after"):
        evaluate(run_of([0, 1, 0]), run_after=run_of([1, 1, 0]))


def test_scores_that_are_not_probabilities_become_some(data):
    score, label, _ = data
    margin = score * 20 - 10
    points = collapse(margin, label)
    fitted = Isotonic().fit(margin, label).calibration_map_
    found = evaluate(over(points), fitted)
    assert not found.before.probabilities
    assert found.before.measures.brier is None
    assert found.after == assess(fitted.predict(margin), None, label)
    assert headline(found).startswith("The scores are not probabilities;")


def measured(**values):
    return replace(Measures(*[0.5] * len(MEASURE_FACTS)), **values)


def beside(before, after):
    """An evaluation that knows measures and nothing else."""
    sides = [
        Assessment(1.0, 0.5, False, 0.0, 1.0, 0.5, measures, (), (), None) for measures in (before, after)
    ]
    return Evaluation(None, *sides)


def test_a_change_is_better_or_worse_beyond_its_error():
    """Beside the paired differences of the rows."""
    random = np.random.default_rng(0)
    x = random.normal(-1, 1.2, 20_000)
    label = random.random(x.size) < 1 / (1 + np.exp(-x))
    score = 1 / (1 + np.exp(-1.3 * x - 0.2))
    points = collapse(score, label)
    found = evaluate(
        over(points), lambda p: 1 / (1 + np.exp(-(np.log(p / (1 - p)) - 0.2) / 1.3)), rows=x.size
    )
    errors = change_errors(found)
    a = 1 / (1 + np.exp(-x))
    losses = [[(p - label) ** 2, -np.log(np.where(label, p, 1 - p))] for p in (score, a)]
    for name, before, after in zip(("brier", "log_loss"), *losses, strict=True):
        expected = np.std(after - before) / np.sqrt(x.size)
        assert errors[name] == pytest.approx(expected, rel=0.15)
    verdicts = {change.name: change.verdict for change in changes(found)}
    assert verdicts["log_loss"] == verdicts["ece_frequency"] == "better"
    # A bin of few rows says little: its own error counts, not that of the groups of equally many rows.
    fewest = min((group for group in found.after.by_width if group.weight), key=lambda group: group.weight)
    assert errors["mce_width"] >= 0.9 * np.sqrt(
        fewest.mean_prediction * (1 - fewest.mean_prediction) / fewest.weight
    )
    assert errors["mce_width"] > 2 * errors["mce_frequency"]
    assert verdicts["auc"] == "unchanged"
    # A map that is a little off on few rows is not measurably worse.
    few = collapse(a[:500], label[:500])
    found = evaluate(over(few), lambda p: np.clip(p * 1.02, 0, 1), rows=500)
    verdicts = {change.name: change.verdict for change in changes(found)}
    assert {verdicts[name] for name in ("brier", "log_loss", "ece_frequency")} <= {
        "may be chance",
        "unchanged",
    }
    assert headline(found).startswith("Calibration changed little")


def test_changes_know_which_direction_is_better():
    before = measured(log_loss=math.inf, auc=0.8, brier=0.2, rmse=None)
    after = measured(log_loss=0.3, auc=0.7, brier=0.1, accuracy=0.50004)
    found = {change.name: change for change in changes(beside(before, after))}
    assert list(found) == list(MEASURE_FACTS)
    verdicts = {name: change.verdict for name, change in found.items()}
    assert {name: verdict for name, verdict in verdicts.items() if verdict != "unchanged"} == {
        "log_loss": "better",
        "brier": "better",
        "rmse": "",
        "auc": "worse",
    }
    assert found["log_loss"].difference is None
    assert found["auc"].difference == pytest.approx(-0.1)
    both = changes(beside(measured(log_loss=math.inf), measured(log_loss=math.inf)))
    assert [c.verdict for c in both if c.name == "log_loss"] == ["unchanged"]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (0.145, 0.009, "off by 14.5 percentage points on average; after calibration, by 0.90."),
        (0.01, 0.02, "made the probabilities worse: they lie 2.0 percentage points"),
        (0.01, 0.01, "changed little: the probabilities lie 1.0 percentage points"),
        (None, 0.01, "The scores are not probabilities; calibrated, they are probabilities that lie 1.0"),
        (0.01, None, "are not probabilities"),
    ],
)
def test_the_headline_says_what_changed(before, after, said):
    assert said in headline(beside(measured(ece_frequency=before), measured(ece_frequency=after)))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (0.9, 0.9, "did not change (AUC 0.900)"),
        (0.9, 0.85, "fell from 0.900 to 0.850"),
        (0.9, 0.9003, "rose from 0.9000 to 0.9003"),
        (None, None, ""),
    ],
)
def test_the_ranking_is_spoken_of(before, after, said):
    found = ranking(beside(measured(auc=before), measured(auc=after)))
    assert said in found
    assert bool(said) == bool(found)


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0.0"), (0.1234, "12.3"), (0.0123, "1.2"), (0.00123, "0.12"), (0.000123, "0.012"), (1.0, "100.0")],
)
def test_percentage_points_have_two_digits(share, text):
    assert points(share) == text


def test_the_run_document_is_strict_json():
    points = collapse([0.0, 0.2, 0.7, 0.7], [1, 0, 1, 0])
    steps = CalibrationMap.from_bins(np.array([0.5]), np.array([0.5, 0.5]), np.ones(2), np.ones(2))
    found = evaluate(over(points), steps, rows=4)
    assert found.before.measures.log_loss == math.inf
    facts = {
        "path": Path("a/b"),
        "seconds": np.float64(1.5),
        "limit": math.inf,
        "files": ("a", None),
        "n": {1: True},
    }
    document = json.loads(to_json(run_document(found, facts)), parse_constant=pytest.fail)
    assert document["facts"] == {
        "path": "a/b",
        "seconds": 1.5,
        "limit": "Infinity",
        "files": ["a", None],
        "n": {"1": True},
    }
    before = document["evaluation"]["before"]
    assert before["measures"]["log_loss"] == "Infinity"
    assert "probability 0" in before["measures"]["reasons"]["log_loss"]
    assert len(before["by_width"]) == 10
    assert sum(before["histogram"]["weight"]) == 4
    assert document["evaluation"]["rows"] == 4
    assert jsonable(found)["rows"] == 4
