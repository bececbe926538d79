"""The papers' experiments: their quick form, cut further, and the numbers that were typed in."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from common import run_command

from benchmarks.reproduction import data as sets
from benchmarks.reproduction.experiments import EXPERIMENTS, SCHEMA
from benchmarks.reproduction.methods import label_order_errors
from benchmarks.reproduction.paper_tables import paper_tables

ROOT = Path(__file__).parents[1]
SETS = ROOT / "benchmarks" / "reproduction" / "sets"


def reproduce(output: Path, data: Path, *arguments: str) -> str:
    command = (sys.executable, "-m", "benchmarks.reproduction", output, "--quick", "--data", data)
    return run_command(*command, *arguments, cwd=ROOT).stderr


def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    files = folder.glob("results/*/*.parquet")
    return {path.relative_to(folder): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.mark.system
def test_a_run_is_reported_resumed_and_repeated(tmp_path):
    data, output = tmp_path / "sets", tmp_path / "output"
    data.mkdir()
    for name in ("heart", "balance", "blood_transfusion"):
        shutil.copy(SETS / f"{name}.parquet", data)
    small = ("--max-rows", "150", "--runs", "1", "--folds", "2")
    asked = (*small, "--experiments", "real", "generated", "binning")
    # 2 sets with 3 classifiers; one set of generated data 10 times; 2 simulated sets 21 times.
    assert reproduce(output, data, *asked).startswith("58 experiments, 0 of them done before")
    text = (output / "reproduction.md").read_text()
    assert "enir: Table III" in text
    assert "dg_dgg: Table 3" in text
    assert "1.963 / " in text
    assert "Not there, and therefore left out: ad, adult," in text
    assert text.count("![") == len(list((output / "figures").iterdir())) > 0
    results = pq.read_table(output / "results.parquet")
    assert results.schema.equals(SCHEMA)
    rows = results.to_pandas()
    assert (rows.experiment == "real").sum() == 6 * 2 * 16
    # On a circle no monotone map of a line's scores can do much; binnings can.
    auc = rows[rows.set == "circular"].groupby("method").auc.mean()
    assert auc["abb"] > 0.75 > 0.7 > auc["isotonic"]
    loss = rows[rows.experiment == "generated"].groupby("method").log_loss.mean()
    assert loss["dg"] < loss["raw"]
    cells = pq.read_table(output / "tables.parquet").to_pandas()
    ranks = cells[cells.table.str.startswith("enir: Table III ") & (cells.row == "RMSE")]
    assert ranks.published.tolist() == [1.925, 2.625, 1.45] * 2
    assert np.isclose(ranks.ours.sum(), 2 * 6)

    before = contents(output)
    lost = min(before)
    (output / lost).unlink()
    assert reproduce(output, data, *asked).startswith("58 experiments, 57 of them done before")
    after = contents(output)
    assert after[lost][0] == before[lost][0]
    assert {k: v for k, v in after.items() if k != lost} == {k: v for k, v in before.items() if k != lost}
    assert (output / "reproduction.md").read_text() == text


def test_every_experiment_names_sets_that_are_known():
    for designs, _ in EXPERIMENTS.values():
        assert all(name in sets.SOURCES or name in sets.SIMULATED for name in designs)
    assert len(sets.ENIR_SETS) == len(set(sets.ENIR_SETS)) == 39
    assert len(sets.BBQ_SETS) == 29
    assert set(sets.BBQ_SETS) < set(sets.ENIR_SETS)


def test_the_papers_ranks_add_up():
    # Ranks of k methods add up to k (k + 1) / 2: a slip of the finger would show.
    for table in paper_tables()["ranks"]:
        for measure, ranks in table["rows"].items():
            if None not in ranks:
                k = len(ranks)
                assert sum(ranks) == pytest.approx(k * (k + 1) / 2, abs=0.003), (table["table"], measure)


def test_ties_in_the_order_of_labels():
    probability = np.full(100, 0.5)
    label = np.arange(100) % 2 == 0
    assert label_order_errors(probability, label) == (0.5, 0.5)
    # Sorted by score, then label: 0.2 with 0 0 0, then 0.2 0.2 0.8 with 0 1 0, then 0.8 with 1 1 1, twice.
    few = np.array([0.2] * 5 + [0.8] * 7)
    labels = np.array([1, 0, 0, 0, 0, 1, 1, 1, 0, 1, 1, 1], bool)
    ece, mce = label_order_errors(few, labels, groups=4)
    gaps = [0.2, abs((0.2 * 2 + 0.8) / 3 - 1 / 3), 0.2, 0.2]
    assert (ece, mce) == (pytest.approx(np.mean(gaps)), pytest.approx(max(gaps)))
