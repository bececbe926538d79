"""The first minutes: config, init, doctor and completion, through the real command."""

import datetime as dt
import json
import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from common import run_command

from jobs.config.rendering import conf_files
from pipeline.files import clock
from pipeline.log.column_facts import find_roles, log_facts

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[1]


# config


@pytest.mark.parametrize("file", sorted(conf_files()))
def test_config_prints_the_files_of_conf(place, file):
    shown = place.run("config", file.removesuffix(".yaml")).expect(0).stdout
    assert shown == (ROOT / "conf" / file).read_text()


def test_config_without_a_name_lists_them(place):
    names = place.run("config").expect(0).stdout.split()
    assert names == [file.removesuffix(".yaml") for file in conf_files()]
    assert place.run("config", "--json").expect(0).json == {"names": names}


def test_a_name_or_a_file_that_is_not_there_suggests_one(place):
    place.run("config", "fitt").expect(2, "found 'fitt'; did you mean fit?")
    place.run("config", "zzz").expect(2, "there are generate, fit")
    place.run("fit", "--config", "fit.yaml").expect(2, "no such file; `logcal config NAME` prints one")


# init


def a_log():
    random = np.random.default_rng(0)
    p = random.random(4000)
    return {
        "user_id": [f"user-{i}" for i in range(4000)],
        "age": random.integers(18, 90, 4000),
        "country": random.choice(["at", "ch", "de"], 4000),
        "pctr": p,
        "clicked": random.random(4000) < p**2,
        "price": random.random(4000) * 100,
        "logged_at": [dt.date(2026, 1, 1 + i % 20) for i in range(4000)],
    }


@pytest.mark.parametrize(
    ("columns", "role", "name"),
    [
        ({"score": pa.array([0.1, 0.9], pa.float32()), "label": [0, 1]}, "score", "score"),
        ({"model_score": [-3.0, 4.0], "p_other": [0.1, 0.2], "y": [0.0, 1.0]}, "score", "model_score"),
        ({"a": [0.1, 0.2], "b": [3.0, 4.0], "c": [0, 1]}, "score", "a"),
        ({"a": [0.1, 0.2], "b": [3.0, 4.0], "c": [0, 1]}, "label", "c"),
        ({"p": [0.1, 0.2], "isFraud": [True, False], "flag": [True, False]}, "label", "isFraud"),
        ({"p": [0.1, 0.2], "sample_weight": [0.5, 2.0], "y": [0, 1]}, "weight", "sample_weight"),
        ({"p": [0.1, 0.2], "day": [20260101, 20260131], "y": [0, 1]}, "date", "day"),
        ({"p": [0.1, 0.2], "ds": ["2026-01-01", "2026-01-31"], "y": [0, 1]}, "date", "ds"),
        ({"p": [0.1, 0.2], "model_id": [3, 4], "rank": [3, 4], "y": [0, 1]}, "segment", "model_id"),
    ],
)
def test_the_likeliest_column_comes_first(place, columns, role, name):
    place.write_log(columns, files=1)
    assert getattr(find_roles(log_facts(str(place.log)).columns), role)[0].name == name


def test_hive_folders_can_be_the_date(place):
    for day in ("2026-01-01", "2026-01-02"):
        place.write_log({"p": [0.1, 0.2], "y": [0, 1]}, files=1, name=f"log/date={day}")
    roles = find_roles(log_facts(str(place.log)).columns)
    assert roles.date[0].name == "date"
    assert roles.date[0].folders


def test_what_init_writes_runs(place):
    place.write_log(a_log())
    said = place.run("init", "log", "conf").expect(0).stdout
    assert "logcal fit --config conf/logcal.yaml" in said
    assert "logcal evaluate --config conf/logcal.yaml --set log.path=OTHER_ROWS" in said
    assert "# For compare, fit, evaluate, monitor, score;" in (place.root / "conf/logcal.yaml").read_text()
    [written] = (place.root / "conf").iterdir()
    config = yaml.safe_load(written.read_text())
    assert (config["log"]["score"], config["log"]["label"]) == ("pctr", "clicked")
    assert config["window"]["column"] == "logged_at"
    assert "add segment: [country] to log" in written.read_text()
    assert len(written.read_text().splitlines()) < 15
    for job in ("compare", "fit", "score", "evaluate"):
        place.run(job, "--config", str(written), "--set", "cluster.kind=inline").expect(0)
    assert {"compare", "evaluate", "scored"} <= {path.name for path in written.parent.iterdir()}
    before = place.tree()
    place.run("init", "log", "conf").expect(2, "expected one without a configuration, found")
    assert place.tree() == before


def test_init_daily_writes_a_day_that_runs_as_it_is(place, monkeypatch):
    def day(number):
        z = np.random.default_rng(number).normal(size=3000)
        label = np.random.default_rng([number, 1]).random(3000) < 1 / (1 + np.exp(-z - 0.5))
        columns = {"pctr": 1 / (1 + np.exp(-z)), "clicked": label}
        place.write_log(columns, files=1, name=f"log/date=2026-01-{number:02}")

    def run(number, *options):
        now = dt.datetime(2026, 1, number + 1, 6, 30, tzinfo=dt.UTC)
        monkeypatch.setattr(clock, "now", lambda: now)
        inline = ("--set", "cluster.kind=inline")
        return place.run("days", "run", "--config", "ads/day.yaml", *inline, *options)

    place.write_log({"pctr": [0.1, 0.9], "clicked": [0, 1]}, name="undated")
    place.run("init", "--daily", "undated", "ads").expect(3, "window.column: expected a column of dates")
    day(1)
    said = place.run("init", "--daily", "log", "ads").expect(0).stdout
    assert "logcal days run --config ads/day.yaml --new" in said
    assert [path.name for path in (place.root / "ads").iterdir()] == ["day.yaml"]
    assert len((place.root / "ads/day.yaml").read_text().splitlines()) < 17
    run(1).expect(2, "give --new")
    run(1, "--new").expect(0)
    run(1).expect(99, "all days up to 2026-01-01 are done")
    day(2)
    plan = run(2, "--dry-run", "--json").expect(0).json
    assert plan["facts"]["days"] == {"2026-01-02": ["evaluate", "monitor", "fit", "score"]}
    done = run(2, "--json").expect(0).json
    assert (done["rows"], done["states"]["done"]) == (3000, 2)
    report = place.root / "ads/reports/2026-01-02/run.json"
    assert json.loads(report.read_bytes())["in_sample"] is False
    assert (place.root / "ads/reports/monitor/report.html").exists()
    assert sorted(path.name for path in (place.root / "ads/scored").iterdir()) == ["2026-01-01", "2026-01-02"]
    run(2, "--new").expect(2, "leave --new out")
    run(2, "--set", "log.no=1").expect(2)
    listed = place.run("days", "list", "--config", "ads/day.yaml").expect(0).stdout.splitlines()
    assert [line.split()[:2] for line in listed] == [["2026-01-01", "done"], ["2026-01-02", "done"]]
    assert "3,000 rows  3,000 labelled" in listed[1]
    assert "observed/expected" in listed[1]
    # A missing day: the record says what the command said.
    missing = run(3, "--json").expect(4, "1 day to decide on: 2026-01-03 (missing)").json
    assert [entry["state"] for entry in missing["days"]] == ["missing"]
    records = [json.loads(path.read_text()) for path in (place.root / "ads/tables/log/runs").iterdir()]
    assert {record["job"] for record in records} == {"days"}
    [record] = [record for record in records if record["exit_code"] == 4]
    assert record["result"]["states"] == missing["states"]


def test_init_sets_a_limit_for_nulls_that_are_there(place):
    columns = a_log()
    columns["pctr"] = [None if i < 100 else value for i, value in enumerate(columns["pctr"])]
    columns["clicked"] = [None if i < 300 else value for i, value in enumerate(columns["clicked"])]
    place.write_log(columns)
    said = place.run("init", "log", "conf").expect(0).stdout
    log = yaml.safe_load((place.root / "conf" / "logcal.yaml").read_text())["log"]
    # Rows whose label is not known yet are no bad rows.
    assert (log["on_bad_rows"], log["max_bad_fraction"]) == ("quarantine", 0.03)
    assert "300 nulls: labels not known yet" in said
    place.run("fit", "--config", "conf/logcal.yaml", "--set", "cluster.kind=inline").expect(0)


def test_init_says_how_files_of_several_types_are_read_and_what_fit_will_refuse(place):
    """Footers with bounds of text and of times ended it with exit 1."""
    first = place.predictions(1200)
    count = len(first["score"])
    times = pa.array(np.arange(count) * 600_000_000 + 1_790_000_000_000_000, pa.timestamp("us"))
    countries = pa.array(np.resize(["DE", "FR"], count))
    score = pa.array([Decimal(f"{value:.6f}") for value in first["score"]], pa.decimal128(12, 6))
    place.log.mkdir()
    for name, columns, options in (
        (
            "a",
            {"score": first["score"], "at": times.cast(pa.timestamp("us", "UTC")), "country": countries},
            {},
        ),
        ("b", {"score": score, "at": times, "country": countries}, {"use_deprecated_int96_timestamps": True}),
        ("c", {"score": score, "at": times.cast(pa.string()), "country": pa.array(np.arange(count))}, {}),
    ):
        table = pa.table({**columns, "label": first["label"]})
        pq.write_table(table, place.log / f"{name}.parquet", **options)
    done = place.run("init", "log", "conf", "--set", "log.segment=country", "--json").expect(0).json
    notes = done["notes"]
    assert "decimal128(12, 6) in 2 files (b.parquet, c.parquet): read as double" in notes["log.score"]
    assert "nearest doubles, which keep 15 digits" in notes["log.score"]
    assert "days are those of window.timezone" in notes["window.column"]
    assert "(as of INT96): each job reads this column" in notes["window.column"]
    [refused] = done["refused"]
    config = ("--config", "conf/logcal.yaml", "--set", "cluster.kind=inline")
    assert refused in place.run("fit", *config).expect(3).stderr
    place.run("fit", *config, "--set", "log.segment=[]").expect(0)
    shutil.rmtree(place.root / "conf")
    assert (
        f"`logcal fit` will refuse: {refused}"
        in place.run("init", "log", "conf", "--set", "log.segment=country").expect(0).stdout
    )


def test_init_without_a_label_says_what_there_is(place):
    place.write_log({"p": [0.1, 0.9], "name": ["a", "b"]}, files=1)
    said = place.run("init", "log", "conf").expect(3, "log.label: expected a column of booleans")
    assert "name (string, a to b)" in said.stderr
    assert not (place.root / "conf").exists()
    place.run("init", "nowhere", "conf").expect(3)
    place.write_log({"p": [0.1, 0.9], "gone": [2, 1]}, files=1)
    place.run("init", "log", "conf", "--set", "log.label=gone").expect(0)
    place.run("init", "log", "conf2", "--set", "log.labl=gone").expect(2, "log.labl: unknown key")
    # Without a date, and with weights, there is no monitor.
    place.write_log({"p": [0.1, 0.2], "y": [0, 1]}, files=1, name="undated")
    place.run("init", "undated", "conf5").expect(0)
    assert "# For compare, fit, evaluate, score;" in (place.root / "conf5/logcal.yaml").read_text()
    key = ("--set", "log.key=gone")
    place.run("init", "log", "conf4", "--set", "log.labels.path=[null]", *key).expect(
        2, "expected paths, found"
    )
    place.run("init", "log", "conf4", "--set", "log.labels.path=outcomes").expect(
        3, "such as with --set log.key=NAME"
    )
    # Labels may be in other files: then a column that looks like one is not read.
    joined = (*key, "--set", "log.labels.path=outcomes")
    place.write_log({"p": [0.1, 0.9], "gone": [2, 1], "label": [0, 1]}, files=1)
    place.run("init", "log", "conf3", *joined).expect(0)
    log = yaml.safe_load((place.root / "conf3" / "logcal.yaml").read_text())["log"]
    assert log == {"path": "../log", "score": "p", "key": "gone", "labels": {"path": "../outcomes"}}


# doctor


def test_doctor_says_what_is_there(place):
    place.write_log()
    found = place.run("doctor", "--json", "--set", "log.path=log", "--set", "store.path=tables").json
    assert found["log"] == "log: 3 files, 3,000 rows"
    assert found["store"] == "tables, which will be made: can be written to"
    assert set(found) >= {"logcal", "Python", "packages", "memory", "compiled code", "scratch", "cluster"}
    assert not (place.root / "tables").exists()


def test_doctor_names_a_distribution_that_has_a_package_of_our_names(place, monkeypatch):
    owners = {"jobs": ["jobs-of-others"], "calibrators": ["logcal"], "numpy": ["numpy"]}
    monkeypatch.setattr("jobs.doctor.metadata.packages_distributions", lambda: owners)
    said = place.run("doctor").expect(
        2, "expected packages named calibrators, jobs, logcal, pipeline of logcal alone"
    )
    assert "found jobs of jobs-of-others: uninstall it" in said.stderr


def test_doctor_says_all_obstacles_at_once(place):
    (place.root / "file").write_text("")
    settings = (
        "store.path=file",
        "scratch=file",
        "cluster.kind=address",
        "cluster.address=tcp://127.0.0.1:9",
    )
    said = place.run("doctor", *(p for s in (*settings, "cluster.timeout=0.2") for p in ("--set", s)))
    said.expect(2, "found 3 obstacles", "!!  scratch", "!!  cluster", "!!  store")


def test_doctor_takes_a_job_s_configuration(place):
    place.write_log()
    place.run("init", "log", "conf").expect(0)
    assert "ready" in place.run("doctor", "--config", "conf/logcal.yaml").expect(0).stdout
    place.run("doctor", "--set", "cluster.kinde=local").expect(2, "unknown key; did you mean cluster.kind?")


def test_doctor_reports_configuration_plan_and_record_without_secrets(fitted):
    config = {
        "log": {"path": str(fitted.log)},
        "store": {"path": str(fitted.store), "table": fitted.table},
        "storage": {"options": {"s3": {"key": "someone", "secret": "hush-hush"}}},
        "record": {"openlineage": "https://me:pass-word@lineage.example/api"},
    }
    (fitted.root / "a.yaml").write_text(yaml.safe_dump(config))
    said = fitted.run("doctor", "--report", "--config", "a.yaml", "--set", "scratch=missing").expect(0).stdout
    assert "plan of fit" in said
    assert '"job": "fit"' in said
    assert "s3" in said
    for secret in ("hush-hush", "someone", "pass-word"):
        assert secret not in said


# completion


def complete(place, *words):
    environment = {
        **place.environment,
        "_LOGCAL_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["logcal", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = run_command(Path(sys.executable).parent / "logcal", env=environment)
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_completion_knows_commands_keys_and_values(place):
    assert complete(place, "ev") == ["evaluate"]
    assert "log.path=" in complete(place, "fit", "--set", "log.p")
    assert complete(place, "fit", "--set", "calibrator.monotone=r") == [
        "calibrator.monotone=require",
        "calibrator.monotone=repair",
    ]
    assert complete(place, "config", "clus") == ["cluster/local", "cluster/slurm", "cluster/kubernetes"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(place, shell):
    script = place.run("completion", shell).expect(0).stdout
    assert "_LOGCAL_COMPLETE" in script
    if shell == "bash":
        assert "nospace" in script
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_a_window_without_its_unit_says_how_to_write_it(place):
    place.job("fit", "window.last=28").expect(2, "found the number 28: write 28d")
    place.job("fit", "window.last='28'").expect(2, "found '28': write 28d")
