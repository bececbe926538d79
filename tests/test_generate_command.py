"""`logcal generate` as a user runs it: any number of workers, the other jobs on its result, and bad input."""

import json
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from common import run_command

pytestmark = pytest.mark.system

INLINE = "cluster.kind=inline"


def patients(rows=240, seed=0):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(2, rows))
    return {
        "x": x,
        "y": y,
        "kind": np.array(["a", "b", "c"])[rng.integers(0, 3, rows)],
        "label": (rng.random(rows) < 1 / (1 + np.exp(-2 * x - y))).astype(np.int8),
        "clinic": np.array([f"c{i}" for i in rng.integers(0, 12, rows)]),
    }


def own_settings(place, output="generated", cluster=INLINE):
    paths = {"data.path": place.root / "data", "output.path": place.root / output, "scratch": place.scratch}
    return [cluster, *(f"{key}={path}" for key, path in paths.items())]


def generate(place, *settings, output="generated", flags=(), cluster=INLINE):
    given = [*own_settings(place, output, cluster), *settings]
    return place.run("generate", *(part for text in given for part in ("--set", text)), *flags)


def write(place, columns, files=2):
    return place.write_log(columns, files=files, name="data")


SMALL = ("generate.repeats=4", "data.exclude=clinic")


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("log/*.parquet"))}


def test_the_number_of_workers_changes_nothing_and_the_other_jobs_go_on_from_there(place):
    write(place, patients())
    inline = generate(place, *SMALL, flags=["--json"]).expect(0).json
    local = generate(place, *SMALL, "cluster.workers=2", output="local", cluster="cluster.kind=local").expect(
        0
    )
    assert "repeat: 5 tasks" in local.stderr
    found = contents(place.root / "generated")
    assert len(found) == 4
    assert contents(place.root / "local") == found
    assert inline["rows"] == sum(pq.read_metadata(path).num_rows for path in place.root.glob("local/log/*"))

    # A log like any other: from its folder or from the folder above.
    fits = [
        place.job("fit", "calibrator.method=dgg", "calibrator.params={group_size: 20}", log__path=log).expect(
            0
        )
        for log in (place.root / "generated", place.root / "local" / "log")
    ]
    assert "method dgg, " in fits[0].stdout
    assert "published ads version 000002" in fits[1].stdout  # another log, though of the same content
    first, second = place.versions
    assert first.partition("-")[2] == second.partition("-")[2]

    # Features in, decisions out, with the classifier that was shipped.
    new = place.write_log(patients(seed=1), files=3, name="new")
    scored = place.job(
        "score", "--json", log__path=new, classifier__path=place.root / "generated", output__path=place.output
    ).expect(0)
    table = pq.read_table(place.output)
    assert table.schema.names[-4:] == ["score", "probability", "decision", "table_version"]
    threshold = scored.json["threshold"]
    assert table["decision"].to_pylist() == [p >= threshold for p in table["probability"].to_pylist()]
    right = np.mean(table["decision"].to_numpy() == (table["label"].to_numpy() == 1))
    assert right > 0.7
    evaluated = place.job(
        "evaluate", "log.score=score", log__path=place.output, output__path=place.root / "report"
    ).expect(0)
    assert "Brier" in evaluated.stdout


@pytest.mark.parametrize("guarded", [False, True])
def test_a_script_that_its_worker_processes_would_run_again(place, guarded):
    """Each of them raised its own traceback, and the program said that they do not start."""
    place.root.joinpath("data").mkdir()
    pq.write_table(pa.table(patients()), place.root / "data" / "a.parquet")
    config = {
        "data": {"path": "data", "label": "label"},
        "output": {"path": "generated"},
        "cluster": {"kind": "auto", "workers": 1},
    }
    call = f"logcal.run('generate', {config!r})"
    script = place.root / "script.py"
    text = f"if __name__ == '__main__':\n    {call}" if guarded else call
    script.write_text(f"import logcal\n\n{text}\n")
    done = run_command(
        sys.executable, script, ends=0 if guarded else 1, cwd=place.root, env=place.environment
    )
    if guarded:
        assert (place.root / "generated").exists()
    else:
        assert done.stderr.count("Traceback") == 1  # the program's own, of the error that it does not catch
        assert done.stderr.splitlines()[-1].startswith(
            f"logcal.errors.ConfigError: {script}, line 3: expected"
        )
        assert not (place.root / "generated").exists()


def test_a_dry_run_writes_nothing(place):
    write(place, patients())
    before = place.tree()
    result = generate(place, *SMALL, flags=["--dry-run"]).expect(0)
    assert "GaussianNB" in result.stdout
    assert "about 4 times" in result.stdout
    assert place.tree() == before


def test_rows_without_a_label_wait_for_it(place):
    columns = patients()
    columns["label"] = pa.array(columns["label"], mask=np.arange(240) % 8 == 0)
    write(place, columns)
    said = generate(place, *SMALL).expect(0).stdout
    assert "on all 210 rows that have a label; 30 wait for theirs" in said
    facts = json.loads((place.root / "generated" / "_logcal.json").read_text())
    assert (facts["data"]["rows"], facts["data"]["rows_waiting"]) == (240, 30)
    assert facts["classifier"]["rows"] == 210


# Bad input


def changed(name, make):
    """The data with a column that is made of the one of this name, or of all."""
    return lambda columns: {**columns, name: make(columns.get(name))}


def masked(name, where):
    return changed(name, lambda values: pa.array(values, mask=where(values)))


ROW = np.arange(240)
LISTS = changed("tags", lambda _: pa.array([[1, 2]] * 240))
FEW_NULLS = masked("x", lambda _: ROW == 3)
PAIRS, SCORES = changed("id", lambda _: ROW // 2), changed("score", lambda _: ROW)
CLASS = "estimator.class=sklearn."
NAIVE, CLINIC = "sklearn.naive_bayes.GaussianNB", "data.group=clinic"


def refused(code, said, *settings, change=dict):
    return code, said, settings, change


BAD = [
    # estimators
    refused(2, "found 'os.system': no other package is imported", "estimator.class=os.system"),
    refused(2, "there is no sklearn.utils.os.system", "estimator.class=sklearn.utils.os.system"),
    refused(2, "expected a classifier, found", "estimator.class=sklearn.datasets.load_files"),
    refused(2, "expected one of sklearn, xgboost, lightgbm", "estimator.packages=[sklearn, subprocess]"),
    refused(2, "did you mean 'GaussianNB'?", "estimator.class=sklearn.naive_bayes.GausianNB"),
    refused(2, "predict_proba or decision_function", "estimator.class=sklearn.linear_model.LinearRegression"),
    refused(2, "is made of other estimators", "estimator.class=sklearn.ensemble.VotingClassifier"),
    refused(2, "did you mean 'var_smoothing'?", "estimator.params={var_smothing: 1}"),
    refused(2, f"estimator.params: {NAIVE} rejects them", "estimator.params={var_smoothing: -1}"),
    refused(2, "SVC has no partial_fit", "generate.training=partial_fit", f"{CLASS}svm.SVC"),
    # labels
    refused(3, "found 80 rows with other labels, such as 2", change=changed("label", lambda _: ROW % 3)),
    refused(
        3,
        "(data.label): expected booleans, or numbers 0 and 1, found string",
        change=changed("label", lambda z: np.where(z == 1, "yes", "no")),
    ),
    refused(3, "expected labels of both classes", change=changed("label", np.ones_like)),
    refused(
        3,
        "found 0, and 240 that wait for theirs, which is null",
        "generate.split=group",
        CLINIC,
        change=changed("label", lambda _: pa.nulls(240, pa.int8())),
    ),
    refused(3, "that all have label 0", change=masked("label", lambda z: z == 1)),
    # features
    refused(3, "column 'tags': expected a feature of numbers", change=LISTS),
    refused(3, "only nulls", change=changed("empty", lambda _: pa.nulls(240, pa.float64()))),
    refused(3, "found 1 infinite", change=changed("x", lambda x: np.where(ROW == 7, np.inf, x))),
    refused(2, "no missing values, found nulls in x", "estimator.imputation=none", change=FEW_NULLS),
    refused(2, "expected only numeric features, found", "estimator.categories=none"),
    refused(3, "column 'z' (data.features) is not in any file", "data.features=[x, z]"),
    refused(2, "found 'label', which is data.label", "data.features=[x, label]"),
    # rows, groups and what is kept
    refused(3, "expected at least 10 rows, found 9", change=lambda all_: {n: v[:9] for n, v in all_.items()}),
    refused(
        3,
        "(data.group): expected at least two groups, found one",
        "generate.split=group",
        CLINIC,
        "data.exclude=[]",
        change=changed("clinic", lambda _: ["c1"] * 240),
    ),
    refused(2, "data.group: REQUIRED", "generate.split=group"),
    refused(3, "a different value in each row, found 120", "data.row_id=id", change=PAIRS),
    refused(2, "data.keep: expected no column named score", "data.keep=score", change=SCORES),
    refused(
        3,
        "found cluster.memory=400MiB",
        "cluster.memory=400MiB",
        change=lambda all_: {name: np.tile(values, 5000) for name, values in all_.items()},
    ),
]


@pytest.mark.parametrize(("code", "said", "settings", "change"), BAD, ids=[case[1] for case in BAD])
def test_bad_input_is_refused_and_nothing_is_written(place, code, said, settings, change):
    write(place, change(patients()))
    exclude = [] if any(text.startswith("data.features") for text in settings) else ["data.exclude=clinic"]
    before = place.tree()
    result = generate(place, *exclude, *settings).expect(code, said)
    assert result.stdout == ""
    assert place.tree() == before


def test_all_problems_are_said_at_once(place):
    write(place, {**LISTS(patients()), "label": ["x"] * 240})
    names = ("column 'tags'", "column 'label'", "column 'x' (data.row_id)")
    generate(place, "data.row_id=x", flags=["--dry-run"]).expect(3, *names)


def test_no_such_path(place):
    generate(place, flags=["--dry-run"]).expect(3, "data.path names no log that can be used")


def test_the_classifier_must_be_there(fitted, place):
    place.job("score", classifier__path=place.root / "nowhere").expect(2, "classifier.path: expected a")


def test_the_log_must_have_the_classifiers_features(place):
    write(place, patients())
    generate(place, *SMALL).expect(0)
    place.job("fit", log__path=place.root / "generated").expect(0)
    columns = {**patients(), "kind": np.arange(240) / 7}
    del columns["y"]
    new = place.write_log(columns, name="new")
    result = place.job("score", log__path=new, classifier__path=place.root / "generated")
    result.expect(3, "column 'y'", "is not in any file", "column 'kind': the classifier was trained with a")
    assert not place.output.exists()
    # The score's name is taken.
    new = place.write_log({**patients(), "score": np.zeros(240)}, name="taken")
    result = place.job("score", log__path=new, classifier__path=place.root / "generated")
    result.expect(3, "expected no column 'score'", "set log.score to another name")


def test_another_classifiers_table_is_refused(place):
    write(place, patients())
    generate(place, *SMALL).expect(0)
    generate(place, *SMALL, "generate.seed=5", output="other").expect(0)
    place.job("fit", "calibrator.method=dgg", log__path=place.root / "generated").expect(0)
    paths = {"log__path": place.root / "data", "classifier__path": place.root / "other"}
    place.job("score", **paths).expect(
        4, "classifier.path: expected the classifier of the generated log", "classifier.allow_other=true"
    )
    assert not place.output.exists()
    place.job("score", "classifier.allow_other=true", **paths).expect(0)
