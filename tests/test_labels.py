"""Labels from outcomes in other files: the same tables as of logs that DuckDB joined, and what a join refuses."""

import datetime as dt
import errno
import json
from pathlib import Path

import duckdb
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from common import write_log

from pipeline.labels import label_join
from pipeline.labels.outcomes import Outcomes
from pipeline.sort import runs

ISOTONIC = "calibrator.method=isotonic"
KEYED = (ISOTONIC, "log.key=id")
DAY = dt.datetime(2026, 3, 1)  # noqa: DTZ001 - a zone is put on it, or none
ZONES = (None, "UTC", "America/New_York", "Asia/Kolkata")
SEEDS = [seed if seed < 8 else pytest.param(seed, marks=pytest.mark.system) for seed in range(200)]


def write(folder, table, files=1, **options):
    return Path(write_log(folder, table, files, **options))


class RandomLog:
    """Predictions and outcomes drawn by a seed, and what DuckDB makes of them.

    Keys repeat on both sides and are null at times; they are integers, texts or both. Times have one of four zones.
    """

    def __init__(self, seed):
        random = np.random.default_rng([34, seed])
        self.random = random
        rows, self.rows = int(random.integers(40, 600)), int(random.integers(5, 400))
        self.kinds = (("integer",), ("text",), ("integer", "text"))[random.integers(3)]
        self.zone = ZONES[random.integers(len(ZONES))]
        self.wait = (None, 6, 36)[random.integers(3)]
        self.timed = bool(random.integers(4))
        self.labelled = bool(random.integers(3))
        self.missing = ("negative", "drop")[random.integers(2)]
        self.duplicates = ("any", "last", "first")[random.integers(3)] if self.timed else "any"
        spread = int(random.choice([3, 100, 2000]))
        hours = random.integers(0, 24 * 8 * 60, rows) / 60
        times = [DAY + dt.timedelta(minutes=round(60 * h)) for h in hours]
        score = np.round(random.random(rows), 2)
        predictions = {"score": score, "made": self.times(times), **self.keys(spread, rows)}
        own = random.integers(0, rows, self.rows)
        after = random.choice([-40.0, -3.0, 0.5, 5.0, 20.0, 90.0], self.rows)
        came = [times[i] + dt.timedelta(hours=h) for i, h in zip(own, after, strict=True)]
        keys = {name: column for name, column in predictions.items() if name.startswith("k")}
        outcomes = {name: column.take(pa.array(own)) for name, column in keys.items()}
        noise = random.random(self.rows) < 0.2
        outcomes = {
            name: pa.concat_arrays([c.filter(pa.array(~noise)), c.filter(pa.array(noise))])
            for name, c in outcomes.items()
        }
        order = np.concatenate([np.flatnonzero(~noise), np.flatnonzero(noise)])
        outcomes["came"] = self.times([came[i] for i in order])
        if self.labelled:
            outcomes["clicked"] = self.labels(random.random(self.rows))
        self.predictions, self.outcomes = pa.table(predictions), pa.table(outcomes)

    def times(self, times):
        unit = str(self.random.choice(["ms", "us", "ns"]))
        return pa.array(times, pa.timestamp("us", self.zone)).cast(pa.timestamp(unit, self.zone))

    def keys(self, spread, rows):
        found = {}
        for i, kind in enumerate(self.kinds):
            values = self.random.integers(0, spread, rows)
            null = self.random.random(rows) < 0.05
            column = [None if gone else int(value) for value, gone in zip(values, null, strict=True)]
            if kind == "integer":
                whole = [pa.int64(), pa.int32(), pa.uint64()][self.random.integers(3)]
                found[f"k{i}"] = pa.array(column, whole)
            else:
                text = pa.array([None if value is None else f"request-{value:05d}-é" for value in column])
                found[f"k{i}"] = text.dictionary_encode() if self.random.integers(2) else text
        return found

    def labels(self, draws):
        values = [None if draw < 0.05 else bool(draw < 0.5) for draw in draws]
        return pa.array(values).cast([pa.bool_(), pa.int8(), pa.float64()][self.random.integers(3)])

    @property
    def settings(self):
        keys = list(self.predictions.column_names[2:])
        found = [
            ISOTONIC,
            f"log.key={json.dumps(keys)}",
            "log.time=made",
            f"log.labels.missing={self.missing}",
        ]
        found += [f"log.labels.duplicates={self.duplicates}"]
        found += ["log.labels.label=clicked"] if self.labelled else []
        found += ["log.labels.time=came"] if self.timed else []
        found += [f"log.labels.wait={self.wait}h"] if self.wait else []
        return found

    def joined(self):
        """The log as DuckDB joins it: a label a prediction, null where it waits; without those that are left out."""
        label = "clicked::DOUBLE" if self.labelled else "1.0::DOUBLE"
        keys = [name for name in self.predictions.column_names if name.startswith("k")]
        on = " AND ".join(f"o.{key} = p.{key}" for key in keys)
        orders = {"any": f"-{label}, came", "first": f"came, {label}", "last": f"came DESC, -{label}"}
        order = orders[self.duplicates]
        if not self.timed:
            order = f"-{label}"
        inside = "TRUE"
        if self.timed:
            inside = "o.came >= p.made - INTERVAL 1 DAY"
            inside += f" AND o.came <= p.made + INTERVAL {self.wait} HOUR" if self.wait else ""
        until = (
            "(SELECT max(came) FROM outcomes)"
            if self.timed
            else "(SELECT date_trunc('day', max(made)) + INTERVAL 1 DAY FROM predictions)"
        )
        waits = f"made + INTERVAL {self.wait} HOUR > {until}" if self.wait else "FALSE"
        negative = f"CASE WHEN {waits} THEN NULL ELSE coalesce(label, 0.0) END"
        rule = {"negative": negative, "drop": "label"}[self.missing]
        gone = f"label IS NULL AND NOT ({waits})" if self.missing == "drop" else "FALSE"
        predictions, outcomes = self.plain(self.predictions), self.plain(self.outcomes)
        with duckdb.connect() as connection:
            connection.register("predictions", predictions)
            connection.register("outcomes", outcomes)
            known = f"NOT ({waits})" if self.missing == "negative" else "TRUE"
            query = f"""
                WITH p AS (SELECT *, row_number() OVER () AS place FROM predictions),
                found AS (
                    SELECT p.place, {label} AS label, row_number() OVER (PARTITION BY p.place ORDER BY {order}) AS n
                    FROM p JOIN outcomes o ON {on} WHERE {label} IS NOT NULL AND {inside})
                SELECT score, {rule} AS label, label IS NOT NULL AND {known} AS matched
                FROM p LEFT JOIN found ON p.place = found.place AND n = 1 WHERE NOT ({gone})"""
            return connection.sql(query).to_arrow_table()

    def orphaned(self):
        """Outcomes whose key no prediction has, and those without a key or label."""
        keys = [name for name in self.predictions.column_names if name.startswith("k")]
        known = set(zip(*(self.predictions.column(key).to_pylist() for key in keys), strict=True))
        known = {key for key in known if None not in key}
        labels = self.outcomes.column("clicked").to_pylist() if self.labelled else [1] * self.rows
        found = zip(
            zip(*(self.outcomes.column(key).to_pylist() for key in keys), strict=True), labels, strict=True
        )
        return sum(key not in known or label is None for key, label in found)

    @staticmethod
    def plain(table):
        """The table without dictionaries, and with times in UTC that have no zone."""

        def simple(column):
            column = column.combine_chunks()
            if pa.types.is_dictionary(column.type):
                return column.dictionary_decode()
            if pa.types.is_timestamp(column.type):
                whole = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
                return whole.cast(pa.timestamp("us"))
            return column

        return pa.table([simple(column) for column in table.columns], names=table.column_names)


def fitted(place, store, *settings, job=None, **paths):
    """A fit's result, its lookup table and its manifest. job : what runs it; None: the command."""
    result = (job or place.job)("fit", *settings, store__path=place.root / store, **paths)
    table = place.root / store / place.table
    if result.code:
        return result, None, None
    version = table / "versions" / (table / "CURRENT").read_text().strip()
    return (
        result,
        (version / "lookup.parquet").read_bytes(),
        json.loads((version / "manifest.json").read_text()),
    )


@pytest.fixture
def split(monkeypatch):
    """Joins are split into some parts from now on."""
    return lambda: monkeypatch.setattr(Outcomes, "index_bytes", property(lambda _: 1 << 30))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_log_is_joined_as_duckdb_joins_it(place, call, split, seed):
    """Also where outcomes are too many for a task."""
    case = RandomLog(seed)
    joined = case.joined()
    write(place.root / "predictions", case.predictions, files=1 + seed % 4, row_group_size=50 + 13 * seed)
    write(place.root / "outcomes", case.outcomes, files=1 + seed % 3, row_group_size=37)
    write(place.root / "joined", joined.select(["score", "label"]), files=2)
    before, bytes_before, _ = fitted(place, "one", ISOTONIC, job=call, log__path=place.root / "joined")
    paths = {"log__path": place.root / "predictions", "log__labels__path": place.root / "outcomes"}
    counted = []
    for store in ("whole", "parts"):
        if store == "parts":
            split()
        after, bytes_after, manifest = fitted(place, store, *case.settings, job=call, **paths)
        assert (after.code, bytes_after) == (before.code, bytes_before), (
            vars(case),
            before.stderr,
            after.stderr,
        )
        assert ("INFO match: " in after.stderr) == (store == "parts")
        if manifest is None:
            continue
        labels = manifest["labels"]
        assert labels["rows_matched"] == joined.column("matched").to_pandas().sum()
        total = labels["rows_matched"] + labels["rows_missing"] + labels["rows_waiting"]
        assert total == case.predictions.num_rows
        assert labels["outcomes_orphaned"] == case.orphaned()
        counted.append(labels)
    assert counted[1:] == counted[:1]


# Bad input


@pytest.fixture
def clicks(place):
    """An ordinary log with keys and days, and the outcomes of its positives, hours later."""
    columns = place.predictions(2000)
    made = [DAY + dt.timedelta(hours=h) for h in range(240)]
    columns["id"] = np.arange(2000)
    columns["made"] = pa.array([made[i * 240 // 2000] for i in range(2000)], pa.timestamp("us"))
    table = pa.table(columns)
    positive = table.filter(pa.array(columns["label"] == 1)).select(["id", "made"])
    later = [time + dt.timedelta(hours=5) for time in positive.column("made").to_pylist()]
    came = pa.array(later, pa.timestamp("us"))
    place.write_log({name: columns[name] for name in ("score", "id", "made")})
    place.labels = place.root / "outcomes"
    place.clicks = pa.table({"id": positive.column("id"), "came": came})
    write(place.labels, place.clicks)
    return place


WRONG = [
    ("log.key=absent", 3, "column 'absent' (log.key) is not in any file"),
    ("log.key=score", 3, "(log.key): expected integers, strings, bytes or dates"),
    ("log.labels.label=clicked", 3, "(log.labels.label) is not in any file"),
    ("log.labels.label=came", 3, "(log.labels.label): expected booleans, or numbers 0 and 1"),
    ("log.labels.time=id", 3, "(log.labels.time): expected timestamps or dates"),
    ("log.time=absent", 3, "column 'absent' (log.time) is not in the log"),
    ("log.time=score", 3, "(log.time): expected timestamps, dates"),
    ("log.labels.wait=3d", 2, "expected log.time or window.column"),
    ("log.labels.wait=3", 2, "write 3d"),
    ("log.labels.duplicates=last", 2, "expected log.labels.time with last"),
    ("log.label=clicked", 2, "set labels.label"),
    ("log.key=[]", 2, "expected columns such as request_id with labels.path, found none"),
    ("log.labels.key=[id, came]", 2, "expected as many columns as key has"),
    ("log.labels.mising=drop", 2, "missing"),
    ("log.labels.path=nowhere", 3, "log.labels.path names no log that can be used"),
]


@pytest.mark.parametrize(("setting", "code", "said"), WRONG)
def test_a_setting_that_no_join_has_is_refused(clicks, setting, code, said):
    before = clicks.tree()
    paths = {} if setting.startswith("log.labels.path") else {"log__labels__path": clicks.labels}
    clicks.job("fit", *KEYED, setting, **paths).expect(code, said)
    assert clicks.tree() == before


def with_column(name, values):
    """Outcomes with another column: values of its values."""

    def change(table):
        return table.set_column(table.schema.get_field_index(name), name, values(table[name]))

    return change


def without_a_time(came):
    return pa.array([None, *came.to_pylist()[1:]], pa.timestamp("us"))


def in_utc(came):
    return came.cast(pa.timestamp("us", "UTC"))


TIMED = ("log.time=made", "log.labels.time=came")
OUTCOMES = [
    (lambda table: table.drop_columns("id"), (), "(log.labels.key) is not in any file"),
    (
        with_column("id", lambda id_: pa.array(["text"] * len(id_))),
        (),
        "expected keys of one type, found 'id'",
    ),
    (
        with_column("id", lambda id_: pa.array(np.arange(len(id_)) + 5000)),
        (),
        "expected outcomes of some predictions, found none for 2,000",
    ),
    (lambda table: table.slice(0, 0), (), "expected rows, found none in 1 file"),
    (with_column("came", in_utc), TIMED, "both with a time zone or both without"),
    (with_column("came", without_a_time), TIMED, "(log.labels.time), found 1 null"),
]


@pytest.mark.parametrize(("change", "settings", "said"), OUTCOMES, ids=[case[2] for case in OUTCOMES])
def test_outcomes_that_cannot_be_joined_are_refused(clicks, change, settings, said):
    write(clicks.labels, change(clicks.clicks))
    before = clicks.tree()
    joined(clicks, *settings)[0].expect(3, said)
    assert clicks.tree() == before


def joined(place, *settings, store="store"):
    """A fit of the log joined with the outcomes."""
    return fitted(place, store, *KEYED, *settings, log__labels__path=place.labels)


def test_keys_that_repeat_are_an_error_where_they_must_not(clicks):
    write(clicks.labels, pa.concat_tables([clicks.clicks, clicks.clicks.slice(3, 2)]))
    result, *_ = joined(clicks, "log.labels.duplicates=error")
    result.expect(3, "found several for 2 keys, such as", str(clicks.clicks.column("id")[3]))
    write(clicks.labels, clicks.clicks)
    joined(clicks, "log.labels.duplicates=error")[0].expect(0)


def test_labels_that_are_none_are_bad_rows(clicks):
    label = np.ones(clicks.clicks.num_rows)
    label[:2] = 0.5, 7
    write(clicks.labels, clicks.clicks.append_column("clicked", pa.array(label)))
    joined(clicks, "log.labels.label=clicked")[0].expect(3, "label_not_0_or_1: 2 rows, such as clicked=0.5")
    kept = clicks.root / "bad"
    result, _, manifest = joined(
        clicks, "log.labels.label=clicked", "log.on_bad_rows=quarantine", f"log.quarantine_path={kept}"
    )
    result.expect(0)
    assert manifest["data"]["quarantined_by_reason"] == {"label_not_0_or_1": 2}
    assert sorted(pq.read_table(kept).column("label").to_pylist()) == [0.5, 7.0]


def test_a_tired_user_is_told(clicks):
    """A label of the log's own, outcomes that say 0 themselves, and times of another clock."""
    log = pq.read_table(clicks.log)
    clicks.write_log(log.append_column("label", pa.nulls(log.num_rows, pa.int8())))
    early = pa.array([time - dt.timedelta(days=3) for time in clicks.clicks.column("came").to_pylist()])
    label = np.arange(clicks.clicks.num_rows) % 2
    late = pa.table({"id": clicks.clicks.column("id"), "came": early, "clicked": label})
    more = pa.table({"id": np.arange(2), "came": pa.array([DAY, DAY], pa.timestamp("us")), "clicked": [0, 1]})
    write(clicks.labels, pa.concat_tables([late, more]))
    result, _, manifest = joined(clicks, "log.time=made", "log.labels.time=came", "log.labels.label=clicked")
    result.expect(0, "column 'label' is not read", "outcomes say 0 themselves", "more than a day before")
    assert manifest["labels"]["rows_early"] == clicks.clicks.num_rows - 1


# Days


@pytest.fixture
def days(place):
    """A log of ten days, a file a day, and outcomes within two days of it, a file for each day they came."""
    random = np.random.default_rng(5)
    place.made, place.frames = {}, {}
    place.labels = place.root / "outcomes"
    parts = []
    for day in range(10):
        score = random.random(1500)
        second = np.sort(random.integers(0, 86400, 1500))
        made = np.datetime64("2026-03-01") + np.timedelta64(day, "D") + second.astype("timedelta64[s]")
        id_ = random.permutation(1500) + 10_000 * day
        table = pa.table({"score": score, "id": id_, "made": pa.array(made, pa.timestamp("s"))})
        place.frames[day] = table
        write(place.root / "log" / f"day-{day}", table)
        positive = random.random(1500) < score**2
        came = made[positive] + random.integers(60, 2 * 86400, positive.sum()).astype("timedelta64[s]")
        parts.append(pa.table({"id": id_[positive], "came": pa.array(came, pa.timestamp("s"))}))
    place.came = pa.concat_tables(parts)
    return place


DAILY = ("window={column: made, last: 30d}", "log.labels.time=came", "log.labels.wait=2d")


def arrive(place, days):
    """Outcomes that came on some days, in their files."""
    day = place.came.column("came").to_numpy().astype("datetime64[D]")
    for number in days:
        here = day == np.datetime64("2026-03-01") + np.timedelta64(number, "D")
        write(place.labels / f"day-{number}", place.came.filter(pa.array(here)))


def sorted_days(manifest):
    return [int(day["day"][-2:]) - 1 for day in manifest["window"]["days"] if day["sorted_now"]]


def test_a_day_is_sorted_anew_where_its_outcomes_changed(days):
    """And the result is that of a fit that kept nothing, whatever came first."""
    later = days.root / "later"
    (days.root / "log" / "day-9").rename(later)
    arrive(days, range(9))
    result, _, manifest = joined(days, *DAILY)
    result.expect(0)
    assert sorted_days(manifest) == list(range(9))
    # Outcomes of day 8 are known until its end: the rows of days 7 and 8 wait, and a part of day 6.
    waiting = {day["day"][-2:]: day["labels"]["rows_waiting"] for day in manifest["window"]["days"]}
    assert [waiting[f"{day:02}"] for day in (6, 8, 9)] == [0, 1500, 1500]
    assert 0 < waiting["07"] < 30
    assert manifest["labels"]["rows_waiting"] == sum(waiting.values()) == manifest["data"]["rows_waiting"]
    assert joined(days, *DAILY)[0].code == 99
    later.rename(days.root / "log" / "day-9")
    arrive(days, [9])
    result, _, manifest = joined(days, *DAILY)
    result.expect(0)
    # What came on day 9 can be of predictions of days 7 and later; day 6 has rows that waited for it.
    assert sorted_days(manifest) == [6, 7, 8, 9]
    assert joined(days, *DAILY, store="anew")[2]["fingerprint"] == manifest["fingerprint"]
    # A correction of what came on day 3.
    table = pq.read_table(days.labels / "day-3")
    write(days.labels / "day-3", table.slice(5))
    *_, manifest = joined(days, *DAILY)
    assert sorted_days(manifest) == [1, 2, 3, 4]
    assert joined(days, *DAILY, store="anew")[2]["fingerprint"] == manifest["fingerprint"]
    delay = manifest["window"]["days"][2]["labels"]["delay_seconds"]
    own = days.frames[2]
    both = own.join(pq.read_table(days.labels), "id", join_type="inner")
    took = (both.column("came").to_numpy() - both.column("made").to_numpy()) / np.timedelta64(1, "s")
    assert delay["median"] == pytest.approx(np.median(took), rel=0.02)
    assert delay["p90"] == pytest.approx(np.quantile(took, 0.9), rel=0.02)


def test_every_job_takes_the_same_labels(days):
    arrive(days, range(12))
    log = pa.concat_tables(days.frames.values())
    positive = set(days.came.column("id").to_pylist())
    label = pa.array([1 if one in positive else 0 for one in log.column("id").to_pylist()], pa.int8())
    beforehand = write(days.root / "beforehand", log.append_column("label", label))
    window = "window={column: made, last: 5d, until: 2026-03-05, suspect_days: use}"
    fitted(days, "store", ISOTONIC, window, log__path=beforehand)[0].expect(0)
    labels = {"log__labels__path": days.labels}
    later = "window={column: made, last: 5d, until: 2026-03-10}"
    found = {}
    for name, own in (("one", {"log__path": beforehand}), ("other", labels)):
        more = ("log.key=id", "log.labels.time=came") if name == "other" else ()
        report = days.root / f"report-{name}"
        run = days.job(
            "evaluate", later, *more, "--json", output__path=None, report__path=report, **own
        ).expect(0)
        evaluated = run.json["after"]
        compare = days.job("compare", *more, "--json", store__path=None, store__table=None, **own).json
        days.job("monitor", later, *more, "--json", report__path=days.root / f"page-{name}", **own).expect(0)
        history = json.loads(next((days.store / days.table).glob("monitor*/*.json")).read_text())
        next((days.store / days.table).glob("monitor*/*.json")).unlink()
        found[name] = (evaluated, compare["methods"], history)
    assert found["one"] == found["other"]


def test_monitor_waits_for_labels(days):
    arrive(days, range(10))
    labels = {"log__labels__path": days.labels}
    first = "window={column: made, last: 4d, until: 2026-03-04, suspect_days: use}"
    fitted(days, "store", *KEYED, first, "log.labels.time=came", **labels)[0].expect(0)
    settings = ("window={column: made, last: 30d}", "log.key=id", *DAILY[1:])
    run = days.job("monitor", *settings, **labels).expect(0)
    # A part of day 7 waits by its age alone: the others of its rows are tested.
    assert "4 days tested so far, 4 now" in run.stdout
    assert "2026-03-09 has no row with a label yet: not tested" in run.stdout


def test_generate_takes_labels_of_other_files(place):
    """The same log as of data that was joined beforehand, and keys are no features."""
    random = np.random.default_rng(8)
    size, label = random.random(400), random.random(400) < 0.4
    data = pa.table({"size": size, "noise": random.random(400), "id": np.arange(400)})
    write(place.root / "data", data.append_column("label", pa.nulls(400, pa.int8())), files=2)
    write(place.root / "beforehand", data.append_column("label", pa.array(label)), files=2)
    labels = write(place.root / "outcomes", pa.table({"key": np.flatnonzero(label)}))
    settings = {"log__path": None, "store__path": None, "store__table": None}
    more = ("generate.target_rows=500", "data.row_id=id")
    joined = {
        "data__path": place.root / "data",
        "data__labels__path": labels,
        "output__path": place.root / "joined",
    }
    place.job("generate", *more, "data.key=id", "data.labels.key=key", **settings, **joined).expect(0)
    before = {"data__path": place.root / "beforehand", "output__path": place.root / "before"}
    place.job("generate", *more, "data.exclude=id", **settings, **before).expect(0)
    found = [
        pa.concat_tables(map(pq.read_table, sorted((place.root / name / "log").glob("*.parquet"))))
        for name in ("joined", "before")
    ]
    assert found[0].num_rows >= 500
    assert found[0].equals(found[1])
    labels = json.loads((place.root / "joined" / "_logcal.json").read_text())["labels"]
    counts = {"matched": label.sum(), "missing": 400 - label.sum(), "waiting": 0, "late": 0, "conflicting": 0}
    assert {name: labels[f"rows_{name}"] for name in counts} == counts
    assert labels["outcomes_orphaned"] == 0
    joined["data__labels__path"] = write(place.root / "others", pa.table({"key": [900, 901]}))
    joined["output__path"] = place.root / "none"
    refused = place.job("generate", *more, "data.key=id", "data.labels.key=key", **settings, **joined)
    refused.expect(3, "data.labels.path: expected outcomes of some predictions, found none for 400 rows")


@pytest.mark.parametrize("where", ["delta", "memory"])
def test_outcomes_may_be_a_table_or_in_a_store(clicks, call, where):
    expected = fitted(clicks, "files", *KEYED, job=call, log__labels__path=clicks.labels)[1]
    if where == "delta":
        deltalake = pytest.importorskip("deltalake")
        path = str(clicks.root / "delta")
        deltalake.write_deltalake(path, clicks.clicks.slice(0, 5))
        deltalake.write_deltalake(path, clicks.clicks, mode="overwrite")
    else:
        path = "memory://outcomes"
        with fsspec.open(f"{path}/part.parquet", "wb") as file:
            pq.write_table(clicks.clicks, file)
    _, found, manifest = fitted(clicks, f"fit-{where}", *KEYED, job=call, log__labels__path=path)
    assert found == expected
    assert manifest["log"]["labels"]["rows"] == clicks.clicks.num_rows
    assert ("snapshots" in manifest["log"]["labels"]) == (where == "delta")


def test_a_rerun_knows_its_result_and_changed_outcomes_are_another_run(clicks):
    _, _, first = joined(clicks)
    assert joined(clicks)[0].code == 99
    write(clicks.root / "elsewhere", clicks.clicks)
    write(clicks.labels, clicks.clicks.slice(1))
    result, _, second = joined(clicks)
    result.expect(0)
    assert second["run_id"] != first["run_id"]
    assert second["labels"]["rows_matched"] == first["labels"]["rows_matched"] - 1


@pytest.mark.parametrize("stage", ["outcomes", "keys", "join", "sort"])
def test_a_killed_join_is_finished_by_the_next_run(clicks, call, split, monkeypatch, stage):
    """A task that fails leaves the others' results, and running again publishes what an undisturbed run does."""
    split()
    expected = fitted(clicks, "undisturbed", *KEYED, job=call, log__labels__path=clicks.labels)[1]
    function = {"outcomes": "_split_outcomes", "keys": "_split_keys", "join": "_join"}.get(stage)
    module = label_join if function else runs
    name = function or "write_runs"
    own = getattr(module, name)

    def fails(*arguments):
        if stage != "join" or arguments[3] == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return own(*arguments)

    with monkeypatch.context() as context:
        context.setattr(module, name, fails)
        fitted(clicks, "again", *KEYED, job=call, log__labels__path=clicks.labels)[0].expect(75)
    assert fitted(clicks, "again", *KEYED, job=call, log__labels__path=clicks.labels)[1] == expected
