"""Graphs: built by stage, the same result with any of Dask's schedulers, drawn, and as parts of other programs."""

import errno
import json
import operator
import pickle
import re
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from common import two_workers
from dask.delayed import Delayed

import logcal
from jobs import interface
from logcal import runs
from logcal.errors import ConfigError, InputRejectedError, NothingToDoError
from logcal.reading import read_table
from pipeline.execution import DaskExecutor, Graph, InlineExecutor, ThreadExecutor, tasks
from pipeline.execution.graph import drawing
from pipeline.files.blobs import receipts_in
from pipeline.log.logs import Columns

pytestmark = pytest.mark.usefixtures("guarded_arguments")

CALLS: Counter = Counter()


def squares(count):
    """A graph of three stages, and the reference to its last result."""
    graph = Graph()
    parts = graph.layer("square", pow, [(i, 2) for i in range(count)])
    whole = graph.task("gather", list, parts)
    halves = graph.layer("halve", operator.floordiv, [(e, 2) for e in graph.entries("entry", whole, count)])
    return graph, graph.task("combine", sum, halves)


@pytest.fixture(scope="module")
def client():
    with two_workers() as client:
        yield client


def test_all_schedulers_give_the_same_and_tell_of_the_stages(client):
    expected = sum(i * i // 2 for i in range(50))
    for make in (
        InlineExecutor,
        lambda report: ThreadExecutor(3, report),
        lambda r: DaskExecutor(client, 2, r),
    ):
        told = []
        graph, whole = squares(50)
        assert make(lambda *seen, told=told: told.append(seen[:3])).compute(graph, whole) == expected
        assert list(dict.fromkeys(stage for stage, _, _ in told)) == ["square", "halve"]
        for stage in ("square", "halve"):
            done = [n for name, n, total in told if name == stage and total == 50]
            assert (done[0], done[-1]) == (0, 50)
            assert done == sorted(done)
    assert squares(4)[0].token != squares(4)[0].token


def test_tasks_begin_in_order_and_the_first_error_is_the_first_tasks():
    for executor in (InlineExecutor(), ThreadExecutor(1)):
        CALLS.clear()
        with pytest.raises(InputRejectedError, match=r"^7$"):
            executor.run("stage", refused, [(i,) for i in range(20)])
        assert list(CALLS) == list(range(8))


def refused(i):
    """A task."""
    CALLS[i] += 1
    if i in (7, 11):
        raise InputRejectedError(str(i))


def test_storage_that_fails_for_a_while_is_asked_again(monkeypatch):
    monkeypatch.setattr(tasks, "_PAUSE", 0.0)
    for number, calls in ((errno.EIO, 3), (errno.ENOENT, 1)):
        CALLS.clear()
        with pytest.raises(OSError, match="gone"):
            InlineExecutor().run("stage", failing, [(number, 9)])
        assert CALLS["failing"] == calls
    CALLS.clear()
    assert InlineExecutor().run("stage", failing, [(errno.EIO, 2)]) == ["read"]


def failing(number, times):
    """A task whose first calls fail."""
    CALLS["failing"] += 1
    if CALLS["failing"] <= times:
        raise OSError(number, "gone")
    return "read"


def test_a_task_that_left_a_receipt_is_not_done_again(tmp_path):
    def run(arguments):
        graph = Graph()
        results = graph.layer("read", noted, arguments, receipts=receipts_in(str(tmp_path)))
        return InlineExecutor().compute(graph, graph.task("gather", list, results))

    CALLS.clear()
    assert run([("a",), ("b",)]) == ["A", "B"]
    assert run([("a",), ("b",)]) == ["A", "B"]
    assert CALLS == {"a": 1, "b": 1}
    # Other arguments, and a receipt that was cut short.
    (tmp_path / "receipt-read-000000").write_bytes(b"x")
    assert run([("a",), ("c",)]) == ["A", "C"]
    assert CALLS == {"a": 2, "b": 1, "c": 1}
    # The result is another one than was written.
    receipt = tmp_path / "receipt-read-000000"
    content = receipt.read_bytes()
    assert content.endswith(pickle.dumps("A"))
    receipt.write_bytes(content.removesuffix(pickle.dumps("A")) + b"cjobs\nGone\n.")
    assert run([("a",), ("c",)]) == ["A", "C"]
    assert CALLS == {"a": 3, "b": 1, "c": 1}


def test_a_call_is_the_same_wherever_its_arguments_come_from():
    """In one process results share objects; from receipts and other processes each comes with its own."""
    name = "".join(["sco", "re"])
    columns = Columns("score", name, name)
    runs = [
        InputRejectedError(name),
        np.arange(6.0)[::2],
        [columns, columns, Columns(name, "score")],
        np.ones(2),
    ]
    here = tasks._pickled_call(noted, (runs, name, "score"))
    there = (runs, name, "score")
    for _ in range(3):
        there = pickle.loads(pickle.dumps(there))
        assert tasks._pickled_call(noted, there) == here
    apart = [pickle.loads(pickle.dumps(run)) for run in runs]
    assert tasks._pickled_call(noted, (apart, name, "score")) == here
    assert tasks._pickled_call(noted, (runs, name, "other")) != here


def noted(text):
    """A task."""
    CALLS[text] += 1
    return text.upper()


def test_a_task_that_runs_ends_soon_after_its_command_is_interrupted(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        ThreadExecutor(1, interrupting(tmp_path)).run("stage", endless, [(str(tmp_path / "begun"),)])
    assert not [thread for thread in threading.enumerate() if "logcal-worker" in thread.name]


def interrupting(folder):
    """A report of progress during which Ctrl-C is pressed, once the task has begun."""

    def report(stage, done, total, workers=None):
        if (folder / "begun").exists():
            raise KeyboardInterrupt

    return report


@pytest.mark.system
def test_a_task_on_a_cluster_ends_as_well(client, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        DaskExecutor(client, 2, interrupting(tmp_path)).run("stage", endless, [(str(tmp_path / "begun"),)])
    assert client.run(tasks.stop, "another") == dict.fromkeys(client.scheduler_info()["workers"], 0)
    assert not tasks._under_way


def endless(path):
    """A task that looks once a batch."""
    with open(path, "w"):  # noqa: PTH123
        pass
    while True:
        tasks.check()
        time.sleep(0.001)


# Drawings


def test_drawings_show_stages_their_tasks_and_what_needs_what():
    graph, _ = squares(50)
    dot = drawing(graph, "graph.dot").decode()
    for label in ("square-0", "square-49", "gather", "entry-0", "halve-4", "combine", "..."):
        assert f'"{label}"' in dot
    assert "square-20" not in dot
    nodes = {label: node for node, label in re.findall(r'(t\d+) \[label="([^"]+)"\]', dot) if label != "..."}
    edges = set(re.findall(r"(t\d+) -> (t\d+);", dot))
    assert (nodes["square-0"], nodes["gather"]) in edges
    assert (nodes["entry-3"], nodes["halve-3"]) in edges
    assert (nodes["entry-3"], nodes["halve-4"]) not in edges
    svg = drawing(graph, "graph.svg")
    assert b"<svg" in svg
    assert b"square-49" in svg
    assert svg == drawing(squares(50)[0], "graph.svg")
    assert drawing(graph, "graph.png").startswith(b"\x89PNG")


def test_where_nothing_can_be_drawn(place):
    place.write_log()
    for flags, said in (
        (("--dry-run", "--graph=graph.pdf"), "--graph: expected a file that ends in"),
        (("--dry-run", f"--graph={place.root}/no/g.dot"), "--graph: cannot write"),
        (("--graph=graph.dot",), "--graph: draws what a job would do: expected --dry-run"),
    ):
        place.job("fit", *flags).expect(2, said)
    assert not place.store.exists()


# In other programs


@pytest.mark.parametrize("given", ["a client", "its address"])
def test_a_job_of_another_program_runs_on_its_cluster(fitted, place, given, monkeypatch):
    """In a process of its own where the program has a package of our name: then by the scheduler's address."""
    expected = place.lookup()
    config = {
        "log": {"path": str(place.log)},
        "store": {"path": str(place.root / "other"), "table": "ads"},
        "report": {"path": str(place.root / "{job}")},
        "output": {"path": str(place.output)},
        "calibrator": {"method": place.method},
        "evaluate": {"bins": 7},
        "gate": {"min_rows": 0},
        "cluster": {"memory": "512MiB"},
    }
    if given == "its address":
        monkeypatch.setattr(runs, "_foreign_package", lambda: "jobs at /elsewhere/jobs")
        with pytest.raises(ConfigError, match="expected logcal's own packages"):
            logcal.graph("fit", config)
    with two_workers(protocol="tcp://") as client:
        fitted = logcal.run("fit", config, client)
        assert Path(fitted.path).read_bytes() == expected
        assert (fitted.version, fitted.facts["rows_used"]) == (fitted.facts["version"], 3000)
        assert logcal.load(config["store"]["path"], "ads").version == fitted.version
        measured = logcal.run("evaluate", config, client=client)
        assert (measured.path, measured.version) == (f"{place.root}/evaluate/report.html", fitted.version)
        scored = logcal.run("score", config, client=client)
        assert pq.read_table(scored.path).column("probability").null_count == 0
        with pytest.raises(NothingToDoError, match="nothing to do"):
            logcal.run("fit", config, client)
        with pytest.raises(InputRejectedError, match="no such file or directory"):
            logcal.run("fit", config | {"log": {"path": str(place.root / "nowhere")}}, client)
        assert client.status == "running"
    with pytest.raises(ConfigError, match="fitt"):
        logcal.run("fitt", config)
    with pytest.raises(ConfigError, match="found list"):
        logcal.run("fit", ["log"])
    records = [json.loads(path.read_text()) for path in (place.root / "other/ads/runs").iterdir()]
    ended = [("evaluate", 0), ("fit", 0), ("fit", 3), ("fit", 99), ("score", 0)]
    assert sorted((one["job"], one["exit_code"]) for one in records) == ended


@pytest.fixture
def dated(place):
    """A place whose log has days, segments and labels that are not known yet."""
    columns = place.predictions(4000)
    rng = np.random.default_rng(1)
    columns["site"] = rng.choice(["a", "b", "c"], 4000, p=[0.9, 0.09, 0.01])
    day = np.sort(rng.integers(0, 4, 4000))
    columns["date"] = [f"2026-01-{d + 1:02}" for d in day]
    label = pa.array(columns["label"], mask=(day == 3) & (rng.random(4000) < 0.7))
    place.write_log({**columns, "label": label})
    return place


SEGMENTS = ("log.segment=[site]", "segments.min_rows=100", "segments.min_positives=20")
WINDOW = ("window.column=date", "window.last=4d", "window.until=2026-01-04", "window.min_labelled=0.5")


def add(sections, settings):
    """Put settings into the sections of a configuration."""
    for setting in settings:
        key, _, value = setting.partition("=")
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = yaml.safe_load(value)


@pytest.mark.parametrize(
    "settings",
    [
        SEGMENTS,
        (*SEGMENTS, "calibrator.method=platt"),
        (*WINDOW, *SEGMENTS, "window.half_life=2d", "calibrator.method=bbq"),
        (*WINDOW, "window.half_life=2d", "score_table.grid=0.01", "log.negative_sampling_rate=0.5"),
    ],
)
def test_every_fit_as_a_part_of_another_program(dated, call, client, settings):
    dated.method = None
    call("fit", *settings).expect(0)
    (published,) = (dated.store / dated.table / "versions").iterdir()
    expected = read_table(str(published / "lookup.parquet"))
    sections = {"log": {"path": str(dated.log)}, "scratch": str(dated.scratch), "cluster": {"memory": "1GiB"}}
    add(sections, settings)
    table = logcal.graph("fit", sections)
    assert isinstance(table, Delayed)
    for scheduler in ("synchronous", "threads", client.get):
        found = table.compute(scheduler=scheduler)
        assert found.facts == replace(expected.facts, version="unpublished")
        if settings[0] in SEGMENTS:
            assert found.map_of(("c",)).predict(0.4) == expected.map_of(("c",)).predict(0.4)
    assert not list(dated.scratch.rglob("run-*"))
    assert len(list(published.parent.iterdir())) == 1


@pytest.mark.parametrize(
    ("job", "settings", "shown"),
    [
        ("fit", (*SEGMENTS, "segments.shrinkage=none"), {"sort", "number", "merge", "join", "fitted"}),
        ("fit", (*WINDOW, "window.half_life=2d"), {"sort", "days", "kept", "weigh", "choose", "total"}),
        ("compare", (), {"sort", "merge", "compare"}),
        ("score", (), {"score", "commit"}),
        ("evaluate", ("evaluate.allow_in_sample=true",), {"sort", "merge", "measured"}),
    ],
)
def test_drawings_show_the_stages_of_every_job(dated, call, job, settings, shown):
    path = dated.root / "graph.dot"
    if job in ("score", "evaluate"):
        call("fit").expect(0)
    before = dated.tree()
    call(job, "--dry-run", f"--graph={path}", *settings).expect(0)
    found = {label.partition("-")[0] for label in re.findall(r'label="([^"]+)"', path.read_text())}
    assert shown <= found
    path.unlink()
    assert dated.tree() == before


@pytest.mark.parametrize("settings", [SEGMENTS, (*WINDOW, "window.half_life=2d")])
def test_a_graph_needs_as_much_space_as_a_fit_that_keeps_no_days(dated, monkeypatch, settings):
    sections = {"log": {"path": str(dated.log)}, "scratch": str(dated.scratch)}
    asked = []
    monkeypatch.setattr(interface, "check_scratch", lambda config, log, needed: asked.append(needed))
    logcal.graph("fit", sections)
    add(sections, settings)
    logcal.graph("fit", sections)
    assert asked[1] >= asked[0] + 16 * 800


def test_what_cannot_be_a_graph_says_why(place, tmp_path):
    place.write_log()
    sections = {"log": {"path": str(place.log)}}
    with pytest.raises(ConfigError, match="expected the job fit, found 'score'"):
        logcal.graph("score", sections)
    with pytest.raises(ConfigError, match=r"log\.path"):
        logcal.graph("fit", {"log": {}})
    # What the job is refused: names of segments that the table uses itself.
    place.job("fit", "log.segment=[prob_lo]").expect(2, "expected names that the lookup table does not use")
    with pytest.raises(ConfigError, match="expected names that the lookup table does not use itself"):
        logcal.graph("fit", {"log": sections["log"] | {"segment": ["prob_lo"]}})
    file = tmp_path / "fit.yaml"
    file.write_text(f"log:\n  path: {place.log}\n")
    assert logcal.graph("fit", file).compute(scheduler="synchronous").facts.method == "auto"
    one_class = place.predictions() | {"label": np.zeros(3000, np.int64)}
    refused = logcal.graph("fit", {"log": {"path": str(place.write_log(one_class, name="one_class"))}})
    with pytest.raises(InputRejectedError, match=r"label 0: .* check log\.label and"):
        refused.compute(scheduler="synchronous")


def test_a_task_that_changes_what_it_shares_is_an_error():
    assert tasks.run_locally("run", len, [1, 2]) == 2
    with pytest.raises(AssertionError, match="expected a task that only reads its arguments"):
        tasks.run_locally("run", list.append, [1, 2], 3)
