"""What is disturbed: commands, with the state that they find, and what they leave, but for what tells the time."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import inside
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from chaos.tracing import PATIENCE, Ended, forked

ANY_TABLE = "gate={min_rows: 0, min_positives: 0, max_rows_drop: 1, ranking: false, agreement: false}"
_NUMBERS = "\\w*seconds|process|checksum|peak_memory_bytes|inode|at|until|days_sorted|days_reused|rows_sorted"
_TIMES = re.compile(
    rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?:Z|\+00:00)?"
    rb'|"(?:%s)": ?[\d.]+|seconds</th><td>[\d.,]+|"sorted_now": \w+' % _NUMBERS.encode()
)
_RECORD = re.compile(r"\d{8}T\d{6}-")
_OWN = ("days", "unfinished.json")
"""Kept days, and what is being written: for logcal alone, which makes it anew or ends it."""
_TRIED = 8
_PREPARING = 10 * PATIENCE
"""Seconds for a command that may have to compile: those that are disturbed come after it."""
HIDDEN = ("scratch", "temporary")
"""Folders of a place that nobody reads."""


def predictions(rows: int, seed: int = 0) -> dict[str, Any]:
    """A log with a weight, two segment columns and features, by days."""
    random = np.random.default_rng(seed)
    score = np.round(random.random(rows), 3)
    return {
        "score": score,
        "label": (random.random(rows) < score**2).astype(np.int8),
        "weight": random.random(rows) + 0.5,
        "country": np.array(["de", "fr", "it", "<b>"])[random.integers(0, 4, rows)],
        "x": random.normal(size=rows) + score,
        "y": random.normal(size=rows),
    }


def write_log(folder: Path, files: int = 2, rows: int = 300, seed: int = 0) -> None:
    """Write a log of several files."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(files):
        pq.write_table(pa.table(predictions(rows, seed + i)), folder / f"part-{i}.parquet", row_group_size=99)


def write_days(folder: Path, days: range) -> None:
    """Write a log of a folder a day."""
    for day in days:
        write_log(folder / f"date=2026-01-{day:02d}", 1, 300, day)


@dataclass
class Place:
    """A folder with a log, a store and outputs, always the same one, and what was in it at first."""

    root: Path

    def command(self, *arguments: str) -> Callable[[], int]:
        """`logcal ARGUMENTS`, in this folder: to be called in a process of its own."""

        def run() -> int:
            from jobs.cli import main

            os.chdir(self.root)
            os.environ["TMPDIR"] = str(self.root / "temporary")
            tempfile.tempdir = None
            try:
                main(list(arguments), prog_name="logcal")
            except SystemExit as ending:
                return int(ending.code or 0)
            raise AssertionError("a command ends the process")

        return run

    def do(self, *arguments: str, expect: int = 0) -> Ended:
        """Run a command that goes well."""
        ended = forked(self.command(*arguments), _PREPARING)
        assert ended.code == expect, f"{arguments}: {ended.code}\n{ended.said}"
        return ended

    def files(self) -> dict[str, bytes]:
        """Every file that somebody may read, with its content as far as it does not tell the time."""
        found = {}
        for folder, folders, names in os.walk(self.root):
            inside = os.path.relpath(folder, self.root)
            folders[:] = sorted(
                name
                for name in folders
                if (inside != "." or name not in HIDDEN) and _seen(f"{inside}/{name}")
            )
            for name in sorted(names):
                path = os.path.normpath(f"{inside}/{name}")
                if _seen(path):
                    with open(f"{folder}/{name}", "rb") as file:  # noqa: PTH123 - quicker
                        content = _TIMES.sub(b"#", file.read())
                    found[path] = _lines_once(content) if name.endswith(".jsonl") else content
        return found

    def litter(self) -> list[str]:
        """What was left behind that nobody reads.

        What may stay are empty folders, and small files half written under a name of their own.
        """
        found = []
        for path in self.root.rglob("*"):
            parts = path.relative_to(self.root).parts
            if (len(parts) > 1 and parts[0] in HIDDEN) or any(_passed_over(part) for part in parts):
                found.append(path)
        return [str(path.relative_to(self.root)) for path in found if not _may_stay(path)]


def _may_stay(path: Path) -> bool:
    if path.name.startswith(".new-"):
        return not any(path.iterdir())
    if path.parent.name == "temporary" and len(path.name) == _TRIED and path.is_file():
        # By such a file Python's tempfile tries whether a folder can be written to.
        return path.read_bytes() in (b"", b"bl", b"blat")
    return path.name.endswith(".tmp") and path.is_file() and path.stat().st_size < 1 << 16


def _lines_once(journal: bytes) -> bytes:
    """A journal without lines that were left unfinished, and those that say once more what the line before said."""
    lines: list[bytes] = []
    for line in journal.splitlines(keepends=True):
        if line.endswith(b"}\n") and line not in lines[-1:]:
            lines.append(line)
    return b"".join(lines)


def _seen(path: str) -> bool:
    """Whether readers look at it: no record of an attempt, no kept day, no name that they pass over."""
    return not any(_passed_over(part) or _is_record(part) or part in _OWN for part in path.split("/"))


def _passed_over(name: str) -> bool:
    # Records beside an output are in a hidden folder that is its own.
    hidden = name.startswith(".") and name != "." and not name.endswith(".logcal")
    return hidden or name.endswith((".tmp", "-removed"))


def _is_record(name: str) -> bool:
    return name == "runs" or _RECORD.match(name) is not None


def empty_place(root: Path) -> Place:
    """A place with nothing in it."""
    shutil.rmtree(root, ignore_errors=True)
    for name in HIDDEN:
        (root / name).mkdir(parents=True)
    return Place(root)


@dataclass(frozen=True)
class Scenario:
    """A command, and what is there before.

    Attributes
    ----------
    prepare : makes a place
    arguments : of the command
    code : of the undisturbed command
    again : exit codes of the command when it is run again after one that was disturbed
    whole : folders that are there with all of their files or not at all
    repeats : whether the command, run once more after it has done its work, would do more
    tidies : whether it removes old versions at its end: where it cannot, it warns, and the next run does it
    """

    name: str
    prepare: Callable[[Place], None]
    arguments: tuple[str, ...]
    code: int = 0
    again: tuple[int, ...] = (0, 99)
    whole: tuple[str, ...] = ()
    repeats: bool = False
    tidies: bool = False


def setting(*pairs: str) -> tuple[str, ...]:
    """`--set` for each."""
    return tuple(part for pair in pairs for part in ("--set", pair))


def tables(action: str, *more: str) -> tuple[str, ...]:
    """`logcal tables` of a place's table."""
    return ("tables", action, "--store", "store", "--table", "ads", *more)


def job(name: str, *more: str, log: str = "log") -> tuple[str, ...]:
    """A job's arguments on a place."""
    given = [
        "cluster.kind=inline",
        "scratch=scratch",
        f"log.path={log}",
        "store.path=store",
        "store.table=ads",
    ]
    if name in ("fit", "follow"):
        given += [ANY_TABLE, "calibrator.method=isotonic"]  # which takes a tenth of the time of auto
    if name == "score":
        given.append("output.path=scored")
    if name in ("evaluate", "monitor"):
        given.append(f"report.path={name}")
    return (name, *setting(*given, *more))


def _log(place: Place) -> None:
    write_log(place.root / "log")


def _days(place: Place) -> None:
    write_days(place.root / "log", range(1, 4))


def _bad_log(place: Place) -> None:
    _log(place)
    table = predictions(300, 7)
    table["score"][::50] = np.nan
    pq.write_table(pa.table(table), place.root / "log" / "part-2.parquet")


def _after(*commands: tuple[str, ...], log: Callable[[Place], None] = _log) -> Callable[[Place], None]:
    """A log, and commands that have been run on it."""

    def prepare(place: Place) -> None:
        log(place)
        for command in commands:
            place.do(*command)

    return prepare


_QUARANTINE = ("log.on_bad_rows=quarantine", "log.max_bad_fraction=0.5", "log.quarantine_path=bad")
SEGMENTS = ("log.segment=[country]", "segments.min_rows=10", "segments.min_positives=1")
WINDOW = ("window.column=date", "window.last=3d")
_FIT = job("fit")
_PLATT = job("fit", "calibrator.method=platt")


def _yesterday(place: Place) -> None:
    write_days(place.root / "log", range(1, 3))
    place.do(*job("fit", "window.column=date", "window.last=3d", *SEGMENTS))
    place.do(*job("fit", "window.column=date", "window.last=3d"))
    write_days(place.root / "log", range(2, 4))


def _candidate(place: Place) -> None:
    _log(place)
    place.do(*_FIT)
    place.do(*job("fit", "calibrator.method=platt", "store.publish=candidate"))


def _served_stream(place: Place) -> None:
    write_log(place.root / "old")
    place.do(*job("fit", log="old"))
    write_log(place.root / "arriving", 3, 200, 20)


_FOLLOW = (*job("follow", "output.path=scored", log="arriving"), "--once")
_REFIT = (
    *job("follow", "output.path=scored", "refit.rows=1", "retention.versions=1", log="arriving"),
    "--once",
)


def _lost_ledger(place: Place) -> None:
    _served_stream(place)
    place.do(*_FOLLOW)
    shutil.rmtree(place.root / ".scored.logcal")
    write_log(place.root / "arriving" / "more", 1, 200, 30)


def _refused_file(place: Place) -> None:
    """One that was refused, and has been mended in place, with its size and time as they were."""
    _served_stream(place)
    path = place.root / "arriving" / "bad.parquet"
    for name in ("scorf", "score"):
        pq.write_table(pa.table({name: [0.5]}), path)
        os.utime(path, (1e9, 1e9))
        if name == "scorf":
            place.do(*_FOLLOW, expect=3)


def _refitted(place: Place) -> None:
    """A table of the stream with two versions, and what makes a third."""
    write_log(place.root / "arriving", 2, 300, 20)
    for i in range(2):
        place.do(*_REFIT)
        write_log(place.root / "arriving" / f"more-{i}", 1, 300, 40 + i)


_DAILY = (
    "days",
    *job(
        "run",
        ANY_TABLE,
        "calibrator.method=isotonic",
        *WINDOW,
        "report={path: 'reports/{day}', mode: replace}",
    ),
    *setting("output={path: 'scored/{day}', mode: replace}"),
)


def _first_day(place: Place) -> None:
    """A table whose daily job has done the 2nd of January; the 3rd has come, and a late file of the 2nd."""
    _days(place)
    place.do(*_DAILY, "--new", "--until", "2026-01-02")
    write_log(place.root / "log" / "date=2026-01-02" / "late", 1, 200, 50)


_IN_SAMPLE = "evaluate.allow_in_sample=true"
_GENERATED = ("output.path=generated", "generate.repeats=2", "data.exclude=[score,weight,country]")
_GENERATE = setting("cluster.kind=inline", "scratch=scratch", "data.path=data", *_GENERATED)
_COMPARED = ("report.path=compared", "compare.methods=[isotonic,platt]")
_COMPARE = setting("cluster.kind=inline", "scratch=scratch", "log.path=log", *_COMPARED)
_REPLACE = job("score", "output.mode=replace")
_TWO = _after(_FIT, _PLATT)
_FOUR = _after(_FIT, _PLATT, *(job("fit", f"calibrator.method={method}") for method in ("abb", "histogram")))
_ON_THREADS = ("cluster.kind=threads", "cluster.workers=2")

SCENARIOS = {
    one.name: one
    for one in (
        Scenario("fit", _log, _FIT),
        Scenario("fit, a second version", _after(_PLATT), job("fit", "score_table.keep=true")),
        Scenario("fit, quarantine", _bad_log, job("fit", *_QUARANTINE), whole=("bad",)),
        Scenario("fit, weights, threads", _log, job("fit", "log.weight=weight", *_ON_THREADS)),
        Scenario("fit, a replaced version again", _TWO, _FIT),
        Scenario("fit, refused", _after(_PLATT), job("fit", "gate={min_rows: 100000}"), code=4, again=(4,)),
        Scenario("fit, segments", _log, job("fit", *SEGMENTS)),
        Scenario("fit, window", _days, job("fit", *WINDOW)),
        Scenario("fit, window, the next day", _yesterday, job("fit", *WINDOW)),
        Scenario("fit, window with segments", _yesterday, job("fit", *WINDOW, *SEGMENTS)),
        Scenario("score", _after(_FIT), job("score"), whole=("scored",)),
        Scenario("score, replacing", _after(_FIT, _REPLACE, _PLATT), _REPLACE, whole=("scored",)),
        Scenario("evaluate", _after(_FIT), job("evaluate", _IN_SAMPLE), whole=("evaluate",)),
        Scenario("monitor", _after(_FIT, log=_days), job("monitor", "window.column=date")),
        Scenario(
            "generate",
            lambda place: write_log(place.root / "data"),
            ("generate", *_GENERATE),
            whole=("generated",),
        ),
        Scenario("days run", _first_day, (*_DAILY, "--until", "2026-01-03"), whole=("scored/2026-01-03",)),
        Scenario("compare", _log, ("compare", *_COMPARE), whole=("compared",)),
        Scenario("follow", _served_stream, _FOLLOW),
        Scenario("follow, a ledger made anew", _lost_ledger, (*_FOLLOW, "--rebuild")),
        Scenario("follow, a file tried again", _refused_file, (*_FOLLOW, "--retry", "bad.parquet")),
        Scenario("follow, a refit", _refitted, _REFIT, tidies=True),
        Scenario("tables promote", _candidate, tables("promote", "000002")),
        Scenario("tables rollback", _TWO, tables("rollback"), repeats=True),
        Scenario("tables rollback to a version", _TWO, tables("rollback", "000001")),
        Scenario("tables prune", _FOUR, tables("prune", "--keep", "1")),
        Scenario("tables page", _TWO, ("tables", "page", "--store", "store", "--output", "page.html")),
        Scenario("tables diff", _TWO, tables("diff", "--report", "diff.html", "000001", "000002")),
    )
}


class Stage:
    """A scenario with its place, which is put back to where it was before each trial, and how it ends undisturbed."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario = scenario
        self.place = empty_place(folder / "place")
        self._start = folder / "start"
        shutil.rmtree(self._start, ignore_errors=True)
        scenario.prepare(self.place)
        shutil.copytree(self.place.root, self._start, symlinks=True)
        self.before = self.place.files()
        ended = self.run(_PREPARING)
        assert ended.code == scenario.code, f"{scenario.name}: {ended.code}\n{ended.said}"
        self.after = self.place.files()
        assert not self.place.litter(), f"{scenario.name}: left {self.place.litter()}"

    @property
    def command(self) -> Callable[[], int]:
        """The command of the scenario."""
        return self.place.command(*self.scenario.arguments)

    def reset(self) -> None:
        """Put everything back."""
        shutil.rmtree(self.place.root)
        shutil.copytree(self._start, self.place.root, symlinks=True)

    def run(self, seconds: float = PATIENCE) -> Ended:
        """Run the command, undisturbed."""
        return forked(self.command, seconds)

    def litter(self) -> list[str]:
        """What is left over, once another version and another run have been there if need be."""
        left = self.place.litter()
        # As it will be when somebody comes who may take it for dead.
        for name in left:
            os.utime(self.place.root / name, (1e9, 1e9), follow_symlinks=False)
        more = ((), ("window={column: date, last: 1d}",))
        for command in (self.command, *(self.place.command(*job("fit", *one, log="next")) for one in more)):
            if self.place.litter():
                write_days(self.place.root / "next", range(9, 10))
                forked(command)
        if self.place.litter():
            forked(self.command)
        return self.place.litter()

    def warm(self) -> None:
        """Run the command in this process, so that those forked from it have imported and compiled what it needs."""
        self.reset()
        environment = {**os.environ, "TMPDIR": str(self.place.root / "temporary")}
        inside.run(self.scenario.arguments, self.place.root, environment)
