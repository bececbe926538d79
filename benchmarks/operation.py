"""Simulated weeks of daily fits with bad days or a drift: which days the live table uses, and which fits are refused.

    python benchmarks/operation.py bad --rows 20000            # each kind of bad day, and the day after
    python benchmarks/operation.py drift --rows 20000          # a lasting drift of 0.7 log-odds
    python benchmarks/operation.py people --rows 20000         # three bad days, a bad first day, an approved new model
    python benchmarks/operation.py ordinary --days 500 --sd 0.1    # refused fits, and days wrongly set aside
    python benchmarks/operation.py arriving --days 60 --rows 1000  # the daily job on files that arrive at random hours
    python benchmarks/operation.py versions --days 365    # the test for drift, with a new version each day

The days are those of tests/simulated_days.py: about 11 % positives, scores that are not probabilities, numbers of rows
that vary by 5 %. Every fit is the job `fit` with a window of 7 days and otherwise default settings, on hive folders;
the counts are read from the published manifests. `arriving` runs `logcal days run` each morning, with three missed
mornings, five runs that are killed within a write, late and rewritten files, and five bad days; it compares the scored
rows and their versions with an oracle written in pandas (tests/arriving_oracle.py), and fails if one differs.
`versions` simulates the test for drift alone (tests/simulated_versions.py): 800 logs of 100,000 rows a day, whose table
is fitted to the 28 days before, each day; false alarms without drift, and days until a drift is found, against a table
that stays.
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
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from _measure import print_machine
from scipy.stats import beta

import logcal
from jobs import tables
from logcal.errors import LogcalError

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from arriving_days import Arriving
from simulated_days import KINDS, simulated_day
from simulated_versions import alarms_without_drift, days_until_alarm

WINDOW, BAD, DRIFT, WEEK_SD = 7, 9, 0.7, 0.2
FIRST = dt.date(2026, 3, 2)


def date(number: int) -> str:
    """Return a day's date."""
    return str(FIRST + dt.timedelta(number))


class Operation:
    """A log and its store, with one fit per day."""

    def __init__(self, root: Path, rows: int, seed: int, sd: float = 0.0, week_sd: float = 0.0) -> None:
        self.log, self.store = root / "log", root / "store"
        self.spread = {"rows": rows, "seed": seed, "day_sd": sd, "week_sd": week_sd}

    def write(self, number: int, kind: str | None = None, drift: float = 0.0) -> None:
        """Write a day's file."""
        score, label, labelled = simulated_day(number, kind, drift=drift, **self.spread)
        folder = self.log / f"date={date(number)}"
        folder.mkdir(parents=True)
        table = pa.table({"score": score, "label": pa.array(label.astype(np.int8), mask=~labelled)})
        pq.write_table(table, folder / "a.parquet")

    def fit(self, number: int, kind: str | None = None, drift: float = 0.0) -> int:
        """Write a day's file and run the fit; return the command's exit code."""
        self.write(number, kind, drift)
        return self.run()

    def run(self) -> int:
        """Run the fit; return the command's exit code."""
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
        """Return the window in the live version's manifest."""
        current = (self.store / "t" / "CURRENT").read_text().strip()
        return json.loads((self.store / "t" / "versions" / current / "manifest.json").read_text())["window"]

    def used(self) -> set[str]:
        """Return the days that the live version was fitted to."""
        if not (self.store / "t" / "CURRENT").exists():
            return set()
        window = self.window()
        out = {day["day"] for day in [*window.get("days_set_aside", ()), *window.get("days_excluded", ())]}
        return {day["day"] for day in window["days"] if day["rows_used"]} - out

    def remove(self, number: int) -> None:
        """Remove a day's file."""
        shutil.rmtree(self.log / f"date={date(number)}", ignore_errors=True)


@contextmanager
def ordinary_start(rows: int, seed: int, until: int) -> Iterator[Path]:
    """Yield a folder with an operation of ordinary days before day `until`."""
    with tempfile.TemporaryDirectory() as folder:
        operation = Operation(Path(folder, "start"), rows, seed)
        for number in range(max(0, until - WINDOW - 1), until - 2):
            operation.write(number)
        for number in range(until - 2, until):
            operation.fit(number)
        yield Path(folder)


def branch(folder: Path, rows: int, seed: int) -> Operation:
    """Copy the operation in such a folder, to continue it."""
    shutil.rmtree(folder / "branch", ignore_errors=True)
    shutil.copytree(folder / "start" / "store", folder / "branch" / "store")
    shutil.copytree(folder / "start" / "log", folder / "branch" / "log", copy_function=hard_link)
    return Operation(folder / "branch", rows, seed)


def hard_link(source: str, target: str) -> None:
    """Link a file of the log, so that its daily table stays valid."""
    Path(target).hardlink_to(source)


def bad(rows: int, seed: int) -> None:
    """Simulate each kind of bad day after nine ordinary days, and the ordinary day after it."""
    excluded = recovered = 0
    with ordinary_start(rows, seed, BAD) as folder:
        for kind in KINDS:
            operation = branch(folder, rows, seed)
            code = operation.fit(BAD, kind)
            out = date(BAD) not in operation.used()
            after = operation.fit(BAD + 1)
            used = operation.used()
            sound = date(BAD + 1) in used and date(BAD) not in used
            excluded, recovered = excluded + out, recovered + sound
            print(f"{kind:18s} exit {code} excluded {out!s:5s} next day exit {after} live without it {sound}")
    print(f"of {len(KINDS)}: {excluded} excluded; {recovered} live without it on the next ordinary day")


def drift(rows: int, seed: int) -> None:
    """Simulate a lasting drift from day 10."""
    with ordinary_start(rows, seed, 10) as folder:
        operation = branch(folder, rows, seed)
        for number in range(10, 17):
            code = operation.fit(number, drift=DRIFT)
            live = max(operation.used())
            print(f"drift of {DRIFT} from day 10: day {number} exit {code}, live until {live}")
            if live == date(number):
                break


def people(rows: int, seed: int) -> None:
    """Simulate three bad days in a row, a bad first day, and a new model that a person approves."""
    with ordinary_start(rows, seed, BAD) as folder:
        for kind in KINDS:
            operation = branch(folder, rows, seed)
            codes = [operation.fit(BAD + i, kind) for i in range(3)]
            first = sorted({date(BAD + i) for i in range(3)} & operation.used())
            codes.append(operation.fit(BAD + 3))
            later = sorted({date(BAD + i) for i in range(3)} & operation.used())
            new = date(BAD + 3) in operation.used()
            print(
                f"three days of {kind:18s} exits {codes} used {len(first)}, then {len(later)}; next live {new}"
            )
        operation = branch(folder, rows, seed)
        new = [date(number) for number in range(BAD, BAD + 5)]
        for number in range(BAD, BAD + 5):
            code = operation.fit(number, "another model")
            if number == BAD:
                tables.decide_on(
                    str(operation.store), "t", date(BAD), "include", "the new model, as announced"
                )
                code = operation.run()
            live = len(operation.used() & set(new))
            print(f"approved model, day {number} exit {code}, live with {live} of its days")
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            operation = Operation(Path(folder), rows, seed)
            codes, recovered = [operation.fit(0, kind)], None
            for number in range(1, 6):
                codes.append(operation.fit(number))
                used = operation.used()
                if recovered is None and date(number) in used and date(0) not in used:
                    recovered = number
            print(f"first day of {kind:18s} exits {codes}, live without it from day {recovered}")


def ordinary(rows: int, seed: int, count: int, sd: float) -> None:
    """Simulate varying ordinary days; count refused fits and new days set aside."""
    refused = aside = fits = 0
    with tempfile.TemporaryDirectory() as folder:
        operation = Operation(Path(folder), rows, seed, sd, WEEK_SD)
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
            operation.remove(number - WINDOW)
    print(
        f"sd {sd}, weekdays {WEEK_SD}, seed {seed}: of {fits} fits {refused} refused, {aside} new days set aside"
    )


def arriving(rows: int, seed: int, count: int) -> None:
    """Simulate days that arrive file by file, and compare the daily job's outputs with the oracle's."""
    rng = np.random.default_rng(seed)
    # Five bad days, three missed mornings, and five at which a run is killed within a write.
    days = rng.choice(np.arange(6, count - 4), 13, replace=False).tolist()
    kinds = ("missing", "unreadable", "renamed", "twice", "unreadable")
    bad = dict(zip(sorted(days[:5]), kinds, strict=True))
    missed = frozenset(days[5:8])
    kills = {day: int(rng.integers(1, 40)) for day in sorted(days[8:])}
    with tempfile.TemporaryDirectory() as folder:
        simulation = Arriving(Path(folder), count, rows, seed, bad, missed, kills)
        simulation.simulate()
        found = simulation.check()
    late = (simulation.arrivals["at"] > simulation.arrivals["day"] + pd.Timedelta("27h")).sum()
    rewritten = (simulation.arrivals["edition"] > 0).sum()
    files = f"{len(simulation.arrivals)} files of {rows} rows, {late} late, {rewritten} rewritten"
    print(f"{count} days, {files}; bad {bad}")
    print(f"{len(simulation.runs)} runs, missed {sorted(missed)}, killed at the write {kills}; exit codes")
    print({code: simulation.codes.count(code) for code in sorted(set(simulation.codes))})
    print(
        f"as the oracle says: {found['rows']} rows of {found['days']} days, once each; {found['versions']} versions"
    )


EDGE = 0.0487
"""Change of the log odds just within the tolerance of monitor."""


def versions(seed: int, days: int, logs: int = 800) -> None:
    """Simulate the test for drift over versions: false alarms, then days until a drift is found."""
    for name, off in (
        ("true odds stay", [np.nan]),
        ("true odds are each day's version's", [0.0]),
        ("... off by nearly the tolerance, up and down", [EDGE, -EDGE]),
    ):
        for rate in (0.01, 0.001):
            count = alarms_without_drift(seed, logs, days, np.resize(off, logs), rate)
            limit = beta.ppf(0.95, (count > 0).sum() + 1, logs - (count > 0).sum())
            alarmed = (
                f"{(count > 0).sum()} of {logs} with an alarm in {days} days (at most {limit:.4f}, 95 %)"
            )
            print(f"{name}, positives {rate:.1%}: {alarmed}, {count.sum()} alarms")
    for rate in (0.01, 0.001):
        for name, change, slope in (
            ("odds x 1.22", 0.2, 0),
            ("odds x 1.49", 0.4, 0),
            ("odds x 1.02 a day", 0, 0.02),
        ):
            for daily in (False, True):
                found = days_until_alarm(seed, logs // 4, change, daily=daily, slope=slope, rate=rate)
                found = found[~np.isnan(found)]
                quantiles = np.quantile(found, [0.5, 0.9], method="higher")
                print(
                    f"{name}, positives {rate:.1%}, {'a version a day' if daily else 'one version'}: found in "
                    f"{quantiles[0]:.0f} days (median), {quantiles[1]:.0f} (nine in ten); never within 120 days "
                    f"{np.isinf(found).mean():.1%}"
                )


def main() -> None:
    """Run a simulation."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["bad", "drift", "people", "ordinary", "arriving", "versions"])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--days", type=int, default=100)
    parser.add_argument("--sd", type=float, default=0.1)
    options = parser.parse_args()
    logging.getLogger("logcal").setLevel(logging.ERROR)
    print_machine()
    if options.what == "arriving":
        arriving(options.rows, options.seed, options.days)
    elif options.what == "versions":
        versions(options.seed, options.days)
    elif options.what == "ordinary":
        ordinary(options.rows, options.seed, options.days, options.sd)
    else:
        {"bad": bad, "drift": drift, "people": people}[options.what](options.rows, options.seed)


if __name__ == "__main__":
    main()
