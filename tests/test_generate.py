"""Generated logs: equal to a plain loop of scikit-learn, whoever does the work; no leak; what fails is named."""

import json
import warnings
from pathlib import Path

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from common import write_log
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from threadpoolctl import threadpool_limits

from jobs import generate
from jobs.config.jobs import GenerateConfig
from jobs.config.loading import load
from logcal.errors import ConfigError, InputRejectedError, NothingToDoError
from pipeline.classifier.shipped_classifier import find_classifier
from pipeline.execution import InlineExecutor
from pipeline.generate.folds import SCORED, TRAINED, Folds, RowKeys, random_state

NUMBERS, CATEGORIES = ["a", "b", "n"], ["c"]
FEATURES = [*NUMBERS, *CATEGORIES]


def people(rows=400, seed=0):
    """Numbers with nulls, whole numbers, categories with nulls, a group, a time, and a label that depends on them."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, rows))
    n = rng.integers(0, 9, rows)
    c = np.array(["red", "green", "blue", None], dtype=object)[rng.integers(0, 4, rows)]
    chance = 1 / (1 + np.exp(-(a - b + 0.3 * n - 1.5 + (c == "red"))))
    return pa.table(
        {
            "a": pa.array(a, mask=rng.random(rows) < 0.1),
            "b": b.astype(np.float32),
            "n": n.astype(np.int16),
            "c": pa.array(c, pa.string()).dictionary_encode(),
            "label": (rng.random(rows) < chance).astype(np.int8),
            "group": [f"g{i}" for i in rng.integers(0, 30, rows)],
            "day": pa.array(rng.integers(18000, 18060, rows).astype(np.int32), pa.date32()),
            "segment": pa.array(np.array(["x", "y"])[rng.integers(0, 2, rows)]),
            "id": rng.permutation(10 * rows)[:rows] - 500,
        }
    )


def write(table, folder, files=1, row_group=1000):
    return Path(write_log(folder, table, files, row_group))


def configure(data, output, *settings):
    own = [f"data.path={data}", f"output.path={output}", f"data.features=[{', '.join(FEATURES)}]"]
    return load(GenerateConfig, settings=[*own, "generate.repeats=3", *settings])


def run(data, output, *settings):
    outcome = generate.prepare(configure(data, output, *settings)).execute(InlineExecutor())
    log = pa.concat_tables(pq.read_table(path) for path in sorted(output.glob("log/*.parquet")))
    return log, outcome.summary


def prepared(estimator, *, impute=True, scale=False):
    steps = ([SimpleImputer(strategy="median")] if impute else []) + ([StandardScaler()] if scale else [])
    numbers = make_pipeline(*steps) if steps else "passthrough"
    one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    columns = [("numbers", numbers, NUMBERS), ("categories", one_hot, CATEGORIES)]
    return make_pipeline(ColumnTransformer(columns), estimator)


def of_class(name, **more):
    """Settings of an estimator."""
    return [f"estimator.class=sklearn.{name}", *(f"estimator.{key}={value}" for key, value in more.items())]


CASES = {
    "naive Bayes": (of_class("naive_bayes.GaussianNB"), lambda repeat: prepared(GaussianNB())),
    "logistic regression": (
        of_class("linear_model.LogisticRegression", scaling="standard"),
        lambda repeat: prepared(LogisticRegression(), scale=True),
    ),
    "random forest": (
        of_class("ensemble.RandomForestClassifier", params="{n_estimators: 5, n_jobs: 2}"),
        lambda repeat: prepared(RandomForestClassifier(5, random_state=random_state(7, repeat))),
    ),
    "gradient boosting": (
        of_class(
            "ensemble.HistGradientBoostingClassifier",
            params="{max_iter: 5, random_state: 3}",
            imputation="none",
        ),
        lambda repeat: prepared(HistGradientBoostingClassifier(max_iter=5, random_state=3), impute=False),
    ),
    "a decision function": (
        of_class("linear_model.SGDClassifier", scaling="standard"),
        lambda repeat: prepared(SGDClassifier(random_state=random_state(7, repeat)), scale=True),
    ),
}


def scores_of(model, frame):
    return (
        model.predict_proba(frame)[:, 1]
        if hasattr(model, "predict_proba")
        else model.decision_function(frame)
    )


def plain_loop(folder, make, folds, repeats, *, keys=None, order=None):
    """The loop that anyone would write, on what pandas reads."""
    frame = pd.concat([pd.read_parquet(path) for path in sorted(folder.glob("*.parquet"))], ignore_index=True)
    if order is not None:
        frame = frame.sort_values(order, ignore_index=True)
    y = frame["label"].to_numpy()
    ids = np.arange(len(frame)) if order is None else frame[order].to_numpy()
    rows = RowKeys(ids.astype(np.int64).view(np.uint64), y == 1)
    found = []
    with threadpool_limits(1):
        for repeat in range(repeats):
            parts = folds.fold(repeat, rows).parts(rows)
            model = make(repeat).fit(frame.loc[parts == TRAINED, FEATURES], y[parts == TRAINED])
            test = parts == SCORED
            found.append((ids[test], scores_of(model, frame.loc[test, FEATURES]), y[test]))
    return found


@pytest.mark.parametrize("name", CASES)
def test_equals_a_plain_loop_of_scikit_learn_for_any_partitioning(tmp_path, name):
    settings, make = CASES[name]
    table, stratified = people(), len(name) % 2 == 0
    expected = plain_loop(write(table, tmp_path / "one"), make, Folds(seed=7, stratified=stratified), 3)
    for i, (files, row_group) in enumerate([(1, 1000), (7, 13)]):
        data = write(table, tmp_path / f"data-{i}", files, row_group)
        more = [
            "generate.seed=7",
            f"generate.stratified={str(stratified).lower()}",
            "generate.on_failure=stop",
        ]
        log, _ = run(data, tmp_path / f"out-{i}", *settings, *more)
        for repeat, (ids, score, label) in enumerate(expected):
            part = log.filter(pa.array(log["repeat"].to_numpy() == repeat))
            assert part["row_id"].to_pylist() == ids.tolist()
            assert np.array_equal(part["score"].to_numpy(), score)
            assert np.array_equal(part["label"].to_numpy(), label)


def test_with_row_ids_the_order_of_the_rows_does_not_matter(tmp_path):
    table = people()
    shuffled = table.take(np.random.default_rng(3).permutation(table.num_rows))
    settings, make = CASES["naive Bayes"]
    logs = [
        run(write(rows, tmp_path / f"data-{i}", files), tmp_path / f"out-{i}", *settings, "data.row_id=id")[0]
        for i, (rows, files) in enumerate([(table, 1), (shuffled, 4)])
    ]
    assert logs[0].equals(logs[1])
    expected = plain_loop(tmp_path / "data-1", make, Folds(), 3, order="id")
    assert np.array_equal(logs[0]["score"].to_numpy(), np.concatenate([score for _, score, _ in expected]))
    assert np.array_equal(logs[0]["row_id"].to_numpy(), np.concatenate([ids for ids, _, _ in expected]))


def test_partial_fit_equals_a_plain_loop_over_batches_for_any_partitioning(tmp_path):
    table = people(500)
    more = ["estimator.class=sklearn.linear_model.SGDClassifier", "estimator.params={loss: log_loss}"]
    more += ["generate.training=partial_fit", "generate.batch_rows=60", "estimator.scaling=standard"]
    logs = [
        run(write(table, tmp_path / f"data-{i}", files, row_group), tmp_path / f"out-{i}", *more)[0]
        for i, (files, row_group) in enumerate([(1, 1000), (3, 37)])
    ]
    assert logs[0].equals(logs[1])
    frame = pd.read_parquet(tmp_path / "data-0")
    y = frame["label"].to_numpy()
    rows = RowKeys(np.arange(500, dtype=np.uint64), y == 1)
    for repeat in range(3):
        parts = Folds().fold(repeat, rows).parts(rows)
        train, test = frame[parts == TRAINED], frame[parts == SCORED]
        classifier = SGDClassifier(loss="log_loss", random_state=random_state(0, repeat))
        preparation = prepared(classifier, scale=True)[0].fit(train[FEATURES])
        for start in range(0, len(train), 60):
            batch = train[start : start + 60]
            classifier.partial_fit(preparation.transform(batch[FEATURES]), batch["label"], classes=[0, 1])
        pieces = [preparation.transform(test[i : i + 60][FEATURES]) for i in range(0, len(test), 60)]
        score = np.concatenate([classifier.predict_proba(piece)[:, 1] for piece in pieces])
        part = logs[0].filter(pa.array(logs[0]["repeat"].to_numpy() == repeat))
        assert np.array_equal(part["score"].to_numpy(), score)


def test_the_shipped_classifier_is_trained_on_all_rows(tmp_path):
    for name, (settings, make) in CASES.items():
        data = write(people(), tmp_path / name / "data", 2)
        run(data, tmp_path / name / "out", *settings, "generate.seed=7")
        frame = pd.read_parquet(data)
        with threadpool_limits(1):
            expected = scores_of(make(-1).fit(frame[FEATURES], frame["label"].to_numpy()), frame[FEATURES])
        shipped = find_classifier(str(tmp_path / name / "out"), ("sklearn",))
        assert shipped.metadata["rows"] == 400
        # Not in one piece, so that sums of products may be rounded otherwise.
        assert shipped.scores(pq.read_table(data)) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_repeats_go_on_until_the_target_is_reached(tmp_path):
    data = write(people(100), tmp_path / "data")
    log, summary = run(data, tmp_path / "out", "generate.repeats=null", "generate.target_rows=200")
    sizes = np.bincount(log["repeat"].to_numpy())
    assert summary["repeats"] == sizes.size
    assert sizes[:-1].sum() < 200 <= sizes.sum() == log.num_rows == summary["rows"]


def test_the_columns_of_the_log(tmp_path):
    data = write(people(), tmp_path / "data", 3)
    log, _ = run(data, tmp_path / "out", "data.keep=[segment, day, a]")
    assert log.schema.names == ["score", "label", "repeat", "row_id", "segment", "day", "a"]
    table = people()
    rows = table.take(log["row_id"])
    for name in ("segment", "day", "a", "label"):
        assert log[name].to_pylist() == rows[name].to_pylist()


def test_by_time_the_past_is_trained_on(tmp_path):
    table = people()
    data = write(table, tmp_path / "data", 2)
    log, summary = run(data, tmp_path / "out", "generate.split=time", "data.time=day", "generate.repeats=4")
    days = np.array(table["day"].cast(pa.int32()).to_pylist())
    assert summary["repeats"] == 4
    assert len(set(log["row_id"].to_pylist())) == log.num_rows
    frame, y = table.to_pandas(), table["label"].to_numpy()
    for repeat in range(4):
        part = log.filter(pa.array(log["repeat"].to_numpy() == repeat))
        past = days < days[part["row_id"].to_numpy()].min()
        model = prepared(GaussianNB()).fit(frame.loc[past, FEATURES], y[past])
        expected = model.predict_proba(frame.loc[part["row_id"].to_numpy(), FEATURES])[:, 1]
        assert np.array_equal(part["score"].to_numpy(), expected)


# Rows that wait for their label


def waiting_rows(rows=90):
    """Rows without a label, of which nothing else could be used either."""
    table = people(rows, seed=9)
    empty = {name: pa.nulls(rows, table.schema.field(name).type) for name in ("label", "group", "day", "id")}
    empty["b"] = pa.array(np.full(rows, np.inf, np.float32))
    for name, values in empty.items():
        table = table.set_column(table.schema.get_field_index(name), name, values)
    return table


def made(folder):
    """All that is made but what says from which files."""
    found = {path.name: path.read_bytes() for path in folder.glob("*/*") if path.name != "classifier.json"}
    metadata = json.loads((folder / "classifier" / "classifier.json").read_text())
    return found, {name: value for name, value in metadata.items() if name != "run_id"}


WAYS = {
    "row": ["generate.stratified=true"],
    "group": ["generate.split=group", "data.group=group"],
    "time": ["generate.split=time", "data.time=day"],
    "in pieces": [
        "generate.training=partial_fit",
        "generate.batch_rows=60",
        "estimator.class=sklearn.linear_model.SGDClassifier",
        "estimator.scaling=standard",
    ],
}


@pytest.mark.parametrize("way", WAYS)
def test_rows_that_wait_for_their_label_are_as_if_they_were_not_there(tmp_path, way):
    table = people()
    both = pa.concat_tables([table, waiting_rows()], promote_options="permissive").unify_dictionaries()
    ids = ["data.row_id=id"]
    if way == "in pieces":
        # Rows have no ids then but their places.
        mixed, ids = both, []
    else:
        mixed = both.take(np.random.default_rng(1).permutation(both.num_rows))
    for name, rows, files in (("without", table, 2), ("with", mixed, 3)):
        data = write(rows, tmp_path / f"data-{name}", files, 50)
        run(data, tmp_path / name, *WAYS[way], *ids)
    assert made(tmp_path / "with") == made(tmp_path / "without")


def test_rows_keep_their_places_and_parts_when_others_get_their_labels(tmp_path):
    table = people()
    hidden = np.random.default_rng(2).random(400) < 0.3
    label = pa.array(table["label"].to_numpy(), mask=hidden)
    fewer = table.set_column(table.schema.get_field_index("label"), "label", label)
    now, then = (
        run(write(rows, tmp_path / f"data-{i}", 3), tmp_path / f"out-{i}")[0]
        for i, rows in enumerate((fewer, table))
    )
    for repeat in range(3):
        scored = [
            log.filter(pa.array(log["repeat"].to_numpy() == repeat))["row_id"].to_numpy()
            for log in (now, then)
        ]
        assert np.array_equal(scored[0], scored[1][~hidden[scored[1]]])


# What fails


def rare(rows=60, positives=2):
    table = people(rows, seed=2)
    label = pa.array((np.arange(rows) % (rows // positives) == 0).astype(np.int8))
    return table.set_column(table.schema.get_field_index("label"), "label", label)


def test_a_part_with_one_class_stops_the_run_or_is_skipped(tmp_path):
    data = write(rare(), tmp_path / "data")
    settings = ["generate.repeats=null", "generate.target_rows=600", "generate.seed=1"]
    settings += CASES["logistic regression"][0]
    with pytest.raises(InputRejectedError, match=r"repeat \d+ \(seed 1\): all \d+ rows trained on") as stop:
        run(data, tmp_path / "out", *settings)
    assert "$[stratified]=true" in str(stop.value)
    log, summary = run(data, tmp_path / "out", *settings, "generate.on_failure=skip")
    assert summary["repeats_failed"] == len(summary["failures"]) > 0
    assert log.num_rows >= 600
    failed = {failure["repeat"] for failure in summary["failures"]}
    assert not failed & set(log["repeat"].to_pylist())
    manifest = json.loads((tmp_path / "out" / "_logcal.json").read_text())
    assert manifest["repeats_failed"] == len(failed)
    assert manifest["failures"][0]["seed"] == 1
    log, summary = run(data, tmp_path / "stratified", *settings, "generate.stratified=true")
    assert summary["repeats_failed"] == 0


@pytest.fixture
def first(monkeypatch):
    """Have something happen before each training, which knows the number of rows."""
    fit = GaussianNB.fit

    def happen(action):
        monkeypatch.setattr(GaussianNB, "fit", lambda self, X, y: (action(len(y)), fit(self, X, y))[1])

    return happen


def test_failing_repeats_are_replaced_until_the_target_is_reached(tmp_path, first):
    def odd(rows):
        if rows % 2 and rows < 100:
            raise ArithmeticError("an odd number of rows")

    first(odd)
    data = write(people(100), tmp_path / "data")
    log, summary = run(data, tmp_path / "out", *TARGET, "generate.target_rows=300")
    assert log.num_rows >= 300
    causes = {failure["cause"] for failure in summary["failures"]}
    assert causes == {"ArithmeticError: an odd number of rows"}
    for repeat, rows in enumerate(np.bincount(log["repeat"].to_numpy())):
        assert rows == 0 or (100 - rows) % 2 == 0, repeat


TARGET = ("generate.repeats=null", "generate.on_failure=skip")


def test_when_all_repeats_fail_the_run_ends(tmp_path, first):
    def never(rows):
        if rows < 100:
            raise ArithmeticError("never")

    first(never)
    data = write(people(100), tmp_path / "data")
    with pytest.raises(InputRejectedError, match=r"repeat 0 \(seed 0\): ArithmeticError: never"):
        run(data, tmp_path / "out", *TARGET, "generate.target_rows=200")
    assert not (tmp_path / "out").exists()


def test_warnings_of_estimators_are_counted(tmp_path, first):
    first(lambda rows: warnings.warn("peculiar", UserWarning, stacklevel=1))
    _, summary = run(write(people(), tmp_path / "data"), tmp_path / "out")
    assert summary["warnings"] == {"UserWarning: peculiar": 4}
    assert issubclass(ConvergenceWarning, UserWarning)  # so that failing to converge is not merely counted


@pytest.mark.parametrize(
    ("data", "settings", "said"),
    [
        (
            people(),
            [*of_class("linear_model.LogisticRegression", params="{max_iter: 1}"), "generate.seed=5"],
            r"(?s)repeats cannot be used.*(repeat \d|all rows) \(seed 5\): NotConvergedError: lbfgs",
        ),
        (
            people(),
            of_class("dummy.DummyClassifier", params="{strategy: prior}"),
            "expected different scores",
        ),
        (rare(), ["generate.train_fraction=0.9"], r"found \d+ that all have label 0: set"),
    ],
    ids=["no convergence", "one score", "one class"],
)
def test_what_gives_no_log_is_refused(tmp_path, data, settings, said):
    with pytest.raises(InputRejectedError, match=said):
        run(write(data, tmp_path / "data"), tmp_path / "out", "generate.repeats=1", *settings)
    assert not (tmp_path / "out").exists()


# Memory


def test_categories_count_once_they_are_known(tmp_path):
    rows = 60_000
    rng = np.random.default_rng(0)
    table = pa.table({"c": [f"c{i}" for i in rng.integers(0, 900, rows)], "label": rng.integers(0, 2, rows)})
    data = write(table, tmp_path / "data", row_group=rows)
    prepared = generate.prepare(configure(data, tmp_path / "out", "data.features=c", "cluster.memory=900MiB"))
    with pytest.raises(InputRejectedError, match=r"needs about 1\.\d+ GiB"):
        prepared.execute(InlineExecutor())


# What is written


def test_a_second_run_finds_its_result(tmp_path):
    data = write(people(), tmp_path / "data")
    run(data, tmp_path / "out")
    with pytest.raises(NothingToDoError):
        run(data, tmp_path / "out")
    with pytest.raises(ConfigError, match="expected a folder that is new or empty"):
        run(data, tmp_path / "out", "generate.seed=1")


def test_the_output_may_be_an_object_store(tmp_path):
    data = write(people(), tmp_path / "data")
    here, _ = run(data, tmp_path / "out")
    url = f"memory://{tmp_path.name}/out"
    config = configure(data, url)
    generate.prepare(config).execute(InlineExecutor())
    filesystem, root = fsspec.core.url_to_fs(url)
    there = [pq.read_table(filesystem.open(path)) for path in sorted(filesystem.glob(f"{root}/log/*"))]
    assert pa.concat_tables(there).equals(here)
    assert find_classifier(url, ("sklearn",)).scores(people()).size == 400
    with pytest.raises(NothingToDoError):
        generate.prepare(config)


def test_the_manifest_says_what_was_done(tmp_path):
    data = write(people(), tmp_path / "data", 2)
    log, _ = run(data, tmp_path / "out", "generate.seed=4")
    manifest = json.loads((tmp_path / "out" / "_logcal.json").read_text())
    assert manifest["rows"] == log.num_rows == sum(file["rows"] for file in manifest["files"])
    assert manifest["positives"] == int(log["label"].to_numpy().sum())
    assert [file["path"] for file in manifest["files"]] == [f"log/part-{i:05d}.parquet" for i in range(3)]
    assert all(file["trained_rows"] + file["rows"] == 400 for file in manifest["files"])
    assert manifest["config"]["estimator"]["class"] == "sklearn.naive_bayes.GaussianNB"
    assert manifest["data"]["rows"] == 400
    metadata = json.loads((tmp_path / "out" / "classifier" / "classifier.json").read_text())
    assert metadata == manifest["classifier"]
    assert metadata["features"] == [
        {"name": "a", "kind": "number"},
        {"name": "b", "kind": "number"},
        {"name": "n", "kind": "number"},
        {"name": "c", "kind": "category"},
    ]
    assert metadata["seed"] == 4
