"""`--each`: one job for each of several configuration files, each as a command of its own would run it."""

import json
import os
import shutil
import signal
import subprocess
from importlib.metadata import version

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from common import predictions
from conftest import INLINE, LOGCAL, Running

from jobs import each, interrupts
from jobs.cluster.starting import SharedCluster, starting_executor
from jobs.config.cluster import ClusterConfig
from jobs.each import run_each
from jobs.registry import JOBS
from logcal.errors import CheckFailedError, TemporaryError

CHANGING = {"lookup_path", "path", "seconds", "version", "created"}


def configuration(place, name, **sections):
    """Write a configuration in a folder of its own, with paths that are relative to it, and its log."""
    folder = place.root / name
    folder.mkdir()
    values = {
        "log": {"path": "log"},
        "store": {"path": "../store", "table": name},
        "calibrator": {"method": "isotonic"},
        "gate": {"min_rows": 0, "min_positives": 0, "ranking": False, "agreement": False},
        "scratch": "../scratch",
    }
    for section, keys in sections.items():
        values[section] = {**values.get(section, {}), **keys}
    place.write_log(predictions(seed=len(name)), name=f"{name}/log")
    (folder / "fit.yaml").write_text(json.dumps(values))
    return f"{name}/fit.yaml"


def run(place, *arguments, kind=INLINE, job=("fit",)):
    return place.run(*job, "--each", *arguments, "--set", kind)


def lines(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


def alone(place, file, *arguments, kind=INLINE):
    return place.run("fit", "--config", file, "--json", "--set", kind, *arguments)


def lookups(place, store="store"):
    """The bytes of the live table of each table in a store."""
    found = {}
    for table in sorted((place.root / store).iterdir()):
        if (table / "CURRENT").exists():
            version = (table / "CURRENT").read_text().strip()
            found[table.name] = (table / "versions" / version / "lookup.parquet").read_bytes()
    return found


@pytest.fixture
def mixed(place):
    """Seven files, and the exit code of each."""
    done = configuration(place, "done")
    alone(place, done).expect(0)
    damaged = configuration(place, "damaged", log={"give_up": "0s"})
    part = place.root / "damaged/log/part-1.parquet"
    part.write_bytes(part.read_bytes()[:-100])
    (place.root / "blocked").write_text("a file where a folder is needed")
    # No refused run is first or last.
    return {
        done: 99,
        configuration(place, "misspelt", log={"lable": "label"}): 2,
        configuration(place, "first"): 0,
        damaged: 3,
        configuration(place, "refused", gate={"min_rows": 10**6}): 4,
        configuration(place, "unwritable", store={"path": "../blocked/store"}): 2,
        "absent/fit.yaml": 2,
        configuration(place, "last"): 0,
    }


def test_each_file_has_its_outcome_and_the_worst_is_the_commands(place, mixed):
    result = run(place, *mixed, "--json").expect(
        2, "8 files by exit code: 2 with 0, 3 with 2, 1 with 3, 1 with 4"
    )
    found = lines(result)
    assert {line["file"]: line["exit_code"] for line in found} == mixed
    assert list(found[0])[:2] == ["file", "exit_code"]
    assert set(lookups(place)) == {"done", "first", "last"}
    for name, code in (("first", 0), ("refused", 4)):
        (record,) = (place.store / name / "runs").iterdir()
        assert json.loads(record.read_text())["exit_code"] == code
    for line in found:
        # The same error as alone; what was published has nothing to do.
        again = alone(place, line.pop("file"))
        code = again.json.get("exit_code", 0)
        assert code == (line["exit_code"] or 99)
        if line.pop("exit_code") not in (0, 4):
            assert line == {key: value for key, value in again.json.items() if key != "exit_code"}
    # Without the refused ones: nothing to do.
    run(place, *(file for file, code in mixed.items() if code in (0, 99))).expect(99)


def test_a_result_is_that_of_a_single_run(place):
    file, other = configuration(place, "one"), configuration(place, "other")
    found, _ = lines(run(place, file, other, "--json").expect(0))
    shutil.rmtree(place.store)
    expected = alone(place, file).expect(0).json
    assert (found.pop("file"), found.pop("exit_code")) == (file, 0)
    assert found.keys() == expected.keys()
    same = found.keys() - CHANGING
    assert {key: found[key] for key in same} == {key: expected[key] for key in same}


def test_text_is_headed_by_the_files_name(place, mixed):
    result = run(place, *mixed).expect(2)
    files = list(mixed)
    headings = [line[:-1] for line in result.stdout.splitlines() if line.endswith("fit.yaml:")]
    assert headings == [files[2], files[7]]
    assert f"{files[2]}:\npublished first version 000001-" in result.stdout
    for file, code in mixed.items():
        assert (f"logcal fit: {file}: " in result.stderr) == (code != 0)
        assert f"INFO {file} ({files.index(file) + 1} of 8)" in result.stderr


def test_a_dry_run_prints_each_plan_and_writes_nothing(place):
    files = [configuration(place, name) for name in ("one", "two")]
    before = place.tree()
    result = run(place, *files, "--dry-run").expect(0)
    assert [line for line in result.stdout.splitlines() if line.endswith(":") and "fit.yaml" in line] == [
        f"{file}:" for file in files
    ]
    assert result.stdout.count("fit would do this") == 2
    assert place.tree() == before


@pytest.mark.parametrize(
    ("codes", "worst"),
    [
        ((0, 99, 0), 0),
        ((99, 99), 99),
        ((0, 75, 99), 75),
        ((75, 4, 0), 4),
        ((4, 3, 75), 3),
        ((3, 2), 2),
        ((99, 2, 1, 0), 1),
    ],
)
def test_the_order_of_exit_codes(codes, worst, monkeypatch):
    left = list(codes)
    monkeypatch.setattr(each, "run_values", lambda *given, **more: left.pop(0))
    files = [f"{number}.yaml" for number in range(len(codes))]
    assert run_each(JOBS["fit"], files, (), (), dry_run=False, as_json=False) == worst


def test_a_bug_in_one_run_does_not_stop_the_others(place, monkeypatch):
    files = [configuration(place, name) for name in ("one", "two", "three")]
    prepare = JOBS["fit"].load_module().prepare

    def fails(config):
        if config.store.table == "two":
            raise KeyError("missing")
        return prepare(config)

    monkeypatch.setattr(JOBS["fit"].load_module(), "prepare", fails)
    result = run(place, *files, "--json")
    assert result.code == 1
    assert [line["exit_code"] for line in lines(result)] == [0, 1, 0]
    assert f"logcal fit: {files[1]}: a bug in logcal" in result.stderr


@pytest.mark.parametrize(
    "kind",
    ["inline", *(pytest.param(kind, marks=pytest.mark.system) for kind in ("threads", "local"))],
)
def test_tables_are_those_of_single_fits_and_share_a_cluster(place, kind):
    segment = np.array(["a", "b", "c"])[np.arange(3000) % 3]
    day = np.array(["2026-03-01", "2026-03-02", "2026-03-03"], dtype="datetime64[D]")[np.arange(3000) % 3]
    files = [
        configuration(place, "plain"),
        configuration(place, "auto", calibrator={"method": "auto"}),
        configuration(place, "segments", log={"segment": ["country"]}),
        configuration(place, "absent", log={"path": "nothing"}),
        configuration(place, "window", window={"column": "day", "suspect_days": "use"}),
        configuration(place, "platt", calibrator={"method": "platt"}),
    ]
    for name in ("segments", "window"):
        place.write_log(predictions(seed=1, country=segment, day=pa.array(day)), name=f"{name}/log")
    cluster = f"cluster={{kind: {kind}, workers: 2, memory: 400MiB}}"
    result = run(place, *files, kind=cluster).expect(3)
    found = lookups(place)
    assert set(found) == {"plain", "auto", "segments", "window", "platt"}
    dashboards = [
        line.partition("dashboard: ")[2] for line in result.stderr.splitlines() if "dashboard: " in line
    ]
    assert (len(dashboards), len(set(dashboards))) == ((5, 1) if kind == "local" else (0, 0))
    for file in files:
        if "absent" not in file:
            alone(place, file, "--set", f"store.path={place.root}/others").expect(0)
    assert found == lookups(place, "others")


def test_settings_and_shared_files_apply_to_each(place):
    files = [configuration(place, name) for name in ("one", "two")]
    (place.root / "shared").mkdir()
    shared = {"calibrator": {"method": "histogram"}, "store": {"path": "tables"}, "report": {"path": "x"}}
    (place.root / "shared/base.yaml").write_text(json.dumps(shared))
    arguments = (*files, "--config", "shared/base.yaml", "--set", "calibrator.method=platt", "--json")
    found = lines(run(place, *arguments).expect(0))
    assert [(line["file"], line["table"]) for line in found] == [(files[0], "one"), (files[1], "two")]
    manifests = list(place.store.rglob("manifest.json"))
    assert len(manifests) == 2
    assert {json.loads(path.read_text())["method"] for path in manifests} == {"platt"}


def test_runs_that_would_write_one_table_are_refused(place):
    (place.root / "link").symlink_to("store")
    files = [
        configuration(place, "first"),
        configuration(place, "copied", store={"table": "first"}),
        configuration(place, "linked", store={"path": "../link", "table": "first"}),
        configuration(place, "elsewhere", store={"path": "../store2", "table": "first"}),
        configuration(place, "other"),
    ]
    found = lines(run(place, *files, files[4], "--json").expect(2))
    assert [line["exit_code"] for line in found] == [2, 2, 2, 0, 2, 2]
    assert f"found table first in {place.store} for {', '.join(files[:3])}" in found[0]["error"]
    assert not place.store.exists()
    assert set(lookups(place, "store2")) == {"first"}
    # --set gives all the same table.
    found = lines(run(place, *files[:2], "--set", "store.table=all", "--json").expect(2))
    assert [line["exit_code"] for line in found] == [2, 2]


def test_credentials_of_one_file_are_not_used_for_another(place):
    options = {"options": {"s3": {"key": "abc", "secret": "hidden"}}}
    files = [
        configuration(place, "one", storage=options),
        configuration(place, "two"),
        configuration(place, "three", storage=options),
        configuration(place, "four", storage={"options": {"s3": {"key": "xyz"}}}),
    ]
    result = run(place, *files, "--json").expect(2)
    found = lines(result)
    assert [line["exit_code"] for line in found] == [0, 2, 0, 2]
    assert found[1]["error"].startswith(f"storage.options: expected those of {files[0]}, found others")
    assert "hidden" not in result.stdout + result.stderr
    assert set(lookups(place)) == {"one", "three"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fit", "--each"), "--each: expected configuration files after it, found none."),
        (
            ("fit", "a.yaml"),
            "Got unexpected extra argument (a.yaml): expected --config or --each before it.",
        ),
        (("fit", "--each", "a.yaml", "--dry-run", "--graph", "g.svg"), "--graph: draws one job"),
        (
            ("score", "--each", "a.yaml"),
            "No such option: --each" if version("click") < "8.5" else "No such option '--each'",
        ),
    ],
)
def test_usage(place, arguments, said):
    assert place.run(*arguments).expect(2, said).stdout == ""


def test_days_of_each(place):
    files = []
    for name in ("one", "two", "three"):
        own = {
            "window": {"column": "date", "last": "7d", "suspect_days": "use", "until": "2026-03-03"},
            "report": {"path": "reports/{day}"},
            "output": {"path": "scored/{day}"},
            "gate": {"holdout": "none"},
        }
        files.append(configuration(place, name, **own))
        shutil.rmtree(place.root / name / "log")
        for day in (1, 2, 3):
            path = place.root / name / f"log/date=2026-03-0{day}/part.parquet"
            path.parent.mkdir(parents=True)
            pq.write_table(pa.table(predictions(seed=day)), path)
    (place.root / "two/log/date=2026-03-02/part.parquet").write_bytes(b"no Parquet")
    settings = ("--set", "log.give_up=0s")
    result = run(place, *files, "--json", "--new", "--begin", "2026-03-01", *settings, job=("days", "run"))
    found = lines(result.expect(4))
    assert [line["exit_code"] for line in found] == [0, 4, 0]
    assert [line["table"] for line in found] == ["one", "two", "three"]
    assert lookups(place).keys() == {"one", "two", "three"}
    for name, days in (("one", (1, 2, 3)), ("two", (1, 3)), ("three", (1, 2, 3))):
        scored = {path.name for path in (place.root / name / "scored").iterdir() if "." not in path.name}
        assert scored == {f"2026-03-0{day}" for day in days}
    shown = run(place, *files, "--begin", "2026-03-01", *settings, job=("days", "run")).expect(4)
    assert f"logcal days run: {files[0]}: all days up to 2026-03-03 are done" in shown.stderr


# What ends a command


def started(place, files, request):
    """Start a command whose second file has a long log; wait until it sorts that."""
    settings = ("--set", "cluster.kind=threads", "--set", "cluster.workers=1")
    running = Running([LOGCAL, "fit", "--json", "--each", *files, *settings], place.root, place.environment)
    request.addfinalizer(running.kill)
    running.await_line("(2 of 3)")
    running.await_that(lambda: list(place.scratch.glob("logcal-scratch-*/run-*")), "a sorted run")
    return running


@pytest.fixture
def three(place):
    files = [configuration(place, name) for name in ("one", "two", "three")]
    long = place.write_long_log(files=20)
    shutil.rmtree(place.root / "two/log")
    long.rename(place.root / "two/log")
    return files


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupt_ends_the_command_and_keeps_what_is_done(place, three, request, number):
    running = started(place, three, request)
    running.process.send_signal(number)
    result = running.result().expect(128 + number, f"{three[1]}: interrupted; nothing was published")
    assert "logcal fit: interrupted; 1 file not begun" in result.stderr
    found = lines(result)
    assert [(line.get("file"), line["exit_code"]) for line in found] == [
        (three[0], 0), (three[1], 128 + number), (None, 128 + number),
    ]  # fmt: skip
    assert set(lookups(place)) == {"one"}
    assert list(place.scratch.iterdir()) == []
    running.await_no_processes()


@pytest.mark.system
def test_a_killed_command_runs_again(place, three, request):
    running = started(place, three, request)
    os.killpg(running.process.pid, signal.SIGKILL)
    running.process.wait()
    assert set(lookups(place)) == {"one"}
    again = subprocess.run(
        [LOGCAL, "fit", "--each", *three, "--json"], cwd=place.root, env=place.environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert [json.loads(line)["exit_code"] for line in again.stdout.splitlines()] == [99, 0, 0]
    found = lookups(place)
    assert set(found) == {"one", "two", "three"}
    alone(place, three[1], "--set", f"store.path={place.root}/others").expect(0)
    assert found["two"] == lookups(place, "others")["two"]
    assert list(place.scratch.iterdir()) == []


def test_a_signal_after_a_result_ends_the_command_before_the_next_run(monkeypatch, capsys):
    def published(*given, **more):
        begun.append(more["member"].file)
        with interrupts.catching():  # a run's
            interrupts.ignore()
            if len(begun) == 2:
                signal.raise_signal(signal.SIGTERM)
        return 0

    begun = []
    monkeypatch.setattr(each, "run_values", published)
    files = ["a.yaml", "b.yaml", "c.yaml"]
    assert run_each(JOBS["fit"], files, (), (), dry_run=False, as_json=False) == 143
    assert begun == files[:2]
    assert "logcal fit: interrupted; 1 file not begun" in capsys.readouterr().err
    # After the last one nothing is left to end.
    begun.clear()
    assert run_each(JOBS["fit"], files[:2], (), (), dry_run=False, as_json=False) == 0
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.system
def test_a_broken_cluster_is_replaced_and_a_sound_one_stays():
    config = ClusterConfig(kind="local", workers=1, memory="400MiB")
    with SharedCluster() as shared:

        def address(error=None):
            with starting_executor(config, shared=shared) as executor:
                found = executor().client.scheduler.address
                if error is not None:
                    raise error
            return found

        first = address()
        with pytest.raises(CheckFailedError):
            address(CheckFailedError("the gate"))
        assert address() == first
        with pytest.raises(TemporaryError):
            address(TemporaryError("the workers died"))
        second = address()
        assert second != first
        with starting_executor(config.model_copy(update={"timeout": 50.0}), shared=shared) as executor:
            assert executor().client.scheduler.address != second
