"""What applications import: published tables, applied as the job `score` applies them."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import errno
import hashlib
import itertools
import json
import math
import shutil
import sys
from decimal import Decimal

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pyarrow.parquet as pq
import pytest
from common import python, run_command
from hypothesis import given
from hypothesis import strategies as st

import logcal
from calibrators.core import map as calibration_map
from calibrators.core.map import CalibrationMap, Interval
from logcal import lookup_table, reading, segment_index, storage
from logcal.arrow_columns import column_of, nullable_column
from logcal.errors import ConfigError, InputRejectedError, TemporaryError
from logcal.reading import read_table
from logcal.segment_index import SegmentIndex
from logcal.segment_types import segment_column
from logcal.table import _as_arrow
from logcal.units import unit_question

MAP = CalibrationMap.from_blocks(
    first=np.array([0.1, 0.3, 0.6]),
    last=np.array([0.2, 0.5, 0.6]),
    level=np.array([0.05, 1 / 3, 0.9]),
    weight=np.ones(3),
    positives=np.zeros(3),
)
EDGES = MAP.score_lo[1:]
DIFFICULT = [-np.inf, -0.0, 0.0, 5e-324, 1e308, np.inf, np.nan, *EDGES, *np.nextafter(EDGES, -1)]


def each_way(monkeypatch):
    """With compiled code and without."""
    for answer in (True, False):
        for module in (calibration_map, lookup_table, segment_index):
            monkeypatch.setattr(module, "compiled", lambda scores, answer=answer: answer)
        yield


@pytest.fixture(scope="module")
def published(make_place, tmp_path_factory):
    """A place with a plain table, one with segments, and a log that was scored with each; and one of own maps."""
    place = make_place(tmp_path_factory.mktemp("published"))
    rng = np.random.default_rng(0)
    rows = 4000
    country = rng.choice(np.array(["de", "fr", "", "é", None], object), rows, p=[0.5, 0.3, 0.1, 0.05, 0.05])
    columns = place.predictions(rows) | {"country": country, "model": rng.integers(1, 4, rows)}
    place.write_log(columns)
    place.job("fit").expect(0)
    place.job("score").expect(0)
    segments = ("log.segment=[country, model]", "segments.min_rows=150", "segments.min_positives=5")
    place.job("fit", *segments, store__table="by-country").expect(0)
    place.job("fit", *segments, "segments.shrinkage=none", store__table="own-maps").expect(0)
    news = columns | {"country": rng.permutation(np.where(columns["score"] < 0.2, "new", country))}
    news["score"] = np.where(rng.random(rows) < 0.1, np.nan, news["score"])
    place.write_log(news, name="news")
    out = place.root / "by-country"
    options = {"store__table": "by-country", "log__path": place.root / "news", "output__path": out}
    done = place.job("score", "--json", **options).expect(0)
    assert done.json["unseen_rows"] == (news["country"] == "new").sum()
    return place


def scored(folder):
    return pa.concat_tables(pq.ParquetFile(path).read() for path in sorted(folder.glob("*.parquet")))


def test_it_equals_score_to_the_last_bit(published, monkeypatch):
    table = logcal.load(str(published.store), "ads")
    rows = scored(published.output)
    expected = rows["probability"].to_numpy()
    for _ in each_way(monkeypatch):
        np.testing.assert_array_equal(table.predict(rows["score"].to_numpy()), expected)
    assert [table.predict(s) for s in rows["score"].to_pylist()] == expected.tolist()
    assert table.version == rows["table_version"][0].as_py() == published.current


def test_it_equals_score_with_segments_to_the_last_bit(published, monkeypatch):
    table = logcal.load(str(published.store), "by-country")
    assert table.segments == ("country", "model")
    rows = scored(published.root / "by-country")
    score, expected = rows["score"].to_numpy(), rows["probability"].to_numpy(zero_copy_only=False)
    assert np.isnan(expected).any()
    frame = rows.to_pandas()
    given_as = [
        rows,
        frame,
        {"model": frame["model"].to_numpy(), "country": frame["country"].tolist()},
        {
            "model": frame["model"].astype(float),
            "country": rows["country"].combine_chunks().dictionary_encode(),
        },
    ]
    for _ in each_way(monkeypatch):
        for segments in given_as:
            np.testing.assert_array_equal(table.predict(score, segments), expected)
    ones = zip(score, rows["country"].to_pylist(), rows["model"].to_pylist(), expected, strict=True)
    for s, country, model, p in ones:
        found = table.predict(s, {"country": country, "model": model})
        assert found == p or (np.isnan(found) and np.isnan(p))
    shown = table.predict(score.reshape(4, -1), {"country": "de", "model": 2})
    assert shown.shape == (4, 1000)
    repeated = {"country": ["de"] * 4000, "model": [2] * 4000}
    np.testing.assert_array_equal(shown.reshape(-1), table.predict(score, repeated))


@pytest.mark.parametrize("text", ["0.5", b"0.5", ["0.5", "0.7"], [0.5, "0.7"], pa.array(["0.5"]), [1j]])
@pytest.mark.parametrize("method", ["predict", "interval"])
def test_scores_that_are_no_numbers_are_refused(published, text, method):
    table = logcal.load(str(published.store), "ads")
    table._lookup = dataclasses.replace(
        table._lookup, interval=Interval(table.map.prob_lo, table.map.prob_lo)
    )
    with pytest.raises(ConfigError, match=r"scores: expected numbers, found (text|complex128)"):
        getattr(table, method)(text)


@pytest.mark.parametrize("name", ["ads", "by-country"])
@pytest.mark.parametrize(
    ("scores", "question"),
    [
        (55.0, "percent"),
        (55, "percent"),
        ([0.3, 99.0], "percent"),
        (-1.5, "log odds"),
        ([np.nan, -2.0], "log odds"),
    ],
)
def test_scores_in_another_unit_are_warned_of_once(published, name, scores, question):
    table = logcal.load(str(published.store), name)
    segments = None if name == "ads" else {"country": "de", "model": 1}
    for unsuspicious in (0.0, 1.2, np.nan, [], [[0.5, np.nan]], np.float32(0.5), 101.0):
        table.predict(unsuspicious, segments)
    with pytest.warns(UserWarning, match=rf"fitted to probabilities, found .* are they {question}") as said:
        found = table.predict(scores, segments)
    assert [warning.filename for warning in said] == [__file__]
    np.testing.assert_array_equal(table.predict(scores, segments), found)  # warnings are errors


@pytest.mark.system
def test_it_needs_numpy_and_arrow_alone(published):
    code = (
        "import sys, logcal\n"
        "plain = logcal.load(sys.argv[1], 'ads')\n"
        "plain.predict(0.5), plain.predict([0.1] * 5000)\n"
        "table = logcal.load(sys.argv[1], 'by-country')\n"
        "table.predict(0.5, {'country': 'de', 'model': 1})\n"
        "table.predict([0.1] * 5000, {'country': ['de'] * 5000, 'model': [1] * 5000})\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    loaded = set(python(code, published.store).stdout.split())
    assert {"numpy", "pyarrow", "logcal", "calibrators"} <= loaded
    others = {"numba", "pandas", "dask", "sklearn", "scipy", "matplotlib", "fsspec", "pipeline", "jobs"}
    if int(pa.__version__.partition(".")[0]) < 26:
        others.discard("pandas")  # PyArrow 20 imports it to make arrays
    assert loaded & others == set()


PROGRAM = """
import sys
if sys.argv[1] == "first":
    import calibrators
import logcal, numpy as np
scores = np.linspace(0, 1, 1_100_000)
table = logcal.load(*sys.argv[2:4])
assert table.predict(scores)[::100_000].tolist() == table.predict(scores[::100_000]).tolist()
import calibrators
assert calibrators.MINE == "mine"
assert logcal.Auto().fit(scores[::5000], scores[::5000] > 0.4).predict([0.9])[0] > 0.5
assert logcal.run("evaluate", {
    "log": {"path": sys.argv[4]}, "store": {"path": sys.argv[2], "table": sys.argv[3]},
    "report": {"path": "report-" + sys.argv[1]}, "evaluate": {"allow_in_sample": True}, "cluster": {"kind": "inline"},
}).version
import calibrators, jobs, pipeline
assert {calibrators.MINE, jobs.MINE, pipeline.MINE} == {"mine"}
"""
"""A program with modules of our names, which it imports before logcal, or after."""


@pytest.mark.system
@pytest.mark.parametrize("when", ["first", "later"])
def test_a_program_s_own_modules_of_our_names(fitted, when):
    for name in ("calibrators", "jobs", "pipeline"):
        (fitted.root / f"{name}.py").write_text('MINE = "mine"\n')
    script = fitted.root / "program.py"
    script.write_text(PROGRAM)
    run_command(sys.executable, script, when, fitted.store, "ads", fitted.log, cwd=fitted.root)
    # Relative paths of a mapping are relative to the working folder, also where another process runs the job.
    assert (fitted.root / f"report-{when}" / "report.html").exists()


@given(st.lists(st.floats() | st.sampled_from(DIFFICULT), min_size=1, max_size=30))
def test_every_way_to_apply_a_map_gives_the_same_bits(scores):
    expected = [
        np.nan
        if np.isnan(s)
        else next(
            p if slope == 0 else p + slope * (s - anchor)
            for low, high, p, slope, anchor in zip(
                MAP.score_lo, MAP.score_hi, MAP.prob_lo, MAP.slope, MAP.anchor, strict=True
            )
            if low <= s < high or high == np.inf
        )
        for s in scores
    ]
    with pytest.MonkeyPatch.context() as patched:
        for _ in each_way(patched):
            np.testing.assert_array_equal(MAP.predict(scores), expected)
    np.testing.assert_array_equal([MAP.predict(s) for s in scores], expected)


# Segments

KINDS = {
    "text": (pa.string(), st.sampled_from(["", "a", "b", "ab", "é", "a" * 20, "\0"])),
    "whole": (pa.int64(), st.integers(-3, 3) | st.sampled_from([2**63 - 1, -(2**63)])),
    "large": (pa.uint64(), st.sampled_from([0, 1, 2**63, 2**64 - 1])),
    "flag": (pa.bool_(), st.booleans()),
    "day": (pa.date32(), st.dates(dt.date(2026, 1, 1), dt.date(2026, 1, 5))),
}
OTHERS = {"text": pa.large_string(), "whole": pa.int8(), "large": pa.int16()}


@given(st.data(), st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3))
def test_segments_are_found_as_in_a_dictionary(data, kinds):
    key = st.tuples(*(st.none() | KINDS[kind][1] for kind in kinds))
    known = data.draw(st.lists(key, max_size=8, unique=True))
    prefixes = {k[:n] for k in known for n in range(1, len(kinds) + 1)}
    owners = [(), *(k for k in sorted(prefixes, key=repr) if data.draw(st.booleans()))]
    width = len(kinds)
    rows = [(*k, *([None] * (width - len(k)))) for k in owners] + known
    index = SegmentIndex(
        [pa.array([row[i] for row in rows], KINDS[kind][0]) for i, kind in enumerate(kinds)],
        np.array([len(k) for k in owners] + [width] * len(known)),
        np.array([*range(len(owners))] + [-1] * len(known)),
        np.array([False] * len(owners) + [True] * len(known)),
    )
    asked = data.draw(st.lists(key | st.sampled_from(known) if known else key, min_size=1, max_size=12))
    expected = [
        max(
            i
            for i, own in enumerate(owners)
            if k[: len(own)] == own and len(own) == max(len(o) for o in owners if k[: len(o)] == o)
        )
        for k in asked
    ]
    columns = [pa.array([k[i] for k in asked], KINDS[kind][0]) for i, kind in enumerate(kinds)]
    layouts = [
        columns,
        [pa.chunked_array([c[:1], c[1:]]) for c in columns],
        [c.dictionary_encode() for c in columns],
    ]
    with contextlib.suppress(pa.ArrowInvalid):  # a number that the other type has not
        layouts.append([c.cast(OTHERS.get(kind, c.type)) for c, kind in zip(columns, kinds, strict=True)])
    with pytest.MonkeyPatch.context() as patched:
        for _ in each_way(patched):
            before = index.no_dictionaries()
            for layout in (*layouts, [c[::-1].dictionary_encode()[::-1] for c in columns], layouts[2]):
                place, seen = index.find(layout, before)
                assert place.tolist() == expected
                assert seen.tolist() == [k in known for k in asked]


def test_dictionaries_that_grow_are_looked_up_as_they_grow():
    index = SegmentIndex([pa.array([None, *"abcd"])], np.array([0, 1, 1, 1, 1]), np.arange(5), np.ones(5) > 0)
    dictionaries = index.no_dictionaries()
    for values in (["a", "b"], ["a", "b", "c"], ["a", "b", "c"], ["b"], ["b", "x", "d"]):
        column = pa.DictionaryArray.from_arrays(pa.array([*range(len(values)), None]), pa.array(values))
        assert index.find([column], dictionaries)[0].tolist() == [*("abcd".find(v) + 1 for v in values), 0]


# What is wrong


def test_segments_that_do_not_fit(published):
    plain = logcal.load(str(published.store), "ads")
    with pytest.raises(ConfigError, match="expected none, since the table has none"):
        plain.predict([0.5], {"country": "de"})
    table = logcal.load(str(published.store), "by-country")
    for segments, said in (
        (None, "found none of country, model"),
        ({"country": "de"}, "found none of model"),
        ({"country": "de", "modle": 1}, "found none of model"),
        (pd.DataFrame({"model": [1]}), "found none of country"),
        ({"country": ["de", "fr"], "model": 1}, "expected 3 values of 'country', one a score, found 2"),
        ({"country": ["de", 1, "fr"], "model": 1}, "of 'country', all of one kind, found int, str"),
        ({"country": "de", "model": [1.5, 1.5, 1.5]}, "of 'model', all of one kind, found float"),
    ):
        with pytest.raises(ConfigError, match=said):
            table.predict([0.5, 0.6, 0.7], segments)
    with pytest.raises(ConfigError, match="found none of model"):
        table.predict(0.5, {"country": "de"})


@pytest.mark.parametrize(
    ("column", "value", "found"),
    [
        ("model", "1", "whole numbers"),
        ("model", True, "whole numbers"),
        ("model", dt.date(2026, 1, 1), "whole numbers"),
        ("country", 1, "text"),
        ("country", False, "text"),
    ],
)
def test_segments_of_another_type_are_refused_as_by_score(published, column, value, found):
    table = logcal.load(str(published.store), "by-country")
    for form in (value, [value] * 3, pa.array([value] * 3)):
        segments = {"country": "de", "model": 1} | {column: form}
        for score in (np.array([0.5, 0.6, 0.7]), *([0.5] if form is value else [])):
            with pytest.raises(ConfigError, match=f"column '{column}': expected {found}"):
                table.predict(score, segments)


def test_missing_segments_and_whole_floats_are_values(published):
    table = logcal.load(str(published.store), "by-country")
    known = table.predict(0.5, {"country": "de", "model": 1})
    for value in (1.0, np.int32(1), np.uint64(1), [1], pa.array([1], pa.uint8()), pd.Series([1.0, None])[:1]):
        assert table.predict(0.5, {"country": "de", "model": value}) == known
    nothing = table.predict(0.5, {"country": None, "model": None})
    assert table.predict([0.5], {"country": [None], "model": pa.nulls(1)}) == nothing
    assert table.predict([0.5], {"country": [None], "model": [None]}) == nothing


def test_tables_that_are_not_there(published, tmp_path):
    store = str(published.store)
    assert logcal.load(store, "ads", "000001").version == logcal.load(store, "ads").version
    for arguments, error, said in (
        ((store, "none"), InputRejectedError, "found none in .*: run `logcal fit` first"),
        ((str(tmp_path / "file" / "x"), "ads"), InputRejectedError, "run `logcal fit` first"),
        (
            (store, "ads", "000009-x"),
            InputRejectedError,
            "table 'ads' has no version '000009-x'; found 000001-",
        ),
        ((store, "../ads"), ConfigError, "choose a plain name"),
        ((store, "ads", "../../ads"), ConfigError, "choose a plain name"),
    ):
        with pytest.raises(error, match=said):
            logcal.load(*arguments)


@pytest.mark.parametrize("name", ["CURRENT", "manifest.json", "lookup.parquet", "segments.parquet"])
def test_a_file_of_a_table_that_its_storage_does_not_give(published, name, monkeypatch):
    real = storage.read

    def fails(path):
        if path.endswith(name):
            raise OSError(errno.EIO, "Input/output error")
        return real(path)

    reading._read_cached.cache_clear()
    monkeypatch.setattr(storage, "read", fails)
    with pytest.raises(TemporaryError, match=f"{name}: expected a .*found that its storage is unavailable"):
        logcal.load(str(published.store), "by-country")


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_values_may_come_in_many_forms(kind):
    values = {
        "text": ["a", None, "é"],
        "whole": [1, None, -(2**63)],
        "large": [1, None, 2**64 - 1],
        "flag": [True, None, False],
        "day": [dt.date(2026, 1, 2), None, dt.date(1969, 1, 1)],
    }[kind]
    known = pa.array(values, KINDS[kind][0])
    index = SegmentIndex([known], np.array([0, 1, 1]), np.array([0, 1, 2]), np.ones(3, bool))
    expected = [index.find([known])[0].tolist()]
    frame_types = {"whole": "Int64", "text": "category", "large": "UInt64"}
    forms = [
        values,
        tuple(values),
        np.array(values, object),
        pd.Series(values, dtype=frame_types.get(kind, object)),
    ]
    for form in forms:
        assert [index.find([_as_arrow("s", form)])[0].tolist()] == expected, form


@pytest.mark.parametrize("table", ["ads", "by-country"])
def test_a_changed_byte_anywhere_in_a_table_is_refused_or_changes_nothing(published, tmp_path, table):
    source = published.store / table / "versions" / (published.store / table / "CURRENT").read_text().strip()
    path = shutil.copytree(source, tmp_path / "version") / "lookup.parquet"
    content, score = path.read_bytes(), np.linspace(-0.1, 1.1, 999)
    expected, refused = reading.read_table(str(path)), 0
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    for at in (*range(0, footer, footer // 50), *range(footer, len(content), 7)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x80]) + content[at + 1 :])
        try:
            found = reading.read_table(str(path))
        except InputRejectedError:
            refused += 1
            continue
        assert found.facts == expected.facts, at
        assert np.array_equal(found.map.predict(score), expected.map.predict(score))
        assert all(np.array_equal(found.maps[name], column) for name, column in expected.maps.items())
        assert found.segments.equals(expected.segments)
    assert refused > 100


def test_stores_by_url(published):
    memory = fsspec.filesystem("memory")
    memory.put(str(published.store), "/tables", recursive=True)
    try:
        table = logcal.load("memory://tables", "ads")
        expected = logcal.load(str(published.store), "ads")
        assert table.predict(0.5) == expected.predict(0.5)
        segmented = logcal.load("memory://tables/", "by-country", None)
        assert segmented.facts == logcal.load(str(published.store), "by-country").facts
        with pytest.raises(InputRejectedError, match="run `logcal fit` first"):
            logcal.load("memory://tables", "none")
    finally:
        memory.rm("/tables", recursive=True)


def twice(table):
    return pa.concat_tables([table.slice(0, 1), table])


def shifted(table):
    """The first segment column is that of the row before."""
    values = table.column(0).combine_chunks()
    return table.set_column(0, table.schema.field(0), pa.concat_arrays([values.slice(1), values.slice(0, 1)]))


def exchanged(table):
    """The maps of two segments, each in the place of the other."""
    starts = np.append(np.flatnonzero(np.asarray(table["score_lo"]) == -np.inf), table.num_rows)
    names = [name for name in table.column_names if name not in ("country", "model", "segment_level")]
    sizes = np.diff(starts).tolist()
    pairs = itertools.combinations(range(1, len(sizes)), 2)
    one, other = next((i, j) for i, j in pairs if sizes[i] == sizes[j])
    rows = np.arange(table.num_rows)
    rows[starts[one] : starts[one + 1]], rows[starts[other] : starts[other + 1]] = (
        rows[starts[other] : starts[other + 1]].copy(),
        rows[starts[one] : starts[one + 1]].copy(),
    )
    changed = table.select(names).take(pa.array(rows))
    assert not changed.equals(table.select(names))
    for name in names:
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), changed.column(name))
    return table


def with_first(column, value):
    """The first row has another value in a column."""

    def change(table):
        at, values = table.schema.get_field_index(column), table.column(column).to_pylist()
        field = table.schema.field(at)
        return table.set_column(at, field, pa.array([value, *values[1:]], field.type))

    return change


CHANGES = [
    ("ads", "lookup.parquet", with_first("prob_lo", 0.5)),
    ("by-country", "lookup.parquet", with_first("prob_lo", 0.5)),
    ("by-country", "segments.parquet", with_first("rows", 5)),
    ("by-country", "segments.parquet", twice),
    ("by-country", "segments.parquet", lambda table: table.slice(1)),
    ("by-country", "segments.parquet", lambda table: table.slice(0, table.num_rows - 1)),
    ("by-country", "segments.parquet", shifted),
    ("own-maps", "lookup.parquet", twice),
    ("own-maps", "lookup.parquet", shifted),
    ("own-maps", "lookup.parquet", lambda table: table.slice(1)),
    ("own-maps", "lookup.parquet", exchanged),
]


@pytest.mark.parametrize(("name", "file", "change"), CHANGES)
def test_a_changed_table_is_refused_also_with_a_checksum_that_was_rewritten(
    published, tmp_path, name, file, change
):
    reading._read_cached.cache_clear()
    shutil.copytree(published.store / name, tmp_path / "t")
    folder = tmp_path / "t" / "versions" / (tmp_path / "t" / "CURRENT").read_text().strip()
    logcal.load(str(tmp_path), "t")
    pq.write_table(change(pq.read_table(folder / file)), folder / file)
    manifest, content = json.loads((folder / "manifest.json").read_text()), (folder / file).read_bytes()
    for _ in ("the checksum that was published", "that of the file"):
        reading._read_cached.cache_clear()
        with pytest.raises(InputRejectedError, match=r"\.parquet: expected .*: "):
            logcal.load(str(tmp_path), "t")
        manifest["files"][file] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        manifest.pop("checksum", None)
        (folder / "manifest.json").write_text(json.dumps(manifest))
    # And without a manifest.
    (folder / "manifest.json").unlink()
    with pytest.raises(InputRejectedError, match=r"\.parquet: expected .*: "):
        read_table(str(folder / "lookup.parquet"))


# From probabilities back to scores


def test_the_inverse_of_a_segment_is_that_of_its_curve(published):
    table = logcal.load(str(published.store), "by-country")
    for segments in (
        {"country": "de", "model": 1},
        {"country": None, "model": 2},
        {"country": "new", "model": 9},
    ):
        low, high = (table.predict(s, segments) for s in (0.0, 1.0))
        wanted = float(low + 0.4 * (high - low))
        score = table.inverse(wanted, segments)
        below = np.nextafter(score, -np.inf)
        assert table.predict(score, segments) >= wanted > table.predict(below, segments)
    with pytest.raises(ConfigError, match="one value"):
        table.inverse(0.5, {"country": ["de", "fr"], "model": 1})
    with pytest.raises(ConfigError, match="found none of"):
        table.inverse(0.5, {"country": "de"})


def test_margins_have_an_inverse_too(place):
    columns = place.predictions(3000)
    columns["score"] = np.log(columns["score"] + 1e-9) - np.log(1 - columns["score"] + 1e-9)
    place.write_log(columns)
    place.job("fit", "log.score_transform=sigmoid").expect(0)
    table = logcal.load(str(place.store), "ads")
    wanted = float(table.predict(0.2))
    score = table.inverse(wanted)
    assert score <= 0.2
    assert table.predict(score) >= wanted > table.predict(np.nextafter(score, -np.inf))


@given(st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_maps_that_fall_are_searched_from_below(probability, seed):
    rng = np.random.default_rng(seed)
    score = np.sort(rng.choice(np.arange(1.0, 40.0), 7, replace=False))
    table = logcal.Table(
        lookup_table.LookupTable.of_map(
            CalibrationMap.from_knots(score, rng.random(7), np.zeros(8), np.zeros(8)),
            lookup_table.LookupFacts("v", "platt", {}, "none", False, {}, "", 8),
        )
    )
    found = table.inverse(probability)
    grid = np.linspace(-1, 41, 4201)
    reached = grid[table.predict(grid) >= probability]
    if np.isnan(found):
        assert not reached.size
    else:
        assert table.predict(found) >= probability
        assert not reached.size or found <= reached[0]
        assert not (reached < found).any()


def test_the_threshold_weighs_the_costs_of_both_errors(published):
    table = logcal.load(str(published.store), "ads")
    found = table.threshold(1.0, 3.0)
    assert found == (0.25, table.inverse(0.25))
    columns = published.predictions(4000)
    p, y = table.predict(columns["score"]), columns["label"]

    def cost(score):
        acts = columns["score"] >= score
        return (acts & (y == 0)).sum() + 3.0 * (~acts & (y == 1)).sum()

    # On the rows that a monotone map was fitted to, no other score costs less, but for the two rows of its ends.
    assert cost(found.score) <= min(cost(score) for score in np.unique(columns["score"])) + 3
    for costs, name in (((0, 1), "positive"), ((1, -1), "negative"), ((1, np.inf), "negative")):
        with pytest.raises(ConfigError, match=f"cost_false_{name}"):
            table.threshold(*costs)
    with pytest.raises(ConfigError, match=r"found 1\.5"):
        table.inverse(1.5)
    assert p.size


# Columns made without pandas, against Arrow's own

ARROW_KINDS = {
    pa.string(): st.text("ab\0é🦓"),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float64(): st.floats(allow_nan=False),
}


@pytest.mark.parametrize("kind", ARROW_KINDS, ids=str)
@given(data=st.data())
def test_columns_are_those_that_arrow_makes(kind, data):
    values = data.draw(st.lists(st.none() | ARROW_KINDS[kind], max_size=20))
    found = column_of(values, kind)
    found.validate(full=True)
    assert found.equals(pa.array(values, kind))


@pytest.mark.parametrize("values", [[], [1.5], [math.nan], [0.0, math.nan, -math.inf] * 7])
def test_what_is_nan_is_null(values):
    found = nullable_column(np.array(values, np.float64))
    found.validate(full=True)
    assert found.equals(pa.array([None if math.isnan(v) else v for v in values], pa.float64()))


@pytest.mark.parametrize(
    ("lowest", "highest", "question"),
    [
        (0, 1.5, ""),
        (0, 100, "are they percent?"),
        (0, 100.5, ""),
        (-0.5, 100, "are they log odds?"),
        (-math.inf, 3, ""),
    ],
)
def test_the_unit_of_scores_that_are_no_probabilities_is_asked_for(lowest, highest, question):
    assert unit_question(lowest, highest) == question


def test_whole_numbers_beyond_int64_are_no_segments():
    column = pa.array([Decimal(2**63 - 1), Decimal(2**63)], pa.decimal128(20, 0))
    with pytest.raises(InputRejectedError, match=f"within int64, found {2**63} "):
        segment_column(column, "c")
