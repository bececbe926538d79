"""Simulated days that arrive file by file, and the daily job run on them: for tests and for benchmarks/operation.py."""

from __future__ import annotations

import datetime as dt
import json
import multiprocessing
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from arriving_oracle import expected
from simulated_days import simulated_day

import logcal
from jobs.tables import list_days
from logcal.errors import LogcalError
from pipeline.days.records import DayRecords
from pipeline.files import clock, folders
from pipeline.files.folders import Folder

FIRST = pd.Timestamp("2026-03-02")
FILES = 4
KILLED = 137


@dataclass
class Arriving:
    """A log of days that arrive, and the daily job on it.

    Parameters
    ----------
    root : folder of the log, the store and the outputs
    days, rows : number of days, and rows a file
    bad : kinds of bad days: 'missing', 'unreadable', 'renamed' or 'twice', by number
    missed : mornings without a run, by number
    kills : number of the write at which a run is killed, by the morning's number; it is run again after that
    """

    root: Path
    days: int
    rows: int
    seed: int = 3
    bad: dict[int, str] = field(default_factory=dict)
    missed: frozenset[int] = frozenset()
    kills: dict[int, int] = field(default_factory=dict)
    codes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.arrivals = self._arrivals()
        self.runs: list[pd.Timestamp] = []

    @property
    def config(self) -> dict[str, Any]:
        """Configuration of the daily job. Without held-out rows, so that every fit is published."""
        return {
            "log": {"path": str(self.root / "log")},
            "store": {"path": str(self.root / "store"), "table": "t"},
            "window": {"column": "date", "last": "28d"},
            "calibrator": {"method": "isotonic"},
            "gate": {
                "min_rows": 0,
                "min_positives": 0,
                "max_rows_drop": 1,
                "ranking": False,
                "holdout": "none",
            },
            "report": {"path": str(self.root / "reports/{day}"), "mode": "replace"},
            "output": {"path": str(self.root / "scored/{day}"), "mode": "replace"},
            "cluster": {"kind": "inline"},
        }

    def _arrivals(self) -> pd.DataFrame:
        """Return every write of a file: at random hours, some late by up to three days, some written again."""
        entries = []
        for day in range(self.days):
            kind, start = self.bad.get(day), FIRST + pd.Timedelta(days=day)
            if kind == "missing":
                continue
            for file in range(FILES):
                at = start + pd.Timedelta(hours=self.rng.uniform(0, 26.9))
                if not kind and self.rng.random() < 0.06:
                    at += pd.Timedelta(days=self.rng.uniform(0.5, 3))
                bad = file == 1 and kind in ("unreadable", "renamed")
                entries.append((at, start, f"part-{file}", day, file, 0, kind if bad else "", bad))
                if not kind and self.rng.random() < 0.04:
                    again = at + pd.Timedelta(hours=self.rng.uniform(1, 40))
                    entries.append((again, start, f"part-{file}", day, file, 1, "", False))
                if kind == "twice":
                    entries.append((at, start, f"copy-{file}", day, file, 0, "", False))
        names = ["at", "day", "file", "number", "part", "edition", "kind", "bad"]
        table = pd.DataFrame(entries, columns=names).sort_values("at", kind="stable").reset_index(drop=True)
        table["ids"] = [list(self._ids(row.number, row.part, row.edition)) for row in table.itertuples()]
        return table

    def _ids(self, day: int, part: int, edition: int) -> np.ndarray:
        return np.arange(self.rows + 7 * edition) + 1_000_000 * day + 100_000 * part + 50_000 * edition

    def write(self, row: Any) -> None:
        """Write a file of the log, with its arrival as modification time."""
        ids = np.array(row.ids)
        day = simulated_day(row.number, rows=4 * FILES * self.rows + 100, day_sd=0.02, seed=self.seed)
        start = FILES * self.rows * row.edition + row.part * self.rows
        score, label = (column[start : start + ids.size] for column in (day.score, day.label))
        folder = self.root / "log" / f"date={row.day.date()}"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{row.file}.parquet"
        if row.kind == "unreadable":
            path.write_bytes(b"PAR1 but no more than that PAR1")
        else:
            score_name = "score_v2" if row.kind == "renamed" else "score"
            pq.write_table(pa.table({score_name: score, "label": label, "id": ids}), path)
        time = row["at"].timestamp()
        os.utime(path, (time, time))

    def simulate(self) -> None:
        """Let the files arrive, and run the job each morning from the fourth on."""
        written = 0
        for morning in range(4, self.days + 5):
            now = FIRST + pd.Timedelta(days=morning, hours=6.5)
            while written < len(self.arrivals) and self.arrivals["at"][written] <= now:
                self.write(self.arrivals.loc[written])
                written += 1
            if morning in self.missed:
                continue
            first = not self.runs
            if morning in self.kills:
                process = multiprocessing.get_context("spawn").Process(
                    target=killed_run, args=(self.config, str(now), self.kills[morning])
                )
                process.start()
                process.join()
                assert process.exitcode == KILLED, process.exitcode
            self.runs.append(now)
            self.codes.append(run(self.config, str(now), new=first))

    # What there is

    def scored(self) -> pd.DataFrame:
        """Return the scored rows: day, id, and the version's number."""
        parts = []
        for path in sorted((self.root / "scored").rglob("*.parquet")):
            table = pd.DataFrame(
                pq.read_table(path, columns=["id", "table_version"], partitioning=None).to_pydict()
            )
            day = pd.Timestamp(path.parts[-2].removeprefix("date="))
            version = table["table_version"].str[:6].astype(int)
            parts.append(pd.DataFrame({"day": day, "id": table["id"], "version": version}))
        return pd.concat(parts, ignore_index=True)

    def check(self) -> dict[str, int]:
        """Compare the outputs with the oracle; return counts for the report."""
        rows, aside, missing = expected(self.arrivals, self.runs)
        found, order = self.scored(), ["day", "id", "version"]
        pd.testing.assert_frame_equal(
            found.sort_values(order).reset_index(drop=True),
            rows.sort_values(order).reset_index(drop=True),
            check_dtype=False,
        )
        again = "twice" in self.bad.values()
        assert again or found["id"].is_unique
        self._check_measured(set(rows["day"]))
        self._check_exceptions(aside, missing)
        return {"rows": len(rows), "days": rows["day"].nunique(), "versions": int(rows["version"].max())}

    def _check_measured(self, days: set) -> None:
        """Every day but the first was evaluated before a fit used it, with an earlier version."""
        records = DayRecords(Folder.at(self.root / "store/t")).read()
        for day in sorted(days)[1:]:
            steps = records[str(day.date())]
            evaluated, fitted = steps["evaluate"][0], steps["fit"][0]
            assert evaluated.outcome == "done", evaluated
            assert evaluated.at <= fitted.at
            assert evaluated.version < fitted.version

    def _check_exceptions(self, aside: set, missing: set) -> None:
        """Every exception is listed, and nothing of a bad day is anywhere."""
        clock.now = lambda: _time(str(self.runs[-1]))
        file = self.root / "day.json"
        file.write_text(json.dumps(self.config))
        listed = list_days(str(self.root / "store"), "t", [str(file)]).summary["days"]
        states = {pd.Timestamp(entry["day"]): entry for entry in listed}
        assert {day for day, entry in states.items() if entry["state"] == "missing"} == missing
        assert aside <= {day for day, entry in states.items() if entry["state"] == "set_aside"}
        assert all(states[day]["reason"] for day in aside)
        for day in aside:
            assert not (self.root / f"scored/{day.date()}").exists()
        for path in (self.root / "store/t/versions").glob("*/manifest.json"):
            window = json.loads(path.read_text())["window"]
            used = {pd.Timestamp(entry["day"]) for entry in window["days"] if entry["rows_used"]}
            assert not used & aside


def _time(now: str) -> dt.datetime:
    return dt.datetime.fromisoformat(now).replace(tzinfo=dt.UTC)


def run(config: dict[str, Any], now: str, *, new: bool = False) -> int:
    """Run the daily job at a time; return its exit code."""
    clock.now = lambda: _time(now)
    try:
        logcal.run("days", {**config, "days": {"new": new}})
    except LogcalError as error:
        return error.exit_code
    return 0


def killed_run(config: dict[str, Any], now: str, write: int) -> None:
    """Run the daily job, and end the process within a write of the store or an output."""
    count = 0

    def watched(real: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            if count == write:
                os._exit(KILLED)
            return real(*arguments)

        return call

    for name in ("_rename", "_append", "write_synced", "exchange"):
        setattr(folders, name, watched(getattr(folders, name)))
    run(config, now)
