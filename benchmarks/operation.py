"""Weeks of an ordinary log with bad days in it: what goes live, when the cure of a drift does, and what is refused.

    python benchmarks/operation.py bad --rows 20000            # each kind of bad day, and the next day
    python benchmarks/operation.py drift --rows 20000          # a lasting drift of 0.7 log-odds
    python benchmarks/operation.py people --rows 20000         # three bad days, a bad first day, an announced model
    python benchmarks/operation.py ordinary --days 500 --sd 0.1    # fits refused, and days set aside wrongly

The days are those of tests/simulated_days.py: about 11 % positives, scores that are no probabilities, rows that vary by
5 %. Every fit is the job `fit` with a window of 7 days and otherwise default settings, on hive folders; what is counted
is read from the published manifests.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import logging
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _measure import print_machine

import logcal
from jobs import tables
from logcal.errors import LogcalError

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from simulated_days import KINDS, simulated_day

WINDOW, BAD, DRIFT, WEEK_SD = 7, 9, 0.7, 0.2
FIRST = dt.date(2026, 3, 2)


def date(number: int) -> str:
    """A day's date."""
    return str(FIRST + dt.timedelta(number))


class Operation:
    """A log, its store, and a fit a day."""

    def __init__(self, root: Path, rows: int, seed: int, sd: float = 0.0, week_sd: float = 0.0) -> None:
        self.log, self.store = root / "log", root / "store"
        self.spread = {"rows": rows, "seed": seed, "day_sd": sd, "week_sd": week_sd}

    def write(self, number: int, kind: str | None = None, drift: float = 0.0) -> None:
        """A day's file."""
        score, label, known = simulated_day(number, kind, drift=drift, **self.spread)
        folder = self.log / f"date={date(number)}"
        folder.mkdir(parents=True)
        table = pa.table({"score": score, "label": pa.array(label.astype(np.int8), mask=~known)})
        pq.write_table(table, folder / "a.parquet")

    def fit(self, number: int, kind: str | None = None, drift: float = 0.0) -> int:
        """Write a day and run its fit; the exit code that the command would have."""
        self.write(number, kind, drift)
        return self.run()

    def run(self) -> int:
        """Run the fit."""
        try:
            logcal.run(
                "fit",
                {
                    "log": {"path": str(self.log)},
                    "store": {"path": str(self.store), "table": "t"},
                    "window": {"column": "date", "last": f"{WINDOW}d"},
                    "retention": {"versions": 2},
                    "record": {"path": "none"},
                },
            )
        except LogcalError as error:
            return error.exit_code
        return 0

    def window(self) -> dict:
        """The window of the live version, as its manifest has it."""
        current = (self.store / "t" / "CURRENT").read_text().strip()
        return json.loads((self.store / "t" / "versions" / current / "manifest.json").read_text())["window"]

    def used(self) -> set[str]:
        """Days that the live version was fitted to."""
        if not (self.store / "t" / "CURRENT").exists():
            return set()
        window = self.window()
        out = {day["day"] for day in [*window.get("days_set_aside", ()), *window.get("days_excluded", ())]}
        return {day["day"] for day in window["days"] if day["rows_used"]} - out

    def forget(self, number: int) -> None:
        """Remove a day's file."""
        shutil.rmtree(self.log / f"date={date(number)}", ignore_errors=True)


@contextmanager
def begun(rows: int, seed: int, until: int) -> Iterator[Path]:
    """A folder with an operation of ordinary days before one."""
    with tempfile.TemporaryDirectory() as place:
        operation = Operation(Path(place, "begun"), rows, seed)
        for number in range(max(0, until - WINDOW - 1), until - 2):
            operation.write(number)
        for number in range(until - 2, until):
            operation.fit(number)
        yield Path(place)


def branch(place: Path, rows: int, seed: int) -> Operation:
    """A copy of it, to go on from."""
    shutil.rmtree(place / "branch", ignore_errors=True)
    shutil.copytree(place / "begun" / "store", place / "branch" / "store")
    shutil.copytree(place / "begun" / "log", place / "branch" / "log", copy_function=hard_link)
    return Operation(place / "branch", rows, seed)


def hard_link(source: str, target: str) -> None:
    """Files of the log are the same, so that days stay sorted."""
    Path(target).hardlink_to(source)


def bad(rows: int, seed: int) -> None:
    """Each kind of bad day after nine ordinary ones, and the ordinary day after it."""
    kept_out = healthy = 0
    with begun(rows, seed, BAD) as place:
        for kind in KINDS:
            operation = branch(place, rows, seed)
            code = operation.fit(BAD, kind)
            out = date(BAD) not in operation.used()
            after = operation.fit(BAD + 1)
            used = operation.used()
            sound = date(BAD + 1) in used and date(BAD) not in used
            kept_out, healthy = kept_out + out, healthy + sound
            print(f"{kind:18s} exit {code} kept out {out!s:5s} next day exit {after} live without it {sound}")
    print(f"kept out {kept_out} of {len(KINDS)}; next healthy day live without it {healthy} of {len(KINDS)}")


def drift(rows: int, seed: int) -> None:
    """A lasting drift from day 10."""
    with begun(rows, seed, 10) as place:
        operation = branch(place, rows, seed)
        for number in range(10, 17):
            code = operation.fit(number, drift=DRIFT)
            live = max(operation.used())
            print(f"drift of {DRIFT} from day 10: day {number} exit {code}, live until {live}")
            if live == date(number):
                break


def people(rows: int, seed: int) -> None:
    """What a person would do: three bad days in a row, a bad first day, a new model that is announced."""
    with begun(rows, seed, BAD) as place:
        for kind in KINDS:
            operation = branch(place, rows, seed)
            codes = [operation.fit(BAD + i, kind) for i in range(3)]
            among = sorted({date(BAD + i) for i in range(3)} & operation.used())
            codes.append(operation.fit(BAD + 3))
            later = sorted({date(BAD + i) for i in range(3)} & operation.used())
            new = date(BAD + 3) in operation.used()
            print(
                f"three days of {kind:18s} exits {codes} used {len(among)}, then {len(later)}; next live {new}"
            )
        operation = branch(place, rows, seed)
        new = [date(number) for number in range(BAD, BAD + 5)]
        for number in range(BAD, BAD + 5):
            code = operation.fit(number, "another model")
            if number == BAD:
                tables.decide_on(
                    str(operation.store), "t", date(BAD), "include", "the new model, as announced"
                )
                code = operation.run()
            live = len(operation.used() & set(new))
            print(f"announced model, day {number} exit {code}, live with {live} of its days")
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as place:
            operation = Operation(Path(place), rows, seed)
            codes, free = [operation.fit(0, kind)], None
            for number in range(1, 6):
                codes.append(operation.fit(number))
                used = operation.used()
                if free is None and date(number) in used and date(0) not in used:
                    free = number
            print(f"first day of {kind:18s} exits {codes}, live without it from day {free}")


def ordinary(rows: int, seed: int, count: int, sd: float) -> None:
    """Ordinary days that vary: fits refused, and new days set aside."""
    refused = aside = fits = 0
    with tempfile.TemporaryDirectory() as place:
        operation = Operation(Path(place), rows, seed, sd, WEEK_SD)
        for number in range(4):
            operation.write(number)
        for number in range(4, 4 + count):
            code = operation.fit(number)
            fits += 1
            refused += code != 0
            if code == 0:
                aside += date(number) in {day["day"] for day in operation.window().get("days_set_aside", ())}
            elif code != 4:
                print(f"day {number}: exit {code}")
            operation.forget(number - WINDOW)
    print(
        f"sd {sd}, weekdays {WEEK_SD}, seed {seed}: of {fits} fits {refused} refused, {aside} new days set aside"
    )


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["bad", "drift", "people", "ordinary"])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--days", type=int, default=100)
    parser.add_argument("--sd", type=float, default=0.1)
    options = parser.parse_args()
    logging.getLogger("logcal").setLevel(logging.ERROR)
    print_machine()
    if options.what == "ordinary":
        ordinary(options.rows, options.seed, options.days, options.sd)
    else:
        {"bad": bad, "drift": drift, "people": people}[options.what](options.rows, options.seed)


if __name__ == "__main__":
    main()
