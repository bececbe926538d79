"""The reproduction: a tiny run through the command, and what its parts compute."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.naive_bayes import GaussianNB

from calibrators.methods.auto import CANDIDATES
from jobs import reproduce
from jobs.config.jobs import ReproduceConfig
from jobs.config.loading import load
from jobs.reproduce import SHIPPED
from logcal.errors import ConfigError
from pipeline.execution import InlineExecutor
from pipeline.reproduce import experiment_data as sets
from pipeline.reproduce import experiment_times
from pipeline.reproduce.beyond_tables import auto_table, size_tables, time_table
from pipeline.reproduce.experiment_classifiers import Classifier
from pipeline.reproduce.experiment_methods import Calibration, calibrate, label_order_errors
from pipeline.reproduce.experiments import EXPERIMENTS, SCHEMA, SIZES_METHODS, Settings, plan_tasks, run_task
from pipeline.reproduce.paper_tables import paper_tables
from pipeline.reproduce.reproduction_tables import value_tables

TINY = Settings(seed=0, runs=1, folds=2, max_rows=150)


@pytest.fixture
def data(tmp_path) -> Path:
    folder = tmp_path / "sets"
    folder.mkdir()
    for name in ("heart", "balance", "blood_transfusion"):
        shutil.copy(SHIPPED / f"{name}.parquet", folder)
    return folder


def prepared(tmp_path, data, *settings):
    own = [f"data.path={data}", f"output.path={tmp_path / 'output'}", "reproduce.max_rows=150", *settings]
    return reproduce.prepare(load(ReproduceConfig, settings=own))


def run(tmp_path, data, *settings):
    return prepared(tmp_path, data, *settings).execute(InlineExecutor()).summary


def contents(folder):
    files = folder.glob("output/results/*/*.parquet")
    return {path.relative_to(folder): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_a_run_is_reported_resumed_and_repeated(tmp_path, data, monkeypatch):
    written, write = [], pq.write_table

    def recorded(table, path, **options):
        written.append(path)
        write(table, path, **options)

    monkeypatch.setattr(pq, "write_table", recorded)
    settings = ("reproduce.experiments=[real]", "reproduce.runs=1", "reproduce.folds=2")
    assert prepared(tmp_path, data, *settings).plan.facts["done"] == 0
    first = run(tmp_path, data, *settings)
    assert first["tasks"] == 6
    # What a killed run leaves of these has a name that nobody reads.
    assert written
    assert all(path.name.startswith(".") and path.suffix == ".tmp" for path in written)
    assert first["tasks_done_before"] == 0
    assert "adult" in first["missing_sets"]
    output = tmp_path / "output"
    text = (output / "reproduction.md").read_text()
    assert "enir: Table III" in text
    assert "1.963 / " in text
    assert "Not there, and therefore left out: ad, adult," in text
    assert (output / "reproduction.html").read_text().count("<svg") == text.count("![") > 0
    results = pq.read_table(output / "results.parquet")
    assert results.schema.equals(SCHEMA)
    assert results.num_rows == 6 * 2 * 16
    cells = pq.read_table(output / "tables.parquet").to_pandas()
    ranks = cells[cells.table.str.startswith("enir: Table III ") & (cells.row == "RMSE")]
    assert ranks.published.tolist() == [1.925, 2.625, 1.45] * 2
    assert np.isclose(ranks.ours.sum(), 2 * 6)

    before = contents(tmp_path)
    figures = {path.name: path.read_bytes() for path in (output / "figures").iterdir()}
    lost = min(before)
    (tmp_path / lost).unlink()
    assert run(tmp_path, data, *settings)["tasks_done_before"] == 5
    after = contents(tmp_path)
    assert after[lost][0] == before[lost][0]
    assert {k: v for k, v in after.items() if k != lost} == {k: v for k, v in before.items() if k != lost}
    assert {path.name: path.read_bytes() for path in (output / "figures").iterdir()} == figures
    assert (output / "reproduction.md").read_text() == text
    assert prepared(tmp_path, data, *settings, "reproduce.seed=1").plan.facts["done"] == 0


def test_what_is_refused(tmp_path, data):
    output = tmp_path / "output"
    output.mkdir()
    (output / "mine.txt").write_text("mine")
    with pytest.raises(
        ConfigError, match=r"output.path: expected a folder that is new, empty, or of an earlier"
    ):
        prepared(tmp_path, data)
    (output / "mine.txt").unlink()
    # What a run that was killed left of its marker is nobody else's.
    (output / f".reproduce.json.{'2d' * 16}.tmp").write_text("{")
    prepared(tmp_path, data)
    with pytest.raises(ConfigError, match=r"data.path: expected a folder with data sets"):
        prepared(tmp_path, tmp_path / "nothing")
    with pytest.raises(ConfigError, match=r"data.path: expected a folder on a mounted file system"):
        prepared(tmp_path, "memory://sets")
    with pytest.raises(ConfigError, match=r"reproduce.experiments"):
        prepared(tmp_path, data, "reproduce.experiments=[reel]")


def test_quick_is_small_and_a_dry_run_writes_nothing(place, data):
    output = place.root / "output"
    settings = (f"data.path={data}", f"output.path={output}", "reproduce.runs=7")
    arguments = [part for text in settings for part in ("--set", text)]
    plan = place.run("reproduce", "--quick", "--json", "--dry-run", *arguments).expect(0).json
    assert plan["facts"]["done"] == 0
    # 2 sets, 3 classifiers, 2 runs; 3 simulated sets, one with 2 classifiers, 21 runs; blood donation, 10 runs.
    assert plan["facts"]["tasks"] == 2 * 3 * 2 + 4 * 21 + 10
    assert "spect" in plan["facts"]["missing"]
    assert not output.exists()


@pytest.mark.parametrize(
    ("experiment", "name", "classifier"),
    [("binning", "circular", "lr"), ("generated", "blood_transfusion", "nb_plain")],
)
def test_a_task_is_a_file_of_known_rows(tmp_path, data, experiment, name, classifier):
    tasks, _ = plan_tasks(data, TINY, [experiment])
    task = next(t for t in tasks if (t.set, t.classifier, t.run) == (name, classifier, 0))
    for folder in ("one", "two"):
        (tmp_path / folder / experiment).mkdir(parents=True)
        run_task(task, str(data), str(tmp_path / folder))
    one, two = ((tmp_path / folder / task.path).read_bytes() for folder in ("one", "two"))
    assert one == two
    rows = pq.read_table(tmp_path / "one" / task.path).to_pandas()
    if experiment == "binning":
        # On a circle no monotone map of a line's scores can do much; binnings can.
        auc = rows.set_index("method").auc
        assert auc["abb"] > 0.75 > 0.7 > auc["isotonic"]
        assert rows.n_calibration.tolist() == [600] * 7
    else:
        assert rows.method.tolist() == ["raw", "ir", "dg", "dgg_generated"]
        assert rows.n_calibration.iloc[2] >= 5000
        loss = rows.set_index("method").log_loss
        assert loss["dg"] < loss["raw"]
        assert rows.rate.between(0.6, 0.9).all()


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


def test_features_and_folds():
    table = pa.table(
        {
            "number": pa.array([1.0, None, 3.0, 4.0]),
            "constant": pa.array([1, 1, 1, 1]),
            "text": pa.array(["a", None, "b", "a"]),
            "split": pa.array(["train", "train", "test", "test"]),
            "label": pa.array([1, 0, 0, 1], pa.int8()),
        }
    )
    data = sets.features_of(table)
    assert data.numeric.shape == (4, 1)
    assert data.codes[:, 0].tolist() == [1, 0, 2, 1]
    assert data.test.tolist() == [False, False, True, True]
    numbers = pa.table({"code": pa.array(["3", None, "1"]), "label": pa.array([1, 0, 0], pa.int8())})
    coded = sets.features_of(numbers, coded=True)
    assert coded.codes.shape == (3, 0)
    assert np.array_equal(coded.numeric[:, 0], [3, np.nan, 1], equal_nan=True)
    random = np.random.default_rng(0)
    label = random.random(200) < 0.2
    fold = sets.folds_of(label, 10, random)
    assert np.bincount(fold).tolist() == [20] * 10
    assert np.ptp(np.bincount(fold[label], minlength=10)) <= 1
    chosen = sets.subsample(label, 100, random)
    assert label[chosen].sum() == round(100 * label.mean())
    assert np.all(np.diff(chosen) > 0)


@pytest.mark.parametrize("kind", ["lr", "svm", "nb", "nb_plain", "svm_quadratic"])
def test_a_classifier_learns(kind, data):
    heart = sets.load("heart", data, 0, 0)
    scores = Classifier(kind).fit(heart, np.zeros(0, np.int64)).scores(heart)
    assert np.mean((scores.probability >= 0.5) == heart.label) > 0.8
    assert np.array_equal(
        np.argsort(scores.margin, kind="stable"), np.argsort(scores.probability, kind="stable")
    )


def test_plain_naive_bayes_takes_frequencies_and_numbers_as_they_are():
    label = np.array([True] * 3 + [False] * 5)
    code = np.array([0, 0, 1, 1, 1, 1, 2, 2])[:, None]
    number = np.array([0, 100, 100, 0, 0, 0, 100, 0.0])[:, None]
    nothing = np.empty((8, 0), np.int64)
    found = Classifier("nb_plain").fit(sets.Data(nothing.astype(float), code, label, label), np.array([3]))
    probability = found.scores(sets.Data(nothing.astype(float), code, label, label)).probability
    # Positives have never had category 2, negatives never 0.
    odds = 3 / 5 * np.array([(2 / 3) / 0.001, (1 / 3) / (3 / 5), 0.001 / (2 / 5)])
    assert np.allclose(probability, (odds / (1 + odds))[code[:, 0]], rtol=1e-8)
    gaussian = sets.Data(number, nothing, label, label)
    ours = Classifier("nb_plain").fit(gaussian, np.zeros(0, np.int64)).scores(gaussian).probability
    assert np.allclose(ours, GaussianNB().fit(number, label).predict_proba(number)[:, 1])


def test_points_simulated_anew_have_a_test_half():
    random = np.random.default_rng(0)
    points = sets.simulate("circular_anew", random)
    radius = np.hypot(*points.numeric.T)
    assert points.test.tolist() == [False] * 1000 + [True] * 1000
    assert np.array_equal(radius >= 2, points.label)
    assert radius.max() < 4
    assert 900 < points.label.sum() < 1100


def test_large_sets_may_have_fewer_runs(data):
    shutil.copy(SHIPPED / "page_blocks.parquet", data)
    assert sets.size("page_blocks", data) == 5473
    tasks, _ = plan_tasks(data, Settings(runs=3, large_runs=2), ["real", "sizes"])
    runs = {key: [t.run for t in tasks if (t.experiment, t.set, t.classifier) == key] for key in
            [("real", "heart", "lr"), ("real", "page_blocks", "lr"), ("sizes", "page_blocks", "nb")]}  # fmt: skip
    assert list(runs.values()) == [[0, 1, 2], [0, 1], [0, 1]]
    more, _ = plan_tasks(data, Settings(runs=3), ["real", "sizes"])
    assert {t.key for t in tasks} < {t.key for t in more}


def test_scikit_learns_own_calibration_is_what_it_says(data):
    from sklearn.isotonic import IsotonicRegression

    heart = sets.load("heart", data, 0, 0)
    scores = Classifier("lr").fit(heart, np.zeros(0, np.int64)).scores(heart)
    found, _ = calibrate("sklearn_isotonic", Calibration(scores, heart.label, scores))
    oracle = IsotonicRegression(out_of_bounds="clip").fit(scores.margin, heart.label).predict(scores.margin)
    assert np.allclose(found, oracle, atol=1e-12)


def test_a_resampled_set_shows_its_test_part(tmp_path):
    rows = [
        {"experiment": "binning", "set": "spect", "classifier": "lr", "run": run, "fold": 0, "method": method,
         **dict.fromkeys(("auc", "accuracy", "rmse", "ece", "mce", "ece_width", "mce_width"), value),
         **dict.fromkeys(("ece_label", "mce_label"), value)}
        for method in ("base", "isotonic", "platt", "histogram", "sbb", "abb", "acp")
        for run, value in enumerate((0.5, 0.1, 0.3))
    ]  # fmt: skip
    (table,) = value_tables(pa.Table.from_pylist(rows, SCHEMA).to_pandas())
    cell = table.rows[0][1][0]
    assert (cell.published, cell.ours) == (0.744, 0.5)
    assert cell.error == pytest.approx(np.std([0.1, 0.3], ddof=1))
    # The paper's ECE beside the two ways to compute it.
    by_name = {name: cells[0] for name, cells in table.rows}
    root, width = by_name["√(ECE / 10), ties by label"], by_name["ECE, equal width"]
    assert root.published == width.published == 0.181
    assert (root.ours, width.ours) == (pytest.approx(0.05**0.5), 0.5)


def test_where_a_method_starts_to_win():
    # Twelve pairs: auto loses at 100 rows, ties with the coin at 300, wins from 1,000; ABB wins once and loses again.
    lower = {100: {"auto": 2, "abb": 12}, 300: {"auto": 8, "abb": 12}, 1000: {"auto": 11, "abb": 6}}
    rows = [
        {"experiment": "sizes", "set": f"set {pair}", "classifier": "lr", "run": 0, "fold": fold, "method": method,
         "log_loss": 0.5 if method in ("base", "platt") else 0.4 if pair < lower[size].get(method, 0) else 0.6}
        for fold, size in enumerate(lower) for pair in range(12) for method in SIZES_METHODS
    ]  # fmt: skip
    excess, start = size_tables(pa.Table.from_pylist(rows, SCHEMA).to_pandas())
    assert excess.columns[1:] == ("100 rows (12 pairs)", "300 rows (12 pairs)", "1,000 rows (12 pairs)")
    cells = dict(excess.rows)["auto"]
    assert cells[2].ours == pytest.approx((11 * -0.1 + 0.1) / 12)
    found = dict(start.rows)
    assert found["auto"] == ("1,000 (11 of 12)", "1,000 (11 of 12)")
    assert found["ABB"][0] == "at no size measured (6 of 12)"
    assert found["Platt"][1] == "–"


def test_pairs_with_more_runs_do_not_count_more_in_the_choice():
    rows = [
        {"experiment": "real", "set": name, "classifier": "lr", "run": run, "fold": 0, "method": method,
         "log_loss": loss + (method != "auto") * 0.25, "chosen": "platt"}
        for name, runs, loss in (("often", 9, 1.0), ("once", 1, 3.0)) for run in range(runs)
        for method in (*CANDIDATES, "base", "auto")
    ]  # fmt: skip
    table = auto_table(pa.Table.from_pylist(rows, SCHEMA).to_pandas())
    ((label, cells),) = table.rows
    assert label == "calibrated on the training rows"
    assert [cell.ours for cell in cells[:5]] == pytest.approx([2.0, 2.25, -0.25, 2.25, 2.25])
    assert cells[0].error == pytest.approx(1.0)
    assert cells[5] == "Platt 100%"


def test_run_times_are_measured_once(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment_times, "METHODS", ("platt", "isotonic"))
    first = experiment_times.run_times(tmp_path, 1000, 0, InlineExecutor())
    assert [(row["method"], row["n"]) for row in first] == [("platt", 1000), ("isotonic", 1000)]
    assert all(row[key] > 0 for row in first for key in experiment_times.KEYS)
    assert experiment_times.run_times(tmp_path, 1000, 0, InlineExecutor()) == first
    # A file that lacks a number is measured again, the other is not.
    (tmp_path / "platt.1000.json").write_text(json.dumps({"method": "platt", "n": 1000, "fit": 1000.0}))
    again = experiment_times.run_times(tmp_path, 1000, 0, InlineExecutor())
    assert again[0]["fit"] < 1000
    assert again[0].keys() == first[0].keys()
    assert again[1] == first[1]
    assert "Time to fit" in time_table(first).title


def test_the_tables_of_generated_data(tmp_path, data):
    summary = run(tmp_path, data, "reproduce.experiments=[generated]")
    assert summary["tasks"] == 10
    assert (tmp_path / "output" / "reproduce.json").exists()
    text = (tmp_path / "output" / "reproduction.md").read_text()
    assert "dg_dgg: Table 3" in text
    assert "1.49† / " in text


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_quick_has_every_table(place):
    output = place.root / "output"
    arguments = ("reproduce", "--quick", "--json", "--set", f"output.path={output}")
    summary = place.run(*arguments, timeout=800).expect(0).json
    assert summary["tasks_done_before"] == 0
    text = (output / "reproduction.md").read_text()
    published = paper_tables()
    for table in (*published["values"], *published["generated"], *published["ranks"], published["gains"]):
        assert f"## {table['paper']}: {table['table']} (" in text
    for own in (
        "Table VII",
        "Beyond: all methods",
        "Beyond: auto",
        "Beyond: sizes",
        "Beyond: where each",
        "Data sets",
    ):
        assert own in text
    assert text.count("![") == len(list((output / "figures").iterdir())) == 13
