"""Segments: equal to fitting and applying each segment's rows in memory, however the work is cut."""

from __future__ import annotations

import datetime as dt
import tracemalloc
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from common import FACTS, fit_segments, write_log
from fsspec.implementations.local import LocalFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.special import expit

from calibrators import CalibrationMap, Points
from calibrators.base import Line
from calibrators.measures.assessment import MEASURES
from calibrators.measures.in_memory import assess_points
from logcal import names
from logcal.errors import InputRejectedError
from logcal.reading import SEGMENTS_FILE, read_table
from logcal.table import Table
from pipeline.days.source import Source
from pipeline.evaluate.evaluation import Sizes
from pipeline.evaluate.segment_evaluation import add_sides, finish_sides
from pipeline.evaluate.significance import beyond_chance
from pipeline.execution import Graph, InlineExecutor
from pipeline.fit.calibration import Recipe, make_calibrator
from pipeline.log import segment_values
from pipeline.log.log_files import open_parquet
from pipeline.log.logs import Columns, open_log
from pipeline.sort import buckets, run_files
from pipeline.sort.score_table import SortedRows, SortPlan
from pipeline.sort.segment_tasks import pack
from pipeline.table.lookup_table import Predictor, segmented_files
from pipeline.table.segment_maps import SegmentRules
from tests.sorted_logs import Shuffled, maps_of_segments, reason_of, sorted_rows, without_refits

NAMES = tuple(CalibrationMap.__dataclass_fields__)


def some_log(rows: int, seed: int, segments: int = 12, ties: bool = True) -> pa.Table:
    rng = np.random.default_rng(seed)
    score = rng.integers(0, 40, rows) / 40 if ties else rng.random(rows)
    model = np.minimum(rng.zipf(1.4, rows), segments)
    names = np.array(["", "a", "é", "zebra", "🦓"], object)
    country = pa.array(names[rng.integers(0, 5, rows)], pa.string(), mask=rng.random(rows) < 0.1)
    return pa.table(
        {
            "score": score,
            "label": (rng.random(rows) < score).astype(np.int8),
            "w": rng.choice([0.1, 1.0, 1e-9, 3e11], rows),
            "model": pa.array(model, pa.int64(), mask=rng.random(rows) < 0.05),
            "country": country,
        }
    )


def expected_maps(table, columns, weighted, rules, method="isotonic", params=None):
    """Of a table's rows."""
    keys = list(zip(*(table[name].to_pylist() for name in columns), strict=True))
    score, label, weight = (
        table[name].to_numpy() for name in ("score", "label", "w" if weighted else "label")
    )
    return maps_of_segments(score, label, weight if weighted else None, keys, rules, method, params)


def fit(
    folder,
    table,
    columns,
    weighted=False,
    rules=None,
    method="isotonic",
    params=None,
    cut=(1, 1 << 20),
    monotone="allow",
    **sizes,
):
    path = write_log(folder / "log", table, *cut)
    log = open_log(path, Columns("score", "label", "w" if weighted else None, columns))
    (folder / "scratch").mkdir()
    recipe = Recipe(method, params or {}, monotone=monotone, columns=columns, rules=rules or SegmentRules())
    plan = SortPlan(folder / "scratch", **sizes)
    return fit_segments(recipe, sorted_rows(log, plan, Shuffled()), Shuffled())[0]


def assert_equal(found, expected):
    """All levels' maps and reasons, to the last bit."""
    seen = set()
    for level in found.levels:
        columns, start = level.maps.arrays(), 0
        assert level.keys == sorted(level.keys, key=segment_values.order)
        of_each = zip(level.keys, level.maps.sizes, level.reasons, strict=True)
        for i, (key, size, reason) in enumerate(of_each):
            seen.add(key)
            if isinstance(expected[key], str):
                assert reason == expected[key], key
                if key:
                    assert size == 0
            elif isinstance(expected[key], Line):
                assert (size, reason) == (0, None)
                adjustments = level.adjustments
                assert (adjustments.kind[i], adjustments.shift[i], adjustments.slope[i]) == expected[key]
                assert adjustments.fitted_level[i] == level.level
            else:
                assert reason is None
                for column, name in zip(columns, NAMES, strict=True):
                    np.testing.assert_array_equal(
                        column[start : start + size], getattr(expected[key], name), err_msg=f"{key} {name}"
                    )
            start += size
    assert seen == set(expected)


def files_of(found, columns):
    files = segmented_files(found, columns, FACTS)
    return files, *files.files("000001-x").values()


rows_of_segments = st.lists(
    st.tuples(
        st.sampled_from([0.0, -0.0, 0.25, 0.5, 1.0, 1e-300, 0.75]),
        st.integers(0, 1),
        st.sampled_from([0.1, 1.0, 1e-9, 1e12, 7.5]),
        st.sampled_from([None, "", "a", "é", "b"]),
        st.sampled_from([None, -(2**40), 0, 7]),
    ),
    min_size=4,
    max_size=120,
).filter(lambda rows: len({r[1] for r in rows}) == 2 and len({r[0] for r in rows} - {-0.0}) > 1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows_of_segments,
    st.booleans(),
    st.sampled_from([("a",), ("a", "b")]),
    st.tuples(st.integers(1, 4), st.integers(1, 60)),
    st.integers(1, 80),
    st.integers(24, 2000),
    st.sampled_from([1, 2, 5, 1024]),
    st.sampled_from([(1, 1), (6, 2), (500, 1)]),
)
def test_equals_a_loop_in_memory(
    tmp_path_factory, rows, weighted, columns, cut, run_rows, bucket_bytes, stride, rules
):
    score, label, weight, a, b = (list(column) for column in zip(*rows, strict=True))
    table = pa.table(
        {
            "score": score,
            "label": label,
            "w": weight,
            "a": pa.array(a, pa.string()),
            "b": pa.array(b, pa.int64()),
        }
    )
    rules = SegmentRules(*rules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_files, "SAMPLE_STRIDE", stride)
        sizes = {"cut": cut, "run_rows": run_rows, "bucket_bytes": bucket_bytes}
        found = fit(tmp_path_factory.mktemp("x"), table, columns, weighted, rules, **sizes)
    assert_equal(found, expected_maps(table, columns, weighted, rules))


def test_a_calibrator_that_refuses_a_segment_leaves_it_to_the_fallback(tmp_path):
    class Refusing(type(make_calibrator("histogram", {}))):
        def _passes(self):
            found = yield from super()._passes()
            if found.weight.sum() == 2:
                raise ValueError("no")
            return found

    table = pa.table({"score": [0.1, 0.2, 0.1, 0.2, 0.3], "label": [0, 1, 0, 1, 1], "model": [1, 1, 2, 2, 2]})
    log = open_log(write_log(tmp_path / "log", table), Columns("score", "label", None, ("model",)))

    class Refused(Recipe):
        def calibrator(self):
            return Refusing()

    rows = sorted_rows(log, SortPlan(tmp_path), InlineExecutor())
    found, _ = fit_segments(Refused("histogram", columns=("model",)), rows, InlineExecutor())
    assert found.levels[1].reasons == ["not_suited", None]
    kinds, levels = found.origins()
    assert (kinds, levels.tolist()) == (["global", "segment"], [0, 1])


def test_packing_keeps_small_together_and_cuts_large():
    # What nobody wants leaves nothing.
    sizes = np.array([10, 0, 500, 10, 0, 10, 40, 10])
    thin = sizes == 0
    small, large = pack(sizes, thin, 50, 9)
    assert [part.tolist() for part in small] == [[0], [3, 5], [6, 7]]
    assert large == [2]
    small, large = pack(sizes, thin, 50, 1, cut=False)
    assert [part.tolist() for part in small] == [[0], [2], [3], [5], [6], [7]]
    assert large == []


# Fallbacks


def publish(folder, found, columns):
    files, lookup, segments = files_of(found, columns)
    (folder / "lookup.parquet").write_bytes(lookup)
    (folder / SEGMENTS_FILE).write_bytes(segments)
    return files, read_table(str(folder / "lookup.parquet"))


def test_fallbacks_to_the_parent_and_to_all_rows(tmp_path):
    rng = np.random.default_rng(0)
    sizes = {("x", "big"): 300, ("x", "thin"): 9, ("y", "thin"): 8, (None, None): 200, ("z", "same"): 100}
    rows = [key for key, n in sizes.items() for _ in range(n)]
    score = rng.random(len(rows)).round(2)
    label = (rng.random(len(rows)) < score).astype(int)
    label[[i for i, key in enumerate(rows) if key == ("z", "same")]] = 0
    table = pa.table({"score": score, "label": label, "a": [k[0] for k in rows], "b": [k[1] for k in rows]})
    rules = SegmentRules(50, 3)
    found = fit(tmp_path, table, ("a", "b"), False, rules)
    files, lookup = publish(tmp_path, found, ("a", "b"))
    written = pq.read_table(tmp_path / SEGMENTS_FILE).to_pylist()
    told = {(r["a"], r["b"]): (r["rows"], r["fitted_on"], r["fitted_level"], r["reason"]) for r in written}
    assert told == {
        (None, None): (200, "segment", 2, None),
        ("x", "big"): (300, "segment", 2, None),
        ("x", "thin"): (9, "parent", 1, "min_rows"),
        ("y", "thin"): (8, "global", 0, "min_rows"),
        ("z", "same"): (100, "global", 0, "one_class"),
    }
    assert files.sources == {"global": 2, "parent": 1, "segment": 2}
    assert files.reasons == {"min_rows": 2, "one_class": 1}
    expected = expected_maps(table, ("a", "b"), False, rules)
    keys = [*told, ("x", "new"), ("new", "big"), ("y", None)]
    fitted_on = [(None, None), ("x", "big"), ("x",), (), (), ("x",), (), ()]
    grid = np.array([-np.inf, -1, 0, 0.3, 0.305, 0.99, 1, 2, np.inf, np.nan])
    places, known = lookup.index.find([pa.array([key[i] for key in keys]) for i in range(2)])
    assert known.tolist() == [key in told for key in keys]
    for place, key, source in zip(places, keys, fitted_on, strict=True):
        found_p = lookup.apply(grid, np.full(grid.size, place))
        np.testing.assert_array_equal(found_p, expected[source].predict(grid), err_msg=str(key))


def test_too_few_rows_altogether_fall_back_to_the_score_itself(tmp_path):
    table = pa.table({"score": [0.0, 0.25, 1.0], "label": [0, 1, 1], "model": [1, 1, 2]})
    found = fit(tmp_path, table, ("model",), rules=SegmentRules(10, 1))
    assert found.identity
    _, lookup = publish(tmp_path, found, ("model",))
    grid = np.array([-np.inf, -3.0, 0.0, 1e-300, 0.25, np.nextafter(1, 0), 1.0, 9.0])
    p = lookup.apply(grid, lookup.index.find([pa.array([1] * grid.size)])[0])
    np.testing.assert_array_equal(p, grid.clip(0, 1))
    wide = table.set_column(0, "score", pa.array([0.0, 0.25, 3.0]))
    (tmp_path / "wide").mkdir()
    with pytest.raises(InputRejectedError, match=r"\$\[min_rows\]: .* are no probabilities"):
        fit(tmp_path / "wide", wide, ("model",), rules=SegmentRules(10, 1))


# Values

VALUES = {
    "string": pa.array([None, "", "B", "a", "é", "🦓"]),
    "large_string": pa.array([None, "", "B", "a", "é", "🦓"], pa.large_string()),
    "int8": pa.array([None, -128, -1, 0, 5, 127], pa.int8()),
    "uint64": pa.array([None, 0, 1, 2**53, 2**53 + 1, 2**64 - 1], pa.uint64()),
    "bool": pa.array([None, False, True]),
    "date": pa.array([None, dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)]),
    "dictionary": pa.array([None, "B", "a"]).dictionary_encode(),
}


@pytest.mark.parametrize("kind", VALUES)
def test_value_types(tmp_path, kind):
    values = VALUES[kind]
    rng = np.random.default_rng(1)
    which = np.concatenate([np.arange(len(values)).repeat(2), rng.integers(0, len(values), 300)])
    score = np.concatenate([np.tile([0.2, 0.8], len(values)), rng.random(300).round(1)])
    label = np.concatenate([np.tile([0, 1], len(values)), rng.integers(0, 2, 300)])
    table = pa.table({"score": score, "label": label, "s": values.take(pa.array(which))})
    found = fit(tmp_path, table, ("s",), cut=(3, 40), run_rows=70)
    assert [key[0] for key in found.levels[1].keys] == values.to_pylist()
    assert_equal(found, expected_maps(table, ("s",), False, SegmentRules()))
    _, lookup = publish(tmp_path, found, ("s",))
    assert set(lookup.bounds) == {(), *((v,) for v in values.to_pylist())}
    plain = values.type.value_type if kind == "dictionary" else values.type
    stored = pq.read_schema(tmp_path / "lookup.parquet").field("s").type
    assert stored == {"large_string": pa.string(), "int8": pa.int64()}.get(kind, plain)


def test_keys_of_folders_are_segments(tmp_path):
    table = some_log(600, 3).drop_columns(["country"])
    rng = np.random.default_rng(0)
    names = ["a b", "é/x", None, "", "7"]
    owner = rng.integers(0, 5, 600)
    for i, name in enumerate(names):
        folder = "__HIVE_DEFAULT_PARTITION__" if name is None else quote(name, safe="")
        write_log(tmp_path / "log" / f"country={folder}", table.filter(pa.array(owner == i)), 2)
    whole = table.append_column("country", pa.array([names[i] for i in owner], pa.string()))
    columns = ("country", "model")
    log = open_log(str(tmp_path / "log"), Columns("score", "label", None, columns))
    assert log.types["country"] == "string"
    (tmp_path / "scratch").mkdir()
    recipe = Recipe("isotonic", columns=columns, rules=SegmentRules(20, 2))
    found, _ = fit_segments(recipe, sorted_rows(log, SortPlan(tmp_path / "scratch"), Shuffled()), Shuffled())
    assert_equal(found, expected_maps(whole, columns, False, SegmentRules(20, 2)))
    write_log(tmp_path / "log" / "other", table)
    with pytest.raises(
        InputRejectedError, match=r"column 'country' \(\$\[segment\]\) is not in 1 of 11 files"
    ):
        open_log(str(tmp_path / "log"), Columns("score", "label", None, columns))


def test_too_many_segments_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(segment_values, "MAX_SEGMENTS", 3)
    table = pa.table({"score": [0.1, 0.2, 0.3, 0.4], "label": [0, 1, 0, 1], "s": [1, 2, 3, 4]})
    with pytest.raises(InputRejectedError, match="expected at most 3 segments"):
        fit(tmp_path, table, ("s",))
    table = table.set_column(2, "s", pa.array([1, 2, 3, 3]))
    (tmp_path / "three").mkdir()
    assert len(fit(tmp_path / "three", table, ("s",)).levels[1].keys) == 3


# The command


def test_what_segments_do_not_go_with_is_refused(place):
    lists = pa.array([[b"x"]] * 2000)
    place.write_log(some_log(2000, 5).append_column("list", lists).append_column("raw", lists.flatten()))
    for name, found in (("w", "double"), ("list", "list"), ("raw", "binary")):
        said = f"'{name}' (log.segment): expected strings, integers, booleans or dates"
        place.job("fit", f"log.segment=[{name}]").expect(3, said, f"found {found}")
    place.job("fit", "log.segment=[score]").expect(2, "log.segment", "found 'score' for both")
    place.job("fit", "log.segment=[model, model]").expect(2, "log.segment", "found 'model' for both")
    place.job("fit", "log.segment=[nosuch]").expect(3, "column 'nosuch' (log.segment) is not in any file")
    assert not (place.store / place.table / "CURRENT").exists()
    place.job("fit", "log.segment=[model]").expect(0)
    place.job("evaluate", "log.segment=[country]").expect(2, "expected those of the table, model")
    # `score` has no log.segment that could be set.
    place.write_log(some_log(200, 5).drop_columns(["model"]), name="without")
    without = place.job("score", log__path=place.root / "without")
    without.expect(
        3, "column 'model' (log.segment) is not in any file", ": the table has a map for each of its values"
    )
    assert "set log.segment" not in without.stderr
    place.job("fit").expect(0)
    place.job("evaluate", "log.segment=[model]").expect(2, "the table has no segments")


# Evaluation


def rows_in_memory(table, expected, columns):
    """Each row's key, score, label, weight and probability, by a plain loop."""
    rows = []
    for row in table.to_pylist():
        key = tuple(row[c] for c in columns)
        levels = (key[:n] for n in range(len(key), -1, -1))
        fallen = next(level for level in levels if not isinstance(expected.get(level, ""), str))
        p = expected[fallen].predict(row["score"]).item()
        rows.append((key, row["score"], row["label"], row["w"], p))
    return rows


@pytest.mark.parametrize(
    ("weighted", "bucket_bytes", "method", "params"),
    [(True, 2000, "isotonic", None), (False, 1 << 24, "histogram", {"bins": 12})],
)
def test_segments_are_measured_as_in_memory(tmp_path, weighted, bucket_bytes, method, params, monkeypatch):
    monkeypatch.setattr(run_files, "SAMPLE_STRIDE", 8)
    without_refits(monkeypatch)
    columns = ("model", "country")
    table, rules = some_log(1200, 7, segments=3), SegmentRules(60, 5)
    found = fit(tmp_path, table, columns, weighted, rules, method, params)
    _, lookup = publish(tmp_path, found, columns)
    assert lookup.facts.monotone == (method == "isotonic")
    news = some_log(1500, 8, segments=4)
    news = news.append_column("more", news.column("label"))
    log = open_log(
        write_log(tmp_path / "new", news, 3, 200),
        Columns("score", "label", "w" if weighted else None, columns),
    )
    plans = []
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        plan = SortPlan(tmp_path / name, write=tmp_path / f"{name}-table", run_rows=170)
        plans.append(replace(plan, bucket_bytes=bucket_bytes))
    predictor = Predictor(str(tmp_path / "lookup.parquet"), columns)

    graph, executor = Graph(), Shuffled()
    sorted_rows = SortedRows(log, plans[0], Source(log).add(graph, plans[0]).total)
    added = add_sides(graph, sorted_rows, plans[1], predictor, Sizes())
    sides = executor.compute(graph, graph.task("sides", list, added))
    measured = finish_sides(Sizes(), lookup, sides, executor)
    rows = rows_in_memory(news, expected_maps(table, columns, weighted, rules, method, params), columns)
    written = measured.table().to_pylist()
    keys = sorted({row[0] for row in rows}, key=segment_values.order)
    assert [tuple(row[c] for c in columns) for row in written] == keys
    facts, kinds = measured.facts, [row["fitted_on"] for row in written]
    assert facts["fitted_on"] == {kind: kinds.count(kind) for kind in sorted(set(kinds))}
    assert list(facts["fitted_on"]) == sorted(set(kinds))
    assert facts["unseen_rows"] == sum(row["rows"] for row in written if row["fitted_on"] == "unseen")
    for key, row in zip(keys, written, strict=True):
        own = [r for r in rows if r[0] == key]
        for at, side in ((1, "before"), (4, "after")):
            weight = np.array([r[3] for r in own]) if weighted else np.ones(len(own))
            wanted = assess_points(Points([r[at] for r in own], weight, [r[2] for r in own] * weight))
            for name in MEASURES:
                expected = getattr(wanted.measures, name)
                assert row[f"{name}_{side}"] == pytest.approx(expected, rel=1e-12, abs=1e-15)
            assert row[f"mean_prediction_{side}"] == pytest.approx(wanted.mean_prediction, rel=1e-12)
            assert 0 <= row[f"beyond_chance_{side}"] <= row[f"ece_frequency_{side}"]
        assert row["rows"] == len(own)
        assert row["rows_positive"] == sum(r[2] for r in own)
        assert row["fitted_on"] == lookup.fitted_on.get(key, "unseen")
    weight = np.array([r[3] for r in rows]) if weighted else np.ones(len(rows))
    whole = assess_points(Points([r[4] for r in rows], weight, [r[2] for r in rows] * weight)).measures
    assert measured.whole.after.measures.auc == pytest.approx(whole.auc, rel=1e-12)
    assert measured.whole.after.measures.ece_frequency == pytest.approx(whole.ece_frequency, rel=1e-9)


def test_calibrated_segments_have_no_error_beyond_chance():
    rng = np.random.default_rng(3)
    groups, alarms = 10, 0
    for _ in range(40):
        sizes = rng.integers(10, 200, 100)
        gap, variance = np.zeros(100), np.zeros(100)
        for i, n in enumerate(sizes):
            p = np.sort(rng.beta(0.05, 2, n))
            hits = (rng.random(n) < p) - p
            parts = np.array_split(hits, groups)
            gap[i] = sum(abs(part.sum()) for part in parts)
            variance[i] = (p * (1 - p)).sum()
        alarms += (beyond_chance(gap, variance, np.ones(100), groups) > 0).any()
    assert alarms <= 5
    # An error of 0.1 in 10,000 rows is most of it beyond chance; in 100 rows it is not.
    rows = np.array([1e4, 100.0])
    found = beyond_chance(0.1 * rows, 0.25 * rows, np.ones(2), groups) / rows
    assert 0.06 < found[0] < 0.1
    assert found[1] == 0


# Codes


@given(
    st.lists(
        st.tuples(
            st.lists(st.none() | st.text("ab\0é", max_size=19) | st.sampled_from(["", "a"]), max_size=40),
            st.sampled_from(["text", "large", "dictionary", "sliced"]),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_texts_get_codes_in_the_order_of_their_appearance_and_are_found(batches):
    """Of every size, before and after other texts, from amid an array."""
    encoder, known, columns = segment_values.Encoder(("a",)), {}, []
    for texts, kind in batches:
        column = pa.array(texts, pa.large_string() if kind == "large" else pa.string())
        if kind == "dictionary":
            column = column.dictionary_encode()
        if kind == "sliced":
            column = pa.concat_arrays([pa.array(["x", None]), column]).slice(2)
        codes = encoder.encode(pa.RecordBatch.from_arrays([column], ["a"]))
        for text, code in zip(texts, codes.tolist(), strict=True):
            assert known.setdefault(text, code) == code
        assert encoder.keys == [(text,) for text in sorted(known, key=known.get)]
        columns += [column] if kind != "dictionary" else []
    assert sorted(known.values()) == list(range(len(known)))
    distinct = [text for text in known if text is not None]
    assert [known[text] for text in distinct] == sorted(known[text] for text in distinct)
    found = names.Texts()
    found.encode(pa.array(distinct[::2], pa.string()))
    for column in columns:
        wanted = [text for text in column.to_pylist() if text is not None]
        place = [distinct[::2].index(text) if text in distinct[::2] else -1 for text in wanted]
        assert found.find(column.drop_null()).tolist() == place


def test_very_many_texts_get_codes():
    texts = [f"{i * 7919 % 100_003:x}" * (1 + i % 3) for i in range(30_000)]
    encoder = segment_values.Encoder(("a",))
    for part in np.array_split(np.array(texts, object), 7):
        encoder.encode(pa.RecordBatch.from_arrays([pa.array(part, pa.string())], ["a"]))
    assert encoder.keys == [(text,) for text in dict.fromkeys(texts)]
    # Known ones among new ones, in another order, an empty one and one longer than all before.
    more = [*np.random.default_rng(0).permutation(texts).tolist(), "", "new", "é" * 5000, "", "new"]
    codes = encoder.encode(pa.RecordBatch.from_arrays([pa.array(more, pa.string())], ["a"]))
    place = {text: i for i, text in enumerate(dict.fromkeys([*texts, *more[-5:]]))}
    assert codes.tolist() == [place[text] for text in more]


@given(
    st.lists(
        st.one_of(
            st.none(), st.text("ab\0é", max_size=19), st.sampled_from(["segment-1", "segment-", "ü" * 33])
        ),
        min_size=1,
        max_size=60,
    ),
    st.sampled_from(["", "segment-", "a long name before "]),
)
def test_texts_are_ordered_by_their_code_points(texts, prefix):
    texts = [None if text is None else prefix + text for text in texts]
    numbered = segment_values.number([pa.array(texts, pa.string())])
    keys = sorted({(text,) for text in texts}, key=segment_values.order)
    assert numbered.keys == [keys]
    assert [keys[code] for code in numbered.codes.tolist()] == [(text,) for text in texts]


def test_text_that_is_not_ascii_is_checked_and_other_text_is_taken():
    for text in (b"plain", b"a\x00b", b"", "Zürich-Nord".encode(), b"12345678", "1234567é".encode()):
        column = pa.array([b"x", text], pa.binary()).cast(pa.string(), safe=False)
        encoder = segment_values.Encoder(("a",))
        encoder.encode(pa.RecordBatch.from_arrays([column], ["a"]))
        assert encoder.keys == [("x",), (text.decode(),)]
    for text in (b"\xff", b"12345678\x80", b"1234567\xc3"):
        data = pa.py_buffer(b"x" + text)
        ends = pa.py_buffer(np.array([0, 1, 1 + len(text)], np.int32))
        column = pa.Array.from_buffers(pa.string(), 2, [None, ends, data])
        with pytest.raises(InputRejectedError, match="UTF-8"):
            segment_values.Encoder(("a",)).encode(pa.RecordBatch.from_arrays([column], ["a"]))


def test_reasons_of_many_segments_are_those_of_each():
    rows, positives = (column.ravel() for column in np.meshgrid(np.arange(9), np.arange(9)))
    for rules in (SegmentRules(4, 2), SegmentRules(1, 1), SegmentRules(4, 3, partial_pooling=True)):
        each = [reason_of(rules, n, k) for n, k in zip(rows.tolist(), positives.tolist(), strict=True)]
        assert rules.reasons(rows, positives) == each


@pytest.mark.parametrize(("distinct", "coded"), [(50, True), (5000, False)])
def test_columns_whose_writer_gave_the_dictionary_up_are_read_as_text(tmp_path, distinct, coded):
    path = tmp_path / "log.parquet"
    names = [f"segment {i % distinct:06d}" for i in range(5000)]
    pq.write_table(pa.table({"a": names, "score": np.zeros(5000)}), path, dictionary_pagesize_limit=20_000)
    with open_parquet(LocalFileSystem(), str(path), None, ["a"]) as parquet:
        found = next(parquet.iter_batches()).column("a")
    assert pa.types.is_dictionary(found.type) == coded
    assert found.to_pylist() == names


# Kept score tables


SEGMENTED = ("log.segment=[model, country]", "segments.min_rows=100", "segments.min_positives=10")


@pytest.mark.parametrize("segments", [SEGMENTED, ()])
@pytest.mark.parametrize(("weighted", "method"), [(False, "histogram"), (True, "isotonic")])
def test_kept_score_tables_are_measured_as_their_log(place, segments, weighted, method):
    table = some_log(3000, 11, ties=weighted)
    if weighted:
        table = table.set_column(2, "w", pa.array(np.random.default_rng(1).integers(1, 5, 3000) / 4))
    place.write_log(table)
    own = (f"calibrator.method={method}", *(["log.weight=w"] if weighted else []))
    fitted = place.job("fit", *segments, "score_table.keep=true", *own, "--json").expect(0).json
    kept = Path(fitted["lookup_path"]).parent / "score_table"
    columns = ["model", "country"] if segments else []
    assert pq.read_table(kept).schema.names == [*columns, "score", "weight", "positives"]

    def measured(folder, *facts, **store):
        """These facts of the log, and of the kept table."""
        found = []
        for name, weights, where in (("log", own[1:], {}), ("kept", (), {"log__path": kept})):
            paths = {"output__path": place.root / folder / name, **where, **store}
            done = place.job("evaluate", *weights, "--json", **paths).expect(0).json
            found.append([done[fact] for fact in facts])
        return found

    one, other = measured("own", "before", "after", "headline", *(["segments"] if segments else []))
    assert one == other
    if segments:
        tables = [pq.read_table(place.root / "own" / name / SEGMENTS_FILE) for name in ("log", "kept")]
        assert tables[0].equals(tables[1])
        # A table without segments is measured on all of them together.
        plain = {"store__path": place.root / "plain"}
        place.job("fit", *own, **plain).expect(0)
        one, other = measured("without", "before", "after", "distinct_scores", **plain)
        assert one == other


# A score that very many rows have


@pytest.mark.system
@pytest.mark.parametrize("weighted", [False, True])
def test_a_heavy_score_takes_the_memory_of_its_segments_not_of_its_rows(tmp_path, monkeypatch, weighted):
    peaks = []
    read = buckets.read_bucket

    def measured(*arguments):
        tracemalloc.start()
        found = read(*arguments)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        return found

    monkeypatch.setattr(buckets, "read_bucket", measured)
    columns, rules, highest = ("model",), SegmentRules(5, 1), []
    for times in (1, 5):
        rng = np.random.default_rng(2)
        n = 30_000 * times
        table = pa.table(
            {
                "score": np.where(rng.random(n) < 0.999, 0.5, rng.random(n)),
                "label": rng.integers(0, 2, n),
                "w": rng.choice([0.1, 1.0, 7.5], n),
                "model": rng.integers(0, 2500, n),
            }
        )
        found = []
        for size in (30_000, 1 << 24):
            place = tmp_path / f"{times}-{size}"
            place.mkdir()
            sizes = {"run_rows": 6000, "bucket_bytes": size}
            found.append(fit(place, table, columns, weighted, rules, cut=(1, 6000), **sizes))
            highest.append(max(peaks))
            peaks.clear()
        assert files_of(found[0], columns)[1:] == files_of(found[1], columns)[1:]
    assert highest[2] < 1.5 * highest[0], highest
    assert highest[3] > 3 * highest[1], highest


@pytest.mark.parametrize("monotone", ["allow", "repair"])
@pytest.mark.parametrize(
    ("method", "score", "of"), [("score", lambda s: 8 * s - 4, 1), ("logit", lambda s: s, 2)]
)
def test_sigmoids_are_two_numbers_a_segment(tmp_path, method, score, of, monotone):
    rng = np.random.default_rng(4)
    segment, s = rng.integers(0, 4, 6000), rng.random(6000)
    # Segment 3 falls, and 2 is thin.
    label = rng.random(6000) < expit(np.array([4.0, 9.0, 4.0, -5.0])[segment] * (s - 0.5))
    kept = (segment != 2) | (rng.random(6000) < 0.02)
    s, label, segment = score(s)[kept], label[kept].astype(np.int8), segment[kept]
    table = pa.table({"score": s, "label": label, "model": segment})
    platt = {"method": "platt", "params": {"input": method}, "monotone": monotone}
    found = fit(tmp_path, table, ("model",), rules=SegmentRules(100, 10), **platt)
    files, read = publish(tmp_path, found, ("model",))
    assert read.facts.features == ("segments", "adjustments", "sigmoids")
    assert len(files.files("000001-x")[SEGMENTS_FILE]) < 10_000
    # A sigmoid that falls is a table where that is repaired.
    of_rows, of_levels = (level.maps.sizes for level in found.levels)
    assert files.table.num_rows == of_rows[0] + (0 if monotone == "allow" else of_levels[3])
    lines = 3 if monotone == "allow" else 2
    assert sorted(read.adjustments.kind)[-lines:] == [of] * lines == [x for x in read.adjustments.kind if x]
    assert read.fitted_on == {(0,): "segment", (1,): "segment", (2,): "global", (3,): "segment"}
    at, application = score(np.linspace(0.001, 0.999, 300)), Table(read)
    for model in range(5):
        mine = (segment == model) | (model in (2, 4))
        alone = make_calibrator("platt", {"input": method}).fit(s[mine], label[mine])
        got = application.predict(at, {"model": model})
        one_by_one = [float(application.predict(x, {"model": model})) for x in at[::50].tolist()]
        assert one_by_one == got[::50].tolist()
        if model == 3 and monotone == "repair":
            assert np.ptp(got) == 0
            continue
        np.testing.assert_allclose(got, alone.predict(at), rtol=0, atol=1.01e-9)
        np.testing.assert_allclose(read.map_of((model,)).predict(at), got, rtol=1e-4)
    ends = application.predict(np.array([-np.inf, np.inf, -1e300, 1e300, np.nan]), {"model": 0})
    assert ((ends[:4] >= 0) & (ends[:4] <= 1)).all()
    assert np.isnan(ends[4])


def test_sigmoids_of_far_scores_stay_tables(tmp_path):
    rng = np.random.default_rng(4)
    s = 1e9 + rng.random(500)
    table = pa.table(
        {"score": s, "label": (rng.random(500) < s - 1e9).astype(np.int8), "model": np.arange(500) % 2}
    )
    found = fit(tmp_path, table, ("model",), False, SegmentRules(10, 2), "platt")
    assert min(found.levels[1].maps.sizes) > 1000
    assert found.levels[1].adjustments is None
