"""The papers' experiments: their quick form, cut further, and the numbers that were typed in."""

from __future__ import annotations

import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from common import run_command
from scipy import stats

from benchmarks.reproduction import data as sets
from benchmarks.reproduction.experiments import EXPERIMENTS, SCHEMA
from benchmarks.reproduction.methods import label_order_errors
from benchmarks.reproduction.paper_tables import paper_tables
from benchmarks.reproduction.ranks import rank_methods, relative_gain, welch_t_test

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


# Ranks and tests over data sets

# Demsar (2006), Table 6: AUC of C4.5 and three variants on 14 data sets.
DEMSAR = np.array(
    [
        [0.763, 0.768, 0.771, 0.798],
        [0.599, 0.591, 0.590, 0.569],
        [0.954, 0.971, 0.968, 0.967],
        [0.628, 0.661, 0.654, 0.657],
        [0.882, 0.888, 0.886, 0.898],
        [0.936, 0.931, 0.916, 0.931],
        [0.661, 0.668, 0.609, 0.685],
        [0.583, 0.583, 0.563, 0.625],
        [0.775, 0.838, 0.866, 0.875],
        [1.000, 1.000, 1.000, 1.000],
        [0.940, 0.962, 0.965, 0.962],
        [0.619, 0.666, 0.614, 0.669],
        [0.972, 0.981, 0.9751, 0.975],
        [0.957, 0.978, 0.946, 0.970],
    ]
)
NAMES = ("C4.5", "C4.5+m", "C4.5+cf", "C4.5+m+cf")


def test_ranks_and_tests_are_demsars():
    demsar = rank_methods(NAMES, DEMSAR, higher_is_better=True)
    assert demsar.mean == pytest.approx(dict(zip(NAMES, (3.143, 2.000, 2.893, 1.964), strict=True)), abs=6e-4)
    friedman = demsar.friedman()
    assert (friedman.chi_square, friedman.statistic) == pytest.approx((9.28, 3.69), abs=0.01)
    assert friedman.p_value == pytest.approx(stats.f.sf(friedman.statistic, 3, 39), rel=1e-12)
    # The paper's table: z and p by ascending p, compared with .017, .025, .050; only the first is rejected.
    found = demsar.holm("C4.5")
    assert [c.method for c in found] == ["C4.5+m+cf", "C4.5+m", "C4.5+cf"]
    assert [abs(c.z) for c in found] == pytest.approx([2.416, 2.342, 0.512], abs=2e-3)
    assert [c.p_value for c in found] == pytest.approx([0.016, 0.019, 0.607], abs=2e-3)
    assert [c.alpha for c in found] == pytest.approx([0.05 / 3, 0.05 / 2, 0.05])
    assert [c.different for c in found] == [True, True, False]
    assert demsar.marks("C4.5") == {"C4.5": "", "C4.5+m": "⊛", "C4.5+cf": "", "C4.5+m+cf": "⊛"}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("levels", [None, 4])
def test_friedman_is_scipys(seed, levels):
    random = np.random.default_rng(seed)
    values = random.random((12, 5)) if levels is None else random.integers(0, levels, (12, 5)).astype(float)
    found = rank_methods("abcde", values, higher_is_better=False).friedman()
    oracle = stats.friedmanchisquare(*values.T)
    assert found.corrected == pytest.approx(oracle.statistic, rel=1e-12)
    if levels is None:
        assert found.chi_square == pytest.approx(oracle.statistic, rel=1e-12)
    else:
        assert found.chi_square < found.corrected


def test_one_best_everywhere_and_all_equal():
    clear = rank_methods("ab", [[0.1, 0.2]] * 5, higher_is_better=False)
    assert clear.mean == {"a": 1.0, "b": 2.0}
    assert clear.friedman().statistic == math.inf
    assert clear.friedman().p_value == 0.0
    alike = rank_methods("abc", np.ones((4, 3)), higher_is_better=True)
    assert alike.mean == {"a": 2.0, "b": 2.0, "c": 2.0}
    assert alike.friedman() == (0.0, 0.0, 0.0, 1.0)
    assert set(alike.marks("a").values()) == {""}


@pytest.mark.parametrize("sizes", [(10, 10), (3, 17)])
def test_welch_is_scipys(sizes):
    random = np.random.default_rng(1)
    a, b = random.normal(0, 1, sizes[0]), random.normal(0.5, 3, sizes[1])
    oracle = stats.ttest_ind(a, b, equal_var=False)
    found = welch_t_test(a, b)
    assert found == pytest.approx((oracle.statistic, oracle.df, oracle.pvalue), rel=1e-12)


def test_welch_without_variance():
    assert welch_t_test([1, 1], [1, 1]).p_value == 1.0
    assert welch_t_test([1, 1], [2, 2])[::2] == (-math.inf, 0.0)


def test_the_relative_gain_by_hand():
    # Gains -.5, 0 and .5: mean 0, standard error .5 / sqrt(3), t(.975, 2) = 4.30265.
    interval, left_out = relative_gain([0.1, 0.2, 0.3, 0.7], [0.2, 0.2, 0.2, 0.0])
    assert left_out == 1
    assert interval == pytest.approx((0.0, -4.30265 * 0.5 / 3**0.5, 4.30265 * 0.5 / 3**0.5), abs=1e-5)
    gains = np.array([-0.5, 0.0, 0.5])
    low, high = stats.t.interval(0.9, 2, gains.mean(), stats.sem(gains))
    assert relative_gain([0.1, 0.2, 0.3], [0.2, 0.2, 0.2], 0.9)[0][1:] == pytest.approx((low, high))
