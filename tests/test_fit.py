"""The fit job against the calibrators in memory, for every method, in many parts."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs import fit
from jobs.config import FitConfig
from jobs.config_loading import load
from pipeline.execution import InlineExecutor
from pipeline.fit.calibration import METHODS, make_calibrator
from pipeline.sort import score_table
from pipeline.table.lookup_table import read_lookup_table

# What these look at besides scores and labels comes with a generated log.
WITH_SCORES_ALONE = sorted(set(METHODS) - {"dg", "dgg", "auto"})


@pytest.fixture(scope="module")
def rows():
    generator = np.random.default_rng(3)
    score = generator.random(4000).round(3)
    label = generator.random(4000) < 0.15 + 0.6 * score + 0.2 * np.sin(12 * score)
    return score, label, generator.exponential(size=4000)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("method", WITH_SCORES_ALONE)
def test_a_published_table_is_the_calibrator_fitted_in_memory(tmp_path, monkeypatch, rows, method, weighted):
    score, label, weight = rows
    (tmp_path / "log").mkdir()
    table = pa.table({"score": score, "label": label, "w": weight})
    for i in range(3):
        pq.write_table(table.slice(1333 * i, 1334 if i == 2 else 1333), tmp_path / "log" / f"{i}.parquet")
    # Several runs and parts, which a log of this size would not have.
    monkeypatch.setattr(score_table.SortPlan, "within", lambda plan, *sizes: small(plan))
    settings = [
        f"log.path={tmp_path / 'log'}", f"store.path={tmp_path / 'store'}", "store.table=t",
        f"calibrator.method={method}", *(["log.weight=w"] if weighted else []),
    ]  # fmt: skip
    outcome = fit.prepare(load(FitConfig, settings=settings)).execute(InlineExecutor())
    published = read_lookup_table(outcome.summary["lookup_path"])
    expected = make_calibrator(method, {}).fit(score, label, weight if weighted else None)
    for name in published.map.__dataclass_fields__:
        np.testing.assert_array_equal(
            getattr(published.map, name), getattr(expected.calibration_map_, name), err_msg=name
        )
    manifest = json.loads(
        (tmp_path / "store/t/versions" / published.facts.version / "manifest.json").read_text()
    )
    for key, value in expected.facts().items():
        assert manifest["data"][key] == published.facts.data[key] == value
    assert manifest["monotone"] == expected.calibration_map_.monotone
    assert not list(tmp_path.glob("**/logcal-scratch*"))


def small(plan):
    return score_table.replace(plan, run_rows=700, bucket_bytes=5000)
