"""Maps that segments share are checked against the rows that use them, with the truth and plain sums as oracles."""

import json
import logging
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import expit

import logcal
from calibrators import Smooth
from logcal.errors import CheckFailedError
from logcal.reading import read_table
from pipeline.sort.score_cells import add_up_cells, middle_of
from pipeline.sort.score_table import SortPlan
from tests.common import ANY_TABLE, run_job, write_log

GATE = ANY_TABLE | {"agreement": True}


def log_of(large, small, *, odd=0.0, seed=0, rows=8000, few=150, apart=0.0):
    """Large segments, whose odds are moved by `odd`, and small ones, moved by `apart`."""
    random = np.random.default_rng([8, seed])
    segment = np.concatenate([np.repeat(np.arange(large), rows), large + np.repeat(np.arange(small), few)])
    z = random.normal(-1, 1.2, segment.size)
    truth = expit(
        z + np.where(segment < large, odd, apart) + 0.1 * random.normal(size=large + small)[segment]
    )
    label = (random.random(segment.size) < truth).astype(np.int8)
    return pa.table({"score": expit(z), "label": label, "a": segment.astype(np.int32)}), truth


def fit(root, table, method="smooth", gate=GATE, **more):
    write_log(root / "log", table, files=3)
    return run_job(
        "fit",
        log={"path": root / "log", "segment": [name for name in table.column_names if name in "ab"]},
        store={"path": root / "store", "table": "t"},
        calibrator={"method": method},
        segments={"min_rows": 1000, "shrinkage": "none"},
        gate=gate,
        scratch=root,
        **more,
    )


def manifest_of(root):
    return json.loads(max((root / "store").glob("t/versions/*/manifest.json")).read_text())


@pytest.mark.parametrize("method", ["smooth", "platt", "isotonic", "bbq"])
def test_odd_large_segments_leave_the_small_ones_alone(tmp_path, method, caplog):
    table, truth = log_of(2, 40, odd=-5.0)
    with caplog.at_level(logging.WARNING):
        fit(tmp_path, table, method)
    users = table["a"].to_numpy() >= 2
    assert f"fitted to their {users.sum():,} rows" in caplog.text
    assert manifest_of(tmp_path)["segments"]["rows_of_shared_map"] == users.sum()
    p = logcal.load(str(tmp_path / "store"), "t").predict(table["score"], {"a": table["a"]})
    assert p[users].sum() == pytest.approx(table["label"].to_numpy()[users].sum(), rel=0.02)
    assert np.abs(p[users] - truth[users]).mean() < 0.04
    # The large ones have maps of their own.
    assert p[~users].sum() == pytest.approx(table["label"].to_numpy()[~users].sum(), rel=0.05)


def test_users_alone_are_fitted_as_their_rows_are_in_memory(tmp_path):
    table, _ = log_of(2, 40, odd=-5.0)
    fit(tmp_path, table)
    users = table["a"].to_numpy() >= 2
    score, label = table["score"].to_numpy()[users], table["label"].to_numpy()[users]
    alone = logcal.load(str(tmp_path / "store"), "t").predict(score, {"a": np.full(score.size, 99, np.int32)})
    np.testing.assert_array_equal(alone, Smooth().fit(score, label).predict(score))


def test_too_few_users_for_a_map_are_named(tmp_path):
    table, _ = log_of(2, 1, odd=-5.0, apart=-2.0, few=600)
    users = table["a"].to_numpy() == 2
    assert table["label"].to_numpy()[users].sum() < 100
    with pytest.raises(
        CheckFailedError, match="without a map of their own, which use the map of all rows, for"
    ):
        fit(tmp_path, table)
    assert manifest_of(tmp_path)["agreement"]["shared_maps"]["misfits"][0]["segment"] == []


@pytest.mark.parametrize("method", ["platt", "isotonic"])
@pytest.mark.parametrize("odd", [False, True])
def test_segments_with_one_score_are_checked_with_the_map_that_they_use(tmp_path, method, odd):
    table, truth = log_of(2, 1, few=4000)
    single = table["a"].to_numpy() == 1
    score = np.where(single, 0.3, table["score"].to_numpy())
    right = np.where(single, 0.3, truth)
    share = np.where(single & odd, 0.9, right)
    label = (np.random.default_rng(3).random(score.size) < share).astype(np.int8)
    table = pa.table({"score": score, "label": label, "a": table["a"]})
    if odd:
        with pytest.raises(CheckFailedError, match=r"in segment 1 for scores from 0\.3 on"):
            fit(tmp_path, table, method)
    else:
        fit(tmp_path, table, "smooth" if method == "platt" else method)
    (level,) = manifest_of(tmp_path)["agreement"]["levels"]
    (entry,) = [row for row in level["most_informative"] if row["segment"] == ["1"]]
    assert (entry["weight"], entry["positives"]) == (single.sum(), label[single].sum())


def nested(few):
    """Of the segments of y one has a map of its own, and is odd; the segment x has nothing below."""
    table, truth = log_of(1, 40, odd=-5.0, few=few)
    own = np.where(table["a"].to_numpy() == 0, "large", table["a"].to_numpy().astype(str))
    below = table.set_column(2, "a", pa.array(["y"] * len(table))).append_column("b", pa.array(own))
    others, right = log_of(1, 0, seed=1)
    above = others.set_column(2, "a", pa.array(["x"] * len(others))).append_column(
        "b", pa.array(["z"] * len(others))
    )
    return pa.concat_tables([below, above]), np.concatenate([truth, right])


@pytest.mark.parametrize("method", ["smooth", "beta", "isotonic", "bbq"])
def test_a_parents_map_that_is_bent_is_fitted_to_those_that_use_it(tmp_path, method, caplog):
    table, truth = nested(few=150)
    with caplog.at_level(logging.WARNING):
        fit(tmp_path, table, method)
    assert "1 parent's map was fitted to them alone" in caplog.text
    assert manifest_of(tmp_path)["segments"]["parents_refitted"] == 1
    lookup = read_table(str(next((tmp_path / "store").glob("t/versions/*/lookup.parquet"))))
    maps = [lookup.map_of(key) for key in lookup.keys]
    assert manifest_of(tmp_path)["monotone"] == all(own.monotone for own in maps if own is not None)
    keys = {name: table[name] for name in "ab"}
    p = logcal.load(str(tmp_path / "store"), "t").predict(table["score"], keys)
    users = ~np.isin(table["b"].to_numpy(zero_copy_only=False), ["large", "z"])
    assert p[users].sum() == pytest.approx(table["label"].to_numpy()[users].sum(), rel=0.02)
    assert np.abs(p[users] - truth[users]).mean() < 0.04


def test_a_parents_map_with_too_few_users_is_named(tmp_path):
    table, _ = nested(few=20)
    with pytest.raises(CheckFailedError, match="which use the map of segment y, for"):
        fit(tmp_path, table, "platt")


@pytest.mark.parametrize("seed", range(12))
def test_honest_segments_share_the_map_of_all_rows(tmp_path, seed, caplog):
    method = ["smooth", "beta", "isotonic"][seed % 3]
    random = np.random.default_rng(seed)
    rows = random.zipf(1.5, 100).clip(max=400) * 20
    segment = np.repeat(np.arange(100), rows)
    z = random.normal(-2, 1.2, segment.size)
    label = (random.random(segment.size) < expit(0.9 * z)).astype(np.int8)
    fit(tmp_path, pa.table({"score": expit(z), "label": label, "a": segment}), method)
    agreement = manifest_of(tmp_path)["agreement"]
    assert agreement["shared_maps"]["agrees"]
    assert "fitted to their" not in caplog.text


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_are_those_of_the_rows_that_use_the_map(tmp_path, weighted):
    table, _ = log_of(3, 30)
    log = {}
    weight = np.ones(len(table))
    if weighted:
        weight = np.random.default_rng(0).choice([0.5, 1.0, 3.0], len(table))
        table, log = table.append_column("w", pa.array(weight)), {"weight": "w"}
    write_log(tmp_path / "log", table, files=3)
    run_job(
        "fit",
        log={"path": tmp_path / "log", "segment": ["a"], **log},
        store={"path": tmp_path / "store", "table": "t"},
        calibrator={"method": "platt"},
        segments={"min_rows": 1000, "shrinkage": "none"},
        gate=ANY_TABLE,
        scratch=tmp_path,
    )
    (entry,) = manifest_of(tmp_path)["agreement"]["shared_maps"]["most_informative"]
    users = table["a"].to_numpy() >= 3
    p = logcal.load(str(tmp_path / "store"), "t").predict(table["score"], {"a": table["a"]})
    assert entry["weight"] == pytest.approx(weight[users].sum(), rel=1e-12)
    assert entry["positives"] == pytest.approx((weight * table["label"].to_numpy())[users].sum(), rel=1e-12)
    # The map is applied in the middle of cells, a 4,096th of a power of two wide.
    assert entry["expected"] == pytest.approx((weight * p)[users].sum(), rel=1e-5)


def test_cells_do_not_depend_on_how_the_items_were_cut():
    random = np.random.default_rng(0)
    score = np.sort(np.concatenate([random.random(5000), np.full(300, 0.5), -random.exponential(1e-3, 400)]))
    starts = np.array([0, 100, 100, 3000, score.size])
    for i in range(4):
        score[starts[i] : starts[i + 1]].sort()
    weight, positives = random.integers(1, 9, (2, score.size)).astype(float)
    whole, whole_starts = add_up_cells(score, score, [weight, positives], starts)
    first, last, *sums = whole
    assert np.all(last - first <= np.abs(first).clip(1e-300) / 2048)
    np.testing.assert_array_equal(
        np.add.reduceat(sums[0], whole_starts[:-1][[0, 2, 3]]),
        np.add.reduceat(weight, starts[:-1][[0, 2, 3]]),
    )
    middle = middle_of(first, last)
    assert np.all((first <= middle) & (middle <= last))
    # Each item by itself, joined: the same cells.
    again, again_starts = add_up_cells(score, score, [weight, positives], starts)
    rejoined, rejoined_starts = add_up_cells(*again[:2], again[2:], again_starts)
    for one, other in zip(whole, rejoined, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(whole_starts, rejoined_starts)
    np.testing.assert_array_equal(middle_of(score, score), score)


@pytest.mark.parametrize("method", ["smooth", "isotonic"])
def test_maps_of_users_depend_on_rows_alone(tmp_path, method, monkeypatch):
    """Not on files, and not on how rows are divided into runs and ranges of scores."""
    table, _ = nested(few=150)
    odd, _ = log_of(2, 40, odd=-5.0, seed=4)
    odd = odd.append_column("b", odd["a"]).set_column(3, "b", pa.array(odd["a"].to_numpy().astype(str)))
    odd = odd.set_column(2, "a", pa.array(odd["a"].to_numpy().astype(str)))
    table = pa.concat_tables([table, odd])
    found = []
    for sizes in ({}, {"run_rows": 3000, "bucket_bytes": 20_000}):
        monkeypatch.setattr(SortPlan, "within", lambda plan, *_, sizes=sizes: replace(plan, **sizes))
        root = tmp_path / str(len(found))
        fit(root, table, method, ANY_TABLE)
        manifest = manifest_of(root)
        assert {"parents_refitted", "rows_of_shared_map"} <= manifest["segments"].keys()
        found.append((manifest["fingerprint"], manifest["agreement"]["shared_maps"]))
        table = table.take(np.random.default_rng(0).permutation(len(table)))
    assert found[0] == found[1]
