"""The daily job with log, store and outputs on an object store, and with labels that come later in other files."""

import datetime as dt
import io

import fsspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from s3 import BUCKET, environment, s3_server

import logcal
from jobs.daily import only_run
from logcal.errors import LogcalError
from pipeline.days.records import EVALUATE, FIT, SCORE, DayRecords
from pipeline.files import clock, locks
from pipeline.files.folders import Folder

pytestmark = pytest.mark.system
GATE = {"min_rows": 0, "min_positives": 0, "max_rows_drop": 1, "ranking": False, "holdout": "none"}
ROWS = 200


class Simulated:
    """A log of days from 1 March on, below a path or URL, and its daily job at times that the test sets."""

    def __init__(self, url, filesystem, monkeypatch, **sections):
        self.url, self.filesystem, self.monkeypatch = url, filesystem, monkeypatch
        self.sections, self.facts, self.message = sections, {}, ""

    def config(self, **sections):
        values = {
            "log": {"path": f"{self.url}/log"},
            "store": {"path": f"{self.url}/store", "table": "ads"},
            "window": {"column": "date", "last": "9d", "suspect_days": "use"},
            "calibrator": {"method": "isotonic"},
            "gate": GATE,
            "report": {"path": f"{self.url}/reports/{{day}}", "mode": "replace"},
            "output": {"path": f"{self.url}/scored/{{day}}", "mode": "replace"},
            "cluster": {"kind": "inline"},
        }
        for more in (self.sections, sections):
            for name, keys in more.items():
                values[name] = {**values.get(name, {}), **keys}
        return values

    def write(self, name, table):
        sink = io.BytesIO()
        pq.write_table(table, sink)
        path = f"{self.url}/{name}"
        self.filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
        self.filesystem.pipe_file(path, sink.getvalue())

    def part(self, day, number, edition=0):
        """Write a file of a day, whose rows are made in its quarter of it, and return its rows' outcomes."""
        rng = np.random.default_rng([day, number, edition])
        score = 1 / (1 + np.exp(1.2 - rng.normal(0, 1.3, ROWS)))
        label = rng.random(ROWS) < score
        ids = np.arange(ROWS) + 1_000_000 * day + 10_000 * number + 1_000 * edition
        start = np.datetime64(f"2026-03-{day:02}", "us") + np.timedelta64(6 * number, "h")
        made = start + (np.arange(ROWS) * 100_000_000).astype("timedelta64[us]")
        columns = {"score": score, "id": ids, "made": made}
        if not self.sections.get("log", {}).get("labels"):
            columns["label"] = label
        self.write(f"log/date=2026-03-{day:02}/part-{number}.parquet", pa.table(columns))
        return ids[label], made[label]

    def run(self, day, time="06:30", **sections):
        """Run the job in the morning of a day in March; returns the exit code."""
        now = dt.datetime.fromisoformat(f"2026-03-{day:02}T{time}:00+00:00")
        self.monkeypatch.setattr(clock, "now", lambda: now)
        self.message = ""
        try:
            self.facts = logcal.run("days", self.config(**sections)).facts
        except LogcalError as error:
            self.message = str(error)
            self.facts = {} if error.outcome is None else error.outcome.summary
            return error.exit_code
        return 0

    @property
    def scored(self):
        """Number of scored rows by day in March; every row once."""
        files = [name for name in self.filesystem.find(f"{self.url}/scored") if name.endswith(".parquet")]
        rows = pl.concat(
            [pl.read_parquet(io.BytesIO(self.filesystem.cat_file(file)), columns=["id"]) for file in files]
        )
        assert rows["id"].n_unique() == rows.height
        return dict(sorted(rows.group_by(pl.col("id") // 1_000_000).len().rows()))

    def records(self):
        """Steps of each day, with the number of results."""
        found = DayRecords(Folder.at(f"{self.url}/store/ads")).read()
        return {
            day: {step: len(steps[step]) for step in (EVALUATE, FIT, SCORE) if step in steps}
            for day, steps in found.items()
        }


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("moto")
    with s3_server() as proxy:
        yield proxy


@pytest.fixture
def remote(server, tmp_path, monkeypatch):
    server.fault = lambda method, path: None
    for name, value in environment(server.url).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    filesystem = fsspec.filesystem(
        "s3", endpoint_url=server.url, key="someone", secret="very-secret-indeed", skip_instance_cache=True,
        use_listings_cache=False,
    )  # fmt: skip
    return Simulated(f"s3://{BUCKET}/{tmp_path.name}", filesystem, monkeypatch)


def unreachable_after(writes):
    """Return a fault that lets some writes through, then nothing: the store is as a killed run leaves it."""
    left = [writes]

    def fault(method, path):
        left[0] -= method in ("PUT", "POST")
        return "reset" if left[0] < 0 else None

    return fault


def test_days_that_arrive_on_an_object_store(remote, server, monkeypatch):
    """File by file; with runs that end within their writes, a late file, and another run at the same time."""
    monkeypatch.setattr(locks, "LEASE", dt.timedelta(0))  # the lease of a killed run lives for three minutes
    for day in (1, 2, 3):
        for number in range(4):
            remote.part(day, number)
    assert remote.run(4, days={"new": True}) == 0
    writes = iter((6, 14, 22, 30))
    codes = []
    for day in range(4, 13):
        for number in range(4):
            remote.part(day, number)
        remote.part(day + 1, 0)  # the next day begins before the run
        if day == 8:
            remote.part(6, 5)  # a late file
        if day in (5, 7, 8, 11):
            server.fault = unreachable_after(next(writes))
            codes.append(remote.run(day + 1))
            server.fault = lambda method, path: None
        assert remote.run(day + 1) in (0, 99)
    assert codes == [75] * 4
    assert remote.scored == {**dict.fromkeys(range(3, 13), 4 * ROWS), 6: 5 * ROWS}
    for day, steps in remote.records().items():
        if "2026-03-04" <= day <= "2026-03-12":
            assert steps[SCORE] == (2 if day == "2026-03-06" else 1), day
            assert steps[EVALUATE] == 1, day
    assert remote.run(13) == 99
    monkeypatch.undo()
    assert not [name for name in remote.filesystem.find(f"{remote.url}/scored") if "logcal" in name]


def test_of_two_runs_on_an_object_store_one_works(remote, server, monkeypatch):
    for day in (1, 2, 3):
        remote.part(day, 0)
    assert remote.run(4, days={"new": True}) == 0
    remote.part(4, 0)
    with only_run(Folder.at(f"{remote.url}/store/ads/daily")):
        assert remote.run(5) == 75
        assert "another run of the daily job" in remote.message
    assert remote.run(5) == 0


def test_days_whose_labels_come_in_other_files(tmp_path, monkeypatch):
    """Outcomes come a day later, some in a late file; a day is scored at once, and measured when they are known."""
    monkeypatch.chdir(tmp_path)
    labels = {"path": f"{tmp_path}/outcomes", "time": "time", "wait": "1d"}
    local = Simulated(
        str(tmp_path), fsspec.filesystem("file"), monkeypatch,
        log={"key": ["id"], "time": "made", "labels": labels}, window={"min_labelled": 1.0},
    )  # fmt: skip
    late = {}

    def outcomes(day, name, parts):
        """Write outcomes that came on a day."""
        ids, times = (np.concatenate(column) for column in zip(*parts, strict=True))
        came = np.full(ids.size, np.datetime64(f"2026-03-{day:02}T20", "us"))
        times = np.minimum(times + np.timedelta64(20, "h"), came)
        local.write(f"outcomes/{name}.parquet", pa.table({"id": ids, "time": times}))

    real, kill = DayRecords.add, [0]

    def add(self, records):
        kill[0] -= 1
        if kill[0] == 0:
            raise KeyboardInterrupt
        return real(self, records)

    monkeypatch.setattr(DayRecords, "add", add)
    before = []
    for day in range(1, 15):
        parts = [local.part(day, number) for number in range(4)]
        if day > 1:
            outcomes(day, f"of-{day - 1}", before[:-1] if day == 6 else before)
            late = {day: before} if day == 6 else late
        if day == 8:
            ((missed_day, missed),) = late.items()
            outcomes(missed_day, "late", missed[-1:])
        before = parts
        if day < 4:
            continue
        kill[0] = 3 if day in (6, 9, 12) else 0
        new = {"days": {"new": True, "begin": "2026-03-03"}} if day == 4 else {}
        if kill[0]:
            with pytest.raises(KeyboardInterrupt):
                local.run(day + 1, **new)
            kill[0] = 0
        assert local.run(day + 1, **new) in (0, 99), (day, local.message)
        states = local.facts["states"]
        assert states["labels_waiting"] <= 3, states
    assert local.scored == dict.fromkeys(range(3, 15), 4 * ROWS)
    steps = local.records()
    # Labels are known until the 14th, 20:00: the last day that has waited is the 12th.
    assert {day for day, found in steps.items() if FIT in found} == {
        f"2026-03-{day:02}" for day in range(1, 13)
    }
    for day in range(4, 13):
        assert steps[f"2026-03-{day:02}"][EVALUATE] == 1
        assert steps[f"2026-03-{day:02}"][SCORE] == 1
    assert local.run(15) == 99
