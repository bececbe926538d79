"""The fit job against the calibrators in memory, for every method, in many parts."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from common import ANY_TABLE, prepared, wave, write_log

from calibrators import METHODS
from calibrators.core.sampling import odds_divided
from calibrators.near_isotonic import model_search
from logcal.reading import read_table
from pipeline.execution import InlineExecutor
from pipeline.fit.calibration import make_calibrator
from pipeline.sort import score_table

# What these look at besides scores and labels comes with a generated log.
WITH_SCORES_ALONE = sorted(set(METHODS) - {"dg", "dgg"})


@pytest.fixture(scope="module")
def rows():
    generator = np.random.default_rng(3)
    score = generator.random(4000).round(3)
    label = generator.random(4000) < wave(score)
    return score, label, generator.exponential(size=4000)


def planned(tmp_path, *more):
    store = {"path": tmp_path / "store", "table": "t"}
    return prepared("fit", *more, log={"path": tmp_path / "log"}, store=store, gate=ANY_TABLE)


def fitted(tmp_path, table, *more):
    write_log(tmp_path / "log", table)
    return planned(tmp_path, *more).execute(InlineExecutor())


def manifest_of(summary):
    return json.loads(Path(summary["lookup_path"]).with_name("manifest.json").read_text())


def bytes_of(value):
    """Bytes of the arrays and numbers in a state of a pass."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, (tuple, list)):
        return sum(map(bytes_of, value))
    if isinstance(value, dict):
        return sum(map(bytes_of, value.values()))
    return sum(map(bytes_of, vars(value).values())) if hasattr(value, "__dict__") else 8


@pytest.mark.parametrize("method", [*WITH_SCORES_ALONE, "dgg"])
def test_a_plan_says_what_a_fit_gathers_at_most(tmp_path, monkeypatch, method):
    """Also where no two scores can be pooled."""
    n = 3000
    score = np.repeat(np.arange(n) / n, 2)
    weight = np.stack([n - np.arange(n), np.arange(n) + 1], axis=1).ravel() / n
    write_log(tmp_path / "log", {"score": score, "label": np.tile([0, 1], n), "w": weight})
    monkeypatch.setattr(score_table.SortPlan, "within", lambda plan, *sizes: small(plan))
    plan = planned(tmp_path, "log.weight=w", "gate.holdout=null", f"calibrator.method={method}")
    most = plan.plan.facts["max_gathered_bytes"]
    assert any("at most" in stage and "in one process" in stage for stage in plan.plan.stages)
    sizes = []

    def weighed(combine):
        return lambda states: sizes.append(bytes_of(states)) or combine(states)

    combined, run_parts = score_table._combine, score_table.run_parts
    monkeypatch.setattr(
        score_table,
        "_combine",
        lambda total, merged, combine, grid: combined(total, merged, combine and weighed(combine), grid),
    )
    monkeypatch.setattr(
        score_table,
        "run_parts",
        lambda parts, request, *how: run_parts(
            parts, replace(request, combine=weighed(request.combine)), *how
        ),
    )
    manifest = manifest_of(plan.execute(InlineExecutor()).summary)
    assert manifest["max_gathered_bytes"] == most >= max(sizes)
    if method == "isotonic":
        assert max(sizes) >= 32 * n


def test_a_manifest_says_where_the_path_of_enir_began(tmp_path, monkeypatch):
    monkeypatch.setattr(model_search, "KEEP", 64)
    generator = np.random.default_rng(4)
    score = generator.random(20_000)
    label = generator.random(20_000) < 0.3 + 0.4 * score
    outcome = fitted(tmp_path, {"score": score, "label": label}, "calibrator.method=enir")
    found = manifest_of(outcome.summary)["path"]
    assert found["path_begins_at"] > 0
    assert 1 < found["blocks"] < 10_000
    # Whoever is so much less likely than the best has no weight.
    assert found["log_likelihood_ratio_before"] > 12 * np.log(10)


def test_a_log_of_sampled_negatives_gives_the_map_of_all_rows(tmp_path, rows):
    score, label, _ = rows
    outcome = fitted(
        tmp_path,
        pa.table({"score": score, "label": label}),
        "calibrator.method=isotonic",
        "log.negative_sampling_rate=0.02",
        "log.positive_sampling_rate=0.5",
    )
    published = read_table(outcome.summary["lookup_path"])
    raw = make_calibrator("isotonic", {}).fit(score, label)
    expected = odds_divided(raw.predict(score), 0.04)
    np.testing.assert_allclose(published.map.predict(score), expected, rtol=0, atol=5e-8)
    assert published.facts.data["sampling_rate"] == 0.04
    assert published.map.weight.sum() == score.size


def test_auto_gives_all_rows_of_a_log_with_segments_the_same_map_and_says_what_it_chose(tmp_path, rows):
    score, label, _ = rows
    table = pa.table({"score": score, "label": label, "part": np.arange(score.size) % 3})
    maps, chosen = [], []
    for name, settings in (("plain", ()), ("segments", ("log.segment=part",))):
        (tmp_path / name).mkdir()
        outcome = fitted(tmp_path / name, table, "calibrator.method=auto", *settings)
        found = pq.read_table(outcome.summary["lookup_path"])
        if settings:
            found = found.filter(pc.equal(found["segment_level"], 0))
        maps.append(
            found.select(["score_lo", "score_hi", "prob_lo", "slope", "anchor", "weight", "positives"])
        )
        chosen.append(manifest_of(outcome.summary)["data"]["chosen"])
    assert maps[0].equals(maps[1])
    assert chosen[0] == chosen[1]


def test_weights_that_nobody_meant_as_counts_are_said(tmp_path, rows, caplog):
    score, label, weight = rows
    with caplog.at_level("WARNING", "logcal"):
        fitted(
            tmp_path, pa.table({"score": score, "label": label, "w": weight / weight.sum()}), "log.weight=w"
        )
    assert "the weights of 4,000 rows add up to 1:" in caplog.text
    assert "log.weight" in caplog.text


def small(plan):
    return score_table.replace(plan, run_rows=700, bucket_bytes=5000)


def test_a_rule_that_does_not_count_is_said(tmp_path, rows, caplog):
    score, label, _ = rows
    log = pa.table({"score": score, "label": label, "part": np.arange(score.size) % 2})
    fitted(tmp_path, log, "log.segment=part")
    fitted(tmp_path, log, "log.segment=part", "segments.min_rows=1000")  # as `days run` spells out all keys
    assert "segments.min_rows" not in caplog.text
    fitted(tmp_path, log, "log.segment=part", "segments.min_rows=10")
    assert "segments.min_rows has no effect with partial pooling" in caplog.text
