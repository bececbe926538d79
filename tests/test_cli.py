"""The command itself: help, usage, dry runs, JSON, and what becomes of errors that nobody expected."""

import json
import os
import signal
import subprocess
import sys
import time
import types
from importlib.metadata import version
from pathlib import Path

import pytest

from jobs import cli, interrupts
from jobs.config.jobs import JOB_CONFIGS, DemoConfig
from jobs.registry import JOBS, Job
from jobs.run import Outcome, Plan, guarded, run_job

COMMANDS = [
    (),
    *((name,) for name in JOBS),
    ("tables",),
    *(("tables", t) for t in ("list", "show", "rollback", "promote", "diff", "prune")),
]


# Help


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_fits_a_screen(place, command):
    place.environment["COLUMNS"] = "80"
    lines = place.run(*command, "--help").expect(0).stdout.splitlines()
    # Twelve jobs, and what there is besides, take a line each.
    assert len(lines) <= (24 if command else 40)
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(f"Usage: {' '.join(('logcal', *command))} [OPTIONS]")


def test_help_lists_the_jobs_in_their_order_and_the_exit_codes(place):
    shown = place.run("--help").expect(0).stdout
    listed = [line.split()[0] for line in shown.partition("Commands:")[2].splitlines() if line[2:3].strip()]
    assert [name for name in listed if name in JOBS] == list(JOBS)
    for code in ("0 done", "2 usage", "3 input rejected", "75 temporary", "99 nothing to do"):
        assert code in shown


@pytest.mark.parametrize("job", JOBS.values(), ids=lambda job: job.name)
def test_help_of_a_job_says_what_it_needs(place, job):
    shown = " ".join(place.run(*(job.command or job.name).split(), "-h").expect(0).stdout.split())
    for part in (job.help, job.example, ", ".join(job.required), *(s.option for s in job.shortcuts)):
        assert part in shown
    for option in ("--config FILE", "--set KEY.PATH=VALUE", "--dry-run", "--json"):
        assert option in shown


# Usage

GUESSING = pytest.mark.skipif(version("click") < "8.5", reason="click 8.2 says in other words what was meant")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(("fit", "--sett"), "No such option '--sett'. Did you mean '--set'?", marks=GUESSING),
        pytest.param(("fti",), "No such command 'fti'. Did you mean 'fit'?", marks=GUESSING),
        (
            ("fit", "path=x"),
            "Got unexpected extra argument (path=x): expected --config or --each before it. See `logcal fit --help`.",
        ),
        (("tables", "list"), "expected --store PATH, or --config FILE with store.path, found neither"),
    ],
)
def test_usage_errors_are_one_line(place, arguments, said):
    result = place.run(*arguments).expect(2, f": {said}")
    assert result.stderr.startswith("logcal")
    assert (result.stderr.count("\n"), result.stdout) == (1, "")
    as_json = place.run(*arguments, "--json").expect(2)
    assert (list(as_json.json), as_json.json["exit_code"]) == (["error", "exit_code"], 2)
    assert as_json.stderr.endswith(f": {as_json.json['error']}\n")


@pytest.mark.parametrize("arguments", [(), ("tables",)])
def test_no_command_shows_the_help(place, arguments):
    shown = place.run(*arguments).expect(2)
    assert shown.stderr == place.run(*arguments, "--help").stdout


def test_a_job_without_its_keys_names_them_all(place):
    result = place.run("score", "--json").expect(2, "logcal score: the configuration has 4 problems")
    for key in JOBS["score"].required:
        assert f"- {key}: REQUIRED" in result.json["error"]


# Runs


@pytest.mark.system
def test_a_reader_of_stdout_that_goes_away_is_no_error(place):
    place.write_log()
    process = subprocess.Popen(
        [sys.executable, "-m", "logcal", *place.arguments("fit", "--json")],
        cwd=place.root,
        env=place.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.close()
    with process.stderr as stderr:
        said = stderr.read()
    assert process.wait(timeout=240) == 0, said
    assert "Traceback" not in said
    assert len(place.versions) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no file that is always full")
@pytest.mark.parametrize("how", [("--json",), ("--dry-run",)])
def test_a_stdout_that_is_full_costs_only_what_is_shown(place, how):
    place.write_log()
    full = ("bash", "-c", 'exec "$@" > /dev/full', "bash")
    result = place.job("fit", *how, within=full)
    result.expect(75, "logcal fit: stdout: expected a place to write to, found an error (No space left on")
    assert "Traceback" not in result.stderr
    if "--dry-run" not in how:
        assert len(place.versions) == 1


@pytest.mark.system
def test_a_closed_stdout_shows_nothing(place):
    place.write_log()
    place.job("fit", within=("bash", "-c", 'exec "$@" >&-', "bash")).expect(0)
    assert len(place.versions) == 1


def test_closed_streams_are_the_null_device(monkeypatch):
    monkeypatch.setattr(cli.interrupts, "ignore_until_exit", lambda: None)
    # Not this process's: after an interrupt in another test it would end within a minute.
    monkeypatch.setattr(cli.interrupts, "own_process", lambda: None)
    monkeypatch.setattr(sys, "argv", ["logcal", "fit", "--sett"])
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    with pytest.raises(SystemExit) as end:
        cli.run()
    assert end.value.code == 2
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        assert (stream.name, stream.closed) == (os.devnull, False)
        stream.close()


@pytest.mark.system
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("kind", ["threads", "local"])
def test_no_stream_is_needed(place, closed, kind):
    """As in daemons. The code says what became of the job."""
    place.write_log()
    within = ("bash", "-c", f'exec "$@" {closed}', "bash")
    cluster = (f"cluster.kind={kind}", "cluster.workers=1")
    assert place.job("fit", *cluster, within=within).code == 0
    assert place.job("fit", *cluster, within=within).code == 99
    assert place.job("score", *cluster, within=within).code == 0
    assert place.job("fit", *cluster, "log.score=none", within=within).code == 3
    assert place.job("fit", *cluster, "log.unknown=1", within=within).code == 2
    assert len(place.versions) == 1


# What becomes of errors


def test_a_bug_has_its_traceback_and_says_that_it_is_one(capsys):
    assert guarded("logcal x", lambda: {}["missing"], as_json=True) == 1
    shown = capsys.readouterr()
    assert "Traceback" in shown.err
    assert "logcal x: a bug in logcal, please report it with the lines above: KeyError" in shown.err
    assert json.loads(shown.out)["exit_code"] == 1


def test_a_dry_run_of_score_starts_no_process(place, monkeypatch, capsys):
    place.write_log(files=600)
    place.job("fit").expect(0)
    started = []
    monkeypatch.setattr(os, "fork", lambda: started.append("forked"))
    monkeypatch.setattr(subprocess, "Popen", lambda *given, **more: started.append(given))
    arguments = place.arguments("score", "cluster.kind=auto", "cluster.workers=2")
    settings = [text for text in arguments[1:] if text != "--set"]
    assert run_job(JOBS["score"], [], settings, dry_run=True, as_json=False) == 0
    assert "no rows were read" in capsys.readouterr().out
    assert started == []


def test_a_cluster_class_is_looked_for_even_by_a_dry_run(place):
    place.write_log(files=1)
    missing = place.job("fit", "cluster.kind=no_such_package.Cluster", "--dry-run")
    missing.expect(2, "cannot import no_such_package.Cluster")


class SlowToPrint(list):
    """Lines during whose printing a signal comes."""

    def __iter__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(3 * interrupts.SOON)
        return super().__iter__()


class PublishedThenInterrupted:
    """A job that is done when a signal comes."""

    plan = Plan("toy", ("count: 3 tasks",), ("a",), ("b",), {"rows": 3})
    threads = True

    def __init__(self, config):
        """Any."""

    def execute(self, executor):
        outcome = Outcome({}, [])
        object.__setattr__(outcome, "lines", SlowToPrint(["published"]))
        return outcome


def test_a_signal_after_publishing_ends_nothing(capsys, monkeypatch):
    toy = types.ModuleType("toy_job")
    toy.prepare = PublishedThenInterrupted
    monkeypatch.setitem(sys.modules, "toy_job", toy)
    monkeypatch.setitem(JOB_CONFIGS, "toy", DemoConfig)
    job = Job(name="toy", help="", module="toy_job")
    assert run_job(job, [], ["cluster.kind=inline"], dry_run=False, as_json=False) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("published\n", "")
