"""Shipped classifiers: what is loaded, what is refused, and scores that do not depend on how rows lie in files."""

import functools
import json
import os
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skops.io
from common import write_lookup
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from calibrators.core.map import CalibrationMap
from calibrators.core.passes import collapse
from calibrators.isotonic.calibrator import Isotonic
from logcal.errors import ConfigError, InputRejectedError
from pipeline.classifier.estimators import EstimatorRecipe, make_model
from pipeline.classifier.features import Feature, Roles, as_frame, open_features
from pipeline.classifier.shipped_classifier import (
    METADATA,
    MODEL,
    TRAINING_SCORES,
    dump_model,
    find_classifier,
    load_model,
    sha256,
    threshold_of,
    training_scores_bytes,
)
from pipeline.execution import InlineExecutor
from pipeline.score.scored import score_log, scored_output
from pipeline.score.scored_file import Classifying, Scoring

pytestmark = pytest.mark.system

FEATURES = (Feature("a", "number"), Feature("b", "number"), Feature("c", "category"))


def table(rows=300, seed=0):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, rows))
    return pa.table(
        {
            "a": pa.array(a, mask=rng.random(rows) < 0.1),
            "b": b,
            "c": np.array(["x", "y", "z"])[rng.integers(0, 3, rows)],
            "label": (rng.random(rows) < 1 / (1 + np.exp(-2 * b))).astype(np.int8),
        }
    )


def ship(folder, model=None, features=FEATURES):
    """A shipped classifier in a folder."""
    folder.mkdir()
    rows = table()
    if model is None:
        recipe = EstimatorRecipe("sklearn.linear_model.LogisticRegression", scaling="standard")
        model = make_model(recipe, features, 0).fit(as_frame(rows, features), rows["label"].to_numpy())
    content = dump_model(model, ("sklearn",))
    (folder / MODEL).write_bytes(content)
    metadata = {
        "format_version": "1",
        "sha256": sha256(content),
        "features": [feature._asdict() for feature in features],
    }
    (folder / METADATA).write_text(json.dumps(metadata))
    score = model.predict_proba(as_frame(rows, features))[:, 1]
    (folder / TRAINING_SCORES).write_bytes(training_scores_bytes(collapse(score, rows["label"].to_numpy())))
    return folder, model


ESTIMATORS = [
    GaussianNB(),
    LogisticRegression(),
    SGDClassifier(loss="log_loss"),
    DecisionTreeClassifier(),
    RandomForestClassifier(5),
    HistGradientBoostingClassifier(max_iter=3),
    KNeighborsClassifier(),
    MLPClassifier((4,), solver="lbfgs", max_iter=1000),
    SVC(),
]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda estimator: type(estimator).__name__)
def test_classifiers_come_back_as_they_were(estimator):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    fitted = estimator.fit(X, X[:, 0] + rng.normal(size=80) > 0)
    again = load_model(dump_model(fitted, ("sklearn",)), ("sklearn",), "it")
    method = "predict_proba" if hasattr(fitted, "predict_proba") else "decision_function"
    assert np.array_equal(getattr(again, method)(X), getattr(fitted, method)(X))


class Stranger:
    """A class that is on no list; its pickle makes a folder."""

    path = ""

    def __reduce__(self):
        return os.mkdir, (self.path,)


NOT_LISTED = r"types of classifiers on the allow list, found .*nothing"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (skops.io.dumps, NOT_LISTED),
        (lambda stranger: skops.io.dumps(functools.partial(os.mkdir, stranger.path)), NOT_LISTED),
        (lambda stranger: skops.io.dumps(os.system), NOT_LISTED),
        (pickle.dumps, "expected a classifier in the skops format"),
    ],
)
def test_other_types_and_pickles_are_refused_and_nothing_is_loaded(tmp_path, make, said):
    folder, _ = ship(tmp_path / "classifier")
    stranger = Stranger()
    stranger.path = str(tmp_path / "harm")
    content = make(stranger)
    (folder / MODEL).write_bytes(content)
    metadata = json.loads((folder / METADATA).read_text())
    (folder / METADATA).write_text(json.dumps({**metadata, "sha256": sha256(content)}))
    with pytest.raises(InputRejectedError, match=said):
        find_classifier(str(folder), ("sklearn",))
    assert not (tmp_path / "harm").exists()


def test_files_that_do_not_belong_together_are_refused(tmp_path):
    folder, _ = ship(tmp_path / "classifier")
    (folder / MODEL).write_bytes((folder / MODEL).read_bytes() + b" ")
    with pytest.raises(InputRejectedError, match=r"expected the file that classifier.json describes"):
        find_classifier(str(folder), ("sklearn",))
    (folder / MODEL).unlink()
    with pytest.raises(InputRejectedError, match="found no such file"):
        find_classifier(str(folder), ("sklearn",))


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("{", InputRejectedError, "expected JSON"),
        ('{"format_version": "7"}', InputRejectedError, "expected format_version 1, found 7: a newer"),
        (None, ConfigError, r"\$\[classifier\]: expected a folder with classifier.json"),
    ],
)
def test_metadata_that_cannot_be_used(tmp_path, text, error, message):
    folder, _ = ship(tmp_path / "classifier")
    (folder / METADATA).unlink() if text is None else (folder / METADATA).write_text(text)
    with pytest.raises(error, match=message):
        find_classifier(str(folder), ("sklearn",))


def test_it_is_found_below_the_generated_log(tmp_path):
    ship(tmp_path / "classifier")
    assert find_classifier(str(tmp_path), ("sklearn",)).path == str(tmp_path / "classifier")


def test_the_threshold_is_the_best_on_the_training_rows(tmp_path):
    folder, model = ship(tmp_path / "classifier")
    rows = table()
    score = model.predict_proba(as_frame(rows, FEATURES))[:, 1]
    label = rows["label"].to_numpy()
    calibration_map = Isotonic(ends=0).fit(score[::2], label[::2]).calibration_map_
    found = find_classifier(str(folder), ("sklearn",)).threshold(calibration_map)
    p = calibration_map.predict(score)
    rates = [np.mean((p >= t) == label) for t in [*np.unique(p), 2.0]]
    assert found.rate == pytest.approx(max(rates))
    assert np.mean((p >= found.value) == label) == pytest.approx(found.rate)
    # The score's transform comes first.
    margins = collapse(np.array([-1.0, 0.0, 2.0]), np.array([0, 1, 1]))
    steps = CalibrationMap.from_bins(np.array([0.4]), np.array([0.2, 0.9]), np.ones(2), np.ones(2))
    assert threshold_of(margins, steps, "sigmoid").rate == 1.0


NEW = ["score", "probability", "decision", "table_version"]


@pytest.mark.parametrize("compression", ["snappy", "zstd", "none"])
@pytest.mark.parametrize("row_group", [10, 128, 1000])
def test_a_log_of_features_gets_score_probability_and_decision(tmp_path, compression, row_group):
    folder, _ = ship(tmp_path / "classifier")
    classifier = find_classifier(str(folder), ("sklearn",))
    rows = table(500, seed=3)
    (tmp_path / "log").mkdir()
    pq.write_table(rows, tmp_path / "log" / "part.parquet", row_group_size=row_group, compression=compression)
    calibration_map = Isotonic(ends=0).fit([0.1, 0.3, 0.5, 0.8], [0, 1, 0, 1]).calibration_map_
    lookup = write_lookup(tmp_path / "lookup.parquet", calibration_map)
    log = open_features(str(tmp_path / "log"), Roles(None), trained_features=classifier.features).log
    scoring = Scoring("score", lookup, classifying=Classifying(classifier, 0.6))
    scored = score_log(log, scoring, scored_output(str(tmp_path / "out")), InlineExecutor(), run_id="x")
    assert scored.counts.rows == 500
    assert scored.counts.null_rows == 0
    found = pq.read_table(tmp_path / "out" / "part.parquet")
    assert found.schema.names == [*rows.schema.names, *NEW]
    assert found.select(rows.schema.names).equals(rows)
    assert found.schema.field("decision").type == pa.bool_()
    score = classifier.scores(rows)
    p = calibration_map.predict(score)
    assert np.array_equal(found["score"].to_numpy(), score)
    assert np.array_equal(found["probability"].to_numpy(), p)
    assert found["decision"].to_pylist() == (p >= 0.6).tolist()
    assert 0 < sum(found["decision"].to_pylist()) < 500
    # What a filter on the statistics finds is what is there.
    positive = pq.read_table(tmp_path / "out" / "part.parquet", filters=[("decision", "=", True)])
    assert positive.num_rows == (p >= 0.6).sum()
