"""Tables applied by other engines give what logcal gives, to the last bit."""

import gc
import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.core.map import CalibrationMap, Interval
from calibrators.core.simplify import knots_of, simplify
from calibrators.core.tabulate import largest_error
from logcal.lookup_table import LookupFacts, LookupTable
from logcal.reading import read_table
from pipeline.table.sql import DIALECTS, MAX_ERROR, _number, query

pytestmark = pytest.mark.system

EDGES = [float("nan"), None, float("inf"), float("-inf"), 0.0, -0.0, 1.0, 1e300, -1e300, 5e-324]
NAMES = ["at", "o'brien", "back\\slash", None, "never seen"]


@pytest.fixture(scope="module")
def place(make_place, tmp_path_factory):
    """A plain and a segmented table, each the second version of its name, and a log to score."""
    place = make_place(tmp_path_factory.mktemp("sql"))
    columns = place.predictions(6000)
    random = np.random.default_rng(3)
    segments = {
        "country": pa.array(NAMES[:4]).take(pa.array(random.integers(0, 4, 6000))),
        "model_id": pa.array([7, -3, None, 2**40]).take(pa.array(random.integers(0, 4, 6000))),
    }
    # Segments differ, so that they move maps.
    label = columns["label"]
    off = np.array([name == "at" for name in segments["country"].to_pylist()]) & (random.random(6000) < 0.3)
    columns["label"] = np.where(off, 0, label).astype(np.asarray(label).dtype)
    place.write_log({**columns, **segments})
    place.write_log(
        {"margin": 8 * np.asarray(columns["score"]) - 4, "label": columns["label"]}, name="margins"
    )
    country, model = random.integers(0, 4, (2, 60_000))
    x = random.normal(size=60_000)
    rate = 1 / (1 + np.exp(2 - np.array([-3, -1, 1, 3])[country] - 0.3 * model - x))
    lines = {
        "score": 1 / (1 + np.exp(-x)),
        "label": (random.random(60_000) < rate).astype(np.int8),
        "country": pa.array(NAMES[:4]).take(pa.array(country)),
        "model_id": pa.array([7, -3, None, 2**40]).take(pa.array(model)),
    }
    place.write_log(lines, name="lines")
    by_segment = "log.segment=[country, model_id]"
    alone = (by_segment, "segments.shrinkage=none", "segments.min_rows=300")
    for table, *settings in (
        ("ads", "calibrator.method=histogram"),
        ("ads",),
        ("seg", *alone),
        ("moved", by_segment),
        ("bent", by_segment),
        ("platt", *alone, "calibrator.method=platt", "calibrator.params={max_error: 0.001}"),
        ("margins", "log.score_transform=sigmoid", "log.score=margin"),
        ("steep", "calibrator.method=platt"),
    ):
        log = place.root / {"margins": "margins", "bent": "lines"}.get(table, "log")
        place.job("fit", *settings, log__path=log, store__table=table).expect(0)
    lookup = read_table(path_of(place, "ads")).map
    score = pa.array([*EDGES, *lookup.score_lo[1:].tolist(), *np.nextafter(lookup.score_lo[1:], -1).tolist(),
                      *random.random(500).tolist()])  # fmt: skip
    rows = len(score)
    new = pa.table(
        {
            "row_id": np.arange(rows),
            "score": score,
            "country": pa.array(NAMES).take(pa.array(random.integers(0, 5, rows))),
            "model_id": pa.array([7, -3, None, 2**40, 99]).take(pa.array(random.integers(0, 5, rows))),
        }
    )
    (place.root / "new").mkdir()
    pq.write_table(new, place.root / "new" / "log.parquet")
    assert table_of(place, "bent").facts.features == ("segments", "adjustments", "bent")
    for table in ("ads", "seg", "moved", "bent", "platt", "margins"):
        paths = {"log__path": place.root / "new", "output__path": place.root / f"by-{table}"}
        place.job("score", store__table=table, **paths).expect(0)
    return place


def path_of(place, table):
    folder = place.store / table
    return str(folder / "versions" / (folder / "CURRENT").read_text().strip() / "lookup.parquet")


def table_of(place, table):
    path = path_of(place, table)
    return read_table(path)


def sql_of(place, table, dialect, inline, log="log", max_error=0):
    return query(
        *(table_of(place, table), path_of(place, table), dialect),
        inline=inline,
        log=log,
        score="score",
        max_error=max_error,
    )


def expected(place, table):
    return pq.read_table(place.root / f"by-{table}").sort_by("row_id")["probability"].to_pylist()


def new_log(place):
    return pq.read_table(place.root / "new" / "log.parquet")


BOTH = pytest.mark.parametrize("inline", [False, True], ids=["path", "inline"])
TABLES = pytest.mark.parametrize("table", ["ads", "seg", "moved", "bent", "platt", "margins"])


def assert_same(found, wanted, table):
    """To the last bit; where exp and ln are the engine's own, within some units in the last place."""
    if table not in ("moved", "bent", "platt", "margins"):
        assert found == wanted
    assert [p is None for p in found] == [p is None for p in wanted]
    np.testing.assert_allclose(np.array(found, float), np.array(wanted, float), rtol=1e-13)


@TABLES
@BOTH
def test_duckdb(place, table, inline):
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    connection.register("log", new_log(place))
    sql = sql_of(place, table, "duckdb", inline)
    found = connection.sql(f"SELECT row_id, probability FROM ({sql}) ORDER BY row_id")
    assert_same([row[1] for row in found.fetchall()], expected(place, table), table)
    by_path = sql_of(place, table, "duckdb", inline, log=str(place.root / "new" / "log.parquet"))
    assert connection.sql(f"SELECT probability FROM ({by_path})").fetchall()


@TABLES
@BOTH
def test_datafusion(place, table, inline):
    datafusion = pytest.importorskip("datafusion")
    context = datafusion.SessionContext().enable_url_table()
    context.register_parquet("log", str(place.root / "new" / "log.parquet"))
    sql = sql_of(place, table, "datafusion", inline)
    found = context.sql(f"SELECT row_id, probability FROM ({sql}) ORDER BY row_id").to_pydict()
    assert_same(found["probability"], expected(place, table), table)


@TABLES
def test_sqlite(place, table):
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE log (row_id INTEGER, score REAL, country TEXT, model_id INTEGER)")
    rows = new_log(place).to_pylist()
    connection.executemany("INSERT INTO log VALUES (:row_id, :score, :country, :model_id)", rows)
    sql = sql_of(place, table, "sqlite", inline=True)
    found = connection.execute(f"SELECT row_id, probability FROM ({sql}) ORDER BY row_id").fetchall()
    connection.close()
    # SQLite stores NaN as null.
    assert_same([row[1] for row in found], expected(place, table), table)


@TABLES
@pytest.mark.parametrize("max_error", [1e-9, MAX_ERROR, 1e-3])
def test_an_inline_table_has_few_rows_within_its_largest_error(place, table, max_error):
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    connection.register("log", new_log(place))
    sql = sql_of(place, table, "duckdb", inline=True, max_error=max_error)
    assert f"-- Probabilities within {max_error:g} of" in sql
    found = connection.sql(f"SELECT probability FROM ({sql}) ORDER BY row_id").fetchall()
    exact = np.array(expected(place, table), float)
    error = np.abs(np.array(found, float)[:, 0] - exact)
    assert np.isnan(error).tolist() == np.isnan(exact).tolist()
    error, exact = error[~np.isnan(exact)], exact[~np.isnan(exact)]
    assert (error <= max_error + 1e-15).all()
    assert (error <= 1e5 * max_error * np.minimum(exact, 1 - exact) + 1e-15).all()
    whole = sql_of(place, table, "duckdb", inline=True)
    assert "-- All rows" in whole
    assert len(sql) < len(whole) + 60


def test_inline_tables_that_cannot_have_fewer_rows():
    """One row; steps; scores next to each other; scores so large that their distance is no double."""
    zeros = np.zeros
    for edges in ([], [0.5], np.nextafter(0.5, [0, 1]), 5e-324 * np.arange(1, 6), [-1.7e308, 0.0, 1.7e308]):
        edges = np.array(edges, float)
        level = np.linspace(0, 1, edges.size + 1)
        steps = CalibrationMap.from_bins(edges, level, zeros(level.size), zeros(level.size))
        maps = [steps]
        if edges.size > 1:
            maps.append(CalibrationMap.from_knots(edges, level[1:], zeros(level.size), zeros(level.size)))
        for map_ in maps:
            scores, levels = knots_of(map_)
            simple = simplify(map_, largest_error(levels, 1e-3))
            at = np.concatenate([scores, np.nextafter(scores, np.inf), np.nextafter(scores, -np.inf), [0, 1]])
            np.testing.assert_allclose(simple.predict(at), map_.predict(at), rtol=0, atol=1e-3)
            assert simple.monotone


@given(
    knots=st.lists(st.integers(0, 60), min_size=2, max_size=25, unique=True).map(sorted),
    levels=st.lists(st.integers(0, 100), min_size=26, max_size=26),
    kind=st.sampled_from(["lines", "steps", "rising lines", "rising steps"]),
    max_error=st.sampled_from([1e-9, 1e-6, 1e-3, 0.05]),
    narrow=st.booleans(),
)
def test_fewer_rows_stay_within_the_error_and_keep_the_order(knots, levels, kind, max_error, narrow):
    scores = np.array(knots, float)
    scores = 1 + scores * np.finfo(float).eps if narrow else scores / 60
    level = np.array(levels[: scores.size + 1]) / 100
    level = np.sort(level) if "rising" in kind else level
    zeros = np.zeros(scores.size + 1)
    if "steps" in kind:
        map_ = CalibrationMap.from_bins(scores, level, zeros, zeros)
    else:
        map_ = CalibrationMap.from_knots(scores, level[1:], zeros, zeros)
    allowed = np.full(knots_of(map_)[0].size, max_error)
    simple = simplify(map_, allowed)
    middle = scores[:-1] / 2 + scores[1:] / 2
    at = np.concatenate([scores, np.nextafter(scores, -1), np.nextafter(scores, 9), middle, [-9, 9]])
    np.testing.assert_allclose(simple.predict(at), map_.predict(at), rtol=0, atol=max_error + 1e-14)
    assert len(simple) <= len(map_)
    assert simple.monotone or not map_.monotone


# As many rows as the page on recipes allows, and what an engine makes of them: a few times the query, not its square.
DOCUMENTED_ROWS = 10_000


@pytest.fixture(scope="module")
def large():
    """A table without anything to leave out."""
    random = np.random.default_rng(2)
    zeros = np.zeros(DOCUMENTED_ROWS)
    level = random.random(DOCUMENTED_ROWS)
    map_ = CalibrationMap.from_knots(np.sort(random.random(DOCUMENTED_ROWS - 1)), level[1:], zeros, zeros)
    return LookupTable.of_map(
        map_, LookupFacts("000001", "platt", {}, "none", False, {}, "", DOCUMENTED_ROWS)
    )


def sql_of_large(large, dialect):
    return query(large, "", dialect, inline=True, log="log", score="score", max_error=0)


LARGE = pa.table({"score": np.random.default_rng(3).random(200)})


@pytest.mark.parametrize("max_error", [0, 1e-3])
def test_ends_of_intervals_have_the_largest_error_too(large, max_error):
    duckdb = pytest.importorskip("duckdb")
    ends = (np.maximum(large.map.prob_lo - 0.01, 0), np.minimum(large.map.prob_lo + 0.01, 1))
    table = replace(large, facts=replace(large.facts, interval="band"), interval=Interval(*ends))
    connection = duckdb.connect()
    connection.register("log", LARGE)
    sql = query(table, "", "duckdb", inline=True, log="log", score="score", max_error=max_error)
    found = connection.sql(f"SELECT prob_lower, prob_upper FROM ({sql})").fetchnumpy()
    exact = table.interval.at(table.map.score_hi, LARGE["score"].to_numpy())
    for name, end in zip(("prob_lower", "prob_upper"), exact, strict=True):
        np.testing.assert_allclose(found[name], end, rtol=0, atol=max_error)


def test_duckdb_plans_a_large_table(large):
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    connection.register("log", LARGE)
    sql = sql_of_large(large, "duckdb")
    ((_, plan),) = connection.sql(f"EXPLAIN (FORMAT json) SELECT probability FROM ({sql})").fetchall()
    assert plan.count("CASE") < 2 * DOCUMENTED_ROWS
    found = connection.sql(f"SELECT probability FROM ({sql})").fetchnumpy()["probability"]
    np.testing.assert_array_equal(found, large.map.predict(LARGE["score"].to_numpy()))


def test_datafusion_plans_a_large_table(large):
    datafusion = pytest.importorskip("datafusion")
    context = datafusion.SessionContext()
    context.from_arrow(LARGE, name="log")
    frame = context.sql(f"SELECT probability FROM ({sql_of_large(large, 'datafusion')})")
    assert str(frame.optimized_logical_plan()).count("CASE") < 2 * DOCUMENTED_ROWS
    found = frame.to_pydict()["probability"]
    np.testing.assert_array_equal(found, large.map.predict(LARGE["score"].to_numpy()))


def test_sqlite_plans_a_large_table(large):
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE log (score REAL)")
    scores = LARGE["score"].to_pylist()
    connection.executemany("INSERT INTO log VALUES (?)", [(score,) for score in scores])
    sql = sql_of_large(large, "sqlite")
    assert (
        len(connection.execute(f"EXPLAIN SELECT probability FROM ({sql})").fetchall()) < 20 * DOCUMENTED_ROWS
    )
    found = [row[0] for row in connection.execute(f"SELECT probability FROM ({sql})").fetchall()]
    connection.close()
    np.testing.assert_array_equal(found, large.map.predict(np.array(scores)))


def test_sqlite_evaluates_each_map_once_a_row(place):
    """Merged into the adjustment of each segment, the maps would be 47 times as many instructions here."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE log (row_id INTEGER, score REAL, country TEXT, model_id INTEGER)")
    sql = sql_of(place, "moved", "sqlite", inline=True)
    instructions = connection.execute(f"EXPLAIN SELECT probability FROM ({sql})").fetchall()
    connection.close()
    assert sql.count("CASE") < len(instructions) < 20 * sql.count("CASE")


@pytest.mark.parametrize("columns", [("country",), ("country", "model_id")])
def test_sqlite_reads_a_bent_map_of_many_segments(make_place, tmp_path, columns):
    """Its expressions are at most 1,000 deep."""
    place, random = make_place(tmp_path), np.random.default_rng(5)
    segment, x = random.integers(0, 1500, 600_000), 1.5 * random.normal(size=600_000)
    rate = 1 / (1 + np.exp(3 - random.normal(0, 2.5, 1500)[segment] - x))
    label = (random.random(600_000) < rate).astype(np.int8)
    values = (segment,) if len(columns) == 1 else (segment % 300, segment // 300)
    place.write_log(
        {"score": 1 / (1 + np.exp(-x)), "label": label, **dict(zip(columns, values, strict=True))}
    )
    place.job("fit", f"log.segment=[{', '.join(columns)}]", store__table="many").expect(0)
    table = table_of(place, "many")
    assert max(np.bincount(-table.levels[table.levels < 0])) == 1
    numbers, users = np.unique(table.adjustments.map[table.levels.size :], return_counts=True)
    assert users.max() > 1000
    assert table.levels[numbers[users.argmax()]] == -4 * len(columns)
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE log (row_id INTEGER, score REAL, country INTEGER, model_id INTEGER)")
    rows = [(i, score, i, 0) for i, score in enumerate(random.random(1500).tolist())]
    if len(columns) == 2:
        rows = [(i, score, i % 300, i // 300) for i, score, *_ in rows]
    connection.executemany("INSERT INTO log VALUES (?, ?, ?, ?)", rows)
    sql = sql_of(place, "many", "sqlite", inline=True)
    found = connection.execute(f"SELECT probability FROM ({sql}) ORDER BY row_id").fetchall()
    connection.close()
    keys = [pa.array(column) for column in list(zip(*rows, strict=True))[2 : 2 + len(columns)]]
    entry = table.index.find(keys)[0]
    wanted = table.apply(np.array([row[1] for row in rows]), entry)
    np.testing.assert_allclose([p for (p,) in found], wanted, rtol=1e-13)


def test_sqlite_reads_each_number_as_it_is():
    """It misreads some of Python's shortest decimals."""
    random = np.random.default_rng(0)
    numbers = np.concatenate(
        [
            random.random(20_000),
            np.round(random.random(20_000), 6),
            np.exp(random.uniform(-40, 5, 20_000)),
            np.ldexp(1 + random.random(20_000), random.integers(-1074, 1023, 20_000)),
            [0.707056753354459, 7.13265119648637e-12, 5e-324, np.finfo(float).tiny, np.finfo(float).max, 0.0],
        ]
    )
    numbers = np.concatenate([numbers, -numbers]).tolist()
    texts = [_number(DIALECTS["sqlite"], number) for number in numbers]
    connection = sqlite3.connect(":memory:")
    found: list = []
    for first in range(0, len(texts), 1000):
        found += connection.execute(f"SELECT {', '.join(texts[first : first + 1000])}").fetchone()
    connection.close()
    assert found == numbers


def test_the_recipe_in_python(place):
    names: dict = {}
    text = (Path(__file__).parents[1] / "docs" / "recipes.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    code = next(block for block in blocks if "def calibrate" in block)
    exec(compile(code, "docs/recipes.md", "exec"), names)
    log = new_log(place).to_pylist()
    scores = [float("nan") if row["score"] is None else row["score"] for row in log]
    segments = [(row["country"], row["model_id"]) for row in log]
    plain = names["calibrate"](scores, names["current"](place.store / "ads"))
    np.testing.assert_array_equal(plain, np.array(expected(place, "ads"), np.float64))
    for table in ("seg", "moved", "bent", "platt"):
        lookup, adjustments = (names[name](place.store / table) for name in ("current", "adjustments"))
        found = names["calibrate_segments"](scores, segments, lookup, ["country", "model_id"], adjustments)
        assert bool(adjustments) == (table != "seg")
        assert_same(np.where(np.isnan(found), None, found).tolist(), expected(place, table), table)


@TABLES
@pytest.mark.parametrize("dialect", sorted(DIALECTS.keys() - {"datafusion"}))
def test_every_dialect_parses(place, table, dialect):
    sqlglot = pytest.importorskip("sqlglot")
    for inline in (True, False) if DIALECTS[dialect].parquet else (True,):
        tree = sqlglot.parse_one(sql_of(place, table, dialect, inline), read=dialect)
        assert tree.find(sqlglot.exp.Case)
        assert "probability" in tree.named_selects


def test_the_command_prints_the_query_of_the_current_version(place):
    store = ("--store", str(place.store), "--table", "ads")
    said = place.run("tables", "sql", *store, "--dialect", "duckdb").expect(0).stdout
    assert f"versions/{place.current}/lookup.parquet" in said
    first = place.versions[0]
    assert first in place.run("tables", "sql", *store, "--dialect", "spark", first).expect(0).stdout
    # The score's column is the one that was fitted to.
    of_margins = (*store[:-1], "margins", "--dialect", "duckdb")
    assert 't."margin"' in place.run("tables", "sql", *of_margins).expect(0).stdout
    place.run("tables", "sql", *store, "--dialect", "postgres").expect(2, "reads no Parquet by its path")
    place.run("tables", "sql", *store, "--dialect", "oracle").expect(2, "expected one of duckdb, clickhouse")
    inline = place.run(
        "tables", "sql", *store, "--dialect", "trino", "--inline", "--log", "a.b", "--score", "p c"
    )
    assert 't."p c"' in inline.expect(0).stdout
    assert "FROM a.b AS t" in inline.stdout
    steep = ("tables", "sql", *store[:-1], "steep", "--dialect", "sqlite", "--inline")
    short = place.run(*steep).expect(0)
    assert "WARNING" not in short.stderr
    long = place.run(*steep, "--max-error", "0").expect(0)
    assert re.search(
        r"the query has [\d,]+ bytes, and sqlite takes 1,000,000 .*larger --max-error", long.stderr
    )
    assert long.stdout.startswith("-- All rows")
    assert len(long.stdout) > 10 * len(short.stdout)
    for wrong in ("1", "1e-13", "nan", "-1"):
        place.run(*steep, "--max-error", wrong).expect(
            2, "--max-error: expected 0, or a number in [1e-12, 0.1]"
        )
    place.run(*steep[:-1], "--max-error", "1e-6").expect(2, "--max-error: give --inline")


@TABLES
@BOTH
def test_clickhouse(place, table, inline):
    import chdb

    log = f"file('{place.root / 'new' / 'log.parquet'}', Parquet)"
    sql = sql_of(place, table, "clickhouse", inline, log)
    body, _, settings = sql.partition("\nSETTINGS ")
    settings = f" SETTINGS {settings}" if settings else ""
    found = chdb.query(
        f"SELECT row_id, reinterpretAsUInt64(assumeNotNull(probability)), probability IS NULL FROM ({body}) "
        f"ORDER BY row_id{settings}",
        "CSV",
    )
    rows = [line.split(",") for line in str(found).splitlines()]
    found = [None if row[2] == "1" else float(np.uint64(row[1]).view(np.float64)) for row in rows]
    assert_same(found, expected(place, table), table)


# Engines that `make recipes` installs


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    """A session of Spark's own, which leaves sockets open."""
    sql_module = pytest.importorskip("pyspark.sql")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = (
            sql_module.SparkSession.builder.master("local[1]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "1")
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("spark")))
            .getOrCreate()
        )
        try:
            yield session
        finally:
            gateway = session.sparkContext._gateway
            session.stop()
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait(60)
            del session, gateway
            gc.collect()


SPARKS = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@TABLES
@BOTH
@SPARKS
def test_spark(place, table, inline, spark):
    spark.read.parquet(str(place.root / "new")).createOrReplaceTempView("log")
    sql = sql_of(place, table, "spark", inline)
    found = spark.sql(f"SELECT row_id, probability FROM ({sql}) ORDER BY row_id").collect()
    assert_same([row[1] for row in found], expected(place, table), table)


@SPARKS
def test_spark_reads_a_scored_folder(place, spark):
    found = spark.read.parquet(str(place.root / "by-ads")).orderBy("row_id").collect()
    assert [row["probability"] for row in found] == expected(place, "ads")
    assert {row["table_version"] for row in found} == {(place.store / "ads" / "CURRENT").read_text().strip()}


@pytest.fixture(scope="module")
def postgres():
    """Where a PostgreSQL server is: that of LOGCAL_TEST_POSTGRES, or one of the test's own."""
    pytest.importorskip("psycopg")
    if "LOGCAL_TEST_POSTGRES" in os.environ:
        yield os.environ["LOGCAL_TEST_POSTGRES"]
        return
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or [shutil.which("initdb")]
    if found[-1] is None:
        pytest.skip("PostgreSQL is not installed, and LOGCAL_TEST_POSTGRES names no server")
    programs, folder = Path(found[-1]).parent, Path(tempfile.mkdtemp(prefix="logcal-pg-"))
    # It does not run as root, and sockets have short names.
    user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
    if user:
        shutil.chown(folder, "postgres", "postgres")

    def run(program, *arguments):
        subprocess.run(
            [*user, str(programs / program), "-D", str(folder / "data"), *arguments],
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            cwd=folder,
        )

    try:
        run("initdb", "--auth=trust", "--username=logcal", "--encoding=UTF8", "--no-sync")
        options = f"-c listen_addresses='' -c unix_socket_directories={folder}"
        run("pg_ctl", "-w", "-l", str(folder / "server.log"), "-o", options, "start")
        try:
            yield f"host={folder} user=logcal dbname=postgres"
        finally:
            run("pg_ctl", "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@TABLES
def test_postgres(place, table, postgres):
    import psycopg

    with psycopg.connect(postgres) as connection, connection.cursor() as cursor:
        cursor.execute(
            "CREATE TEMPORARY TABLE log (row_id bigint, score double precision, country text, model_id bigint)"
        )
        with cursor.copy("COPY log FROM STDIN") as copy:
            for row in new_log(place).to_pylist():
                copy.write_row(tuple(row.values()))
        sql = sql_of(place, table, "postgres", inline=True).replace("%", "%%")
        cursor.execute(f"SELECT row_id, probability FROM ({sql}) AS q ORDER BY row_id")
        assert_same([row[1] for row in cursor.fetchall()], expected(place, table), table)
