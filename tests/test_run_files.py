"""Packed run files against the arrays that went in, and folded ties against exact fractions."""

from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibrators.arithmetic import ordering
from calibrators.arithmetic.ordering import (
    Coded,
    sort_entries,
    sort_pairs,
    sort_pieces,
    sort_scores,
    stable_order,
)
from calibrators.arithmetic.passes import Points
from pipeline.log.logs import Rows
from pipeline.log.segment_values import Encoder
from pipeline.sort import buffers, counting, run_files
from pipeline.sort.buckets import CodedBucket
from pipeline.sort.folding import fold_coded, sort_tagged
from pipeline.sort.run_files import (
    COLUMNS,
    CodedRows,
    RunFile,
    Sections,
    SignedRows,
    Tagged,
    read_run,
    restore_run,
    write_run,
)

SCORES = st.floats(allow_nan=False, allow_infinity=False).map(lambda x: x + 0.0)
# Often the same, often a float's, so that there are ties and bits that all numbers lack.
FEW = st.one_of(st.sampled_from([0.0, 0.25, 0.5, -3.0]), st.floats(0, 1, width=32), SCORES)
WEIGHTS = st.one_of(st.sampled_from([0.1, 1.0, 3.0]), st.floats(1e-300, 1e300))
STRIDES = st.sampled_from([1, 2, 7, 1024])


def column(values):
    return np.array(values, dtype=np.float64)


@given(
    st.lists(FEW, max_size=40),
    st.lists(FEW, max_size=40),
    st.lists(st.tuples(FEW, WEIGHTS, st.booleans()), max_size=40),
    st.lists(st.tuples(FEW, st.floats(-1e300, 1e300), SCORES), max_size=40),
    st.lists(st.tuples(FEW, st.integers(0, 2**32)), max_size=40),
    STRIDES,
)
def test_a_run_is_read_as_it_was_written(tmp_path_factory, negatives, positives, rows, entries, tags, stride):
    rows = sorted((score, weight if hit else -weight) for score, weight, hit in rows)
    entries = sorted(entries)
    tags = sorted(tags)
    code = np.array([tag for _, tag in tags], np.int64)
    score = column([score for score, _ in tags])
    written = Sections(
        np.sort(column(negatives)),
        np.sort(column(positives)),
        SignedRows(*column(rows).reshape(-1, 2).T),
        Points(*column(entries).reshape(-1, 3).T),
        Tagged(score, code),
        CodedRows(score, code, -score),
        Coded(score, code, np.full(score.size, 1.5), score),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_files, "SAMPLE_STRIDE", stride)
        path = tmp_path_factory.mktemp("run") / "run"
        run = write_run(path, written)
        assert path.stat().st_size == run.file_bytes
        again, rest = restore_run(str(path), run.sizes, np.append(run.index, [7.0]))
        assert rest.tolist() == [7.0]
        for found in (run, again):
            sizes = (len(negatives), len(positives), len(rows), len(entries), *[len(tags)] * 3)
            assert found.sizes == sizes
            for one, other in zip(read_run(found).columns, written.columns, strict=True):
                # Bit for bit.
                assert one.tobytes() == np.ascontiguousarray(other).tobytes()
        with pytest.raises(ValueError, match="numbers, found"):
            restore_run(str(path), run.sizes, run.index[:-1])


@given(
    st.lists(st.tuples(FEW, WEIGHTS), min_size=1, max_size=60), st.lists(FEW, min_size=2, max_size=2), STRIDES
)
def test_any_range_of_scores_is_read(tmp_path_factory, rows, bounds, stride):
    rows = column(sorted(rows))
    low, high = sorted(bounds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_files, "SAMPLE_STRIDE", stride)
        sections = Sections(rows=SignedRows(*rows.T))
        run = write_run(tmp_path_factory.mktemp("run") / "run", sections)
        edges = [-np.inf, low, high, np.inf]
        start, stop = run_files.blocks_between(run, 2, column(edges))
        for i in range(3):
            own = [(run.ends[c][start[i]], run.ends[c][stop[i]]) for c in COLUMNS[2]]
            out = np.zeros((len(rows) + 1, 2), np.uint64)
            below, above = edges[i : i + 2]
            inside = (rows[:, 0] >= below) & (rows[:, 0] < above)
            if own[0][0] == own[0][1]:
                assert not inside.any()
                continue
            with RunFile(run.path) as file:
                first, end = file.read_rows(own, below, above, out, 1)
            assert first == np.count_nonzero(rows[:, 0] < below)
            assert out[1:end].view(np.float64).tolist() == rows[inside].tolist()


def test_sorted_scores_and_weights_take_few_bytes(tmp_path):
    rng = np.random.default_rng(0)
    n = 200_000
    doubles = write_run(tmp_path / "doubles", Sections(np.sort(rng.random(n)))).file_bytes
    floats = write_run(tmp_path / "floats", Sections(np.sort(rng.random(n, np.float32)).astype(float)))
    weights = rng.choice([1.0, 10.0], n) * rng.choice([-1, 1], n)
    weighted = write_run(tmp_path / "w", Sections(rows=SignedRows(np.sort(rng.random(n)), weights)))
    assert doubles < 5.6 * n
    assert floats.file_bytes < 2.5 * n
    assert weighted.file_bytes < doubles + 1.8 * n


def test_what_cannot_be_packed_takes_little_more_than_its_size(tmp_path):
    raw = np.random.default_rng(0).integers(0, 2**63, 100_000, np.uint64).view(np.float64)
    values = np.sort(raw[np.isfinite(raw)])
    run = write_run(tmp_path / "run", Sections(values))
    assert run.file_bytes <= 8.05 * values.size


def test_a_file_that_was_cut_off_is_noticed(tmp_path):
    run = write_run(tmp_path / "run", Sections(np.arange(5000.0)))
    (tmp_path / "run").write_bytes((tmp_path / "run").read_bytes()[:-8])
    with pytest.raises(OSError, match=r"expected [0-9,]+ bytes, found"):
        read_run(run)


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.5]), WEIGHTS, st.booleans()), min_size=1, max_size=60)
)
def test_folding_weighted_ties_changes_no_sum(rows):
    score, signed = column(sorted((s, w if hit else -w) for s, w, hit in rows)).T.copy()
    kept, entries = fold_coded(CodedRows.of(score.copy(), signed.copy()))
    found, expected = {}, {}
    for sums, columns in (
        (expected, (score, abs(signed), np.maximum(signed, 0))),
        (found, (kept.score, abs(kept.signed), np.maximum(kept.signed, 0))),
        (found, (entries.score, entries.weight, entries.positives)),
    ):
        for s, w, k in zip(*(column.tolist() for column in columns), strict=True):
            before = sums.get(s, (0, 0))
            sums[s] = (before[0] + Fraction(w), before[1] + Fraction(k))
    assert found == expected
    # As points, they are rounded once.
    points = ordering.sum_ties(score, abs(signed), np.maximum(signed, 0))
    exact = [(s, float(w), float(k)) for s, (w, k) in expected.items()]
    assert list(zip(*(own.tolist() for own in points), strict=True)) == exact
    # Shorter than the rows, or the rows.
    assert 16 * kept.score.size + 24 * entries.score.size <= 16 * score.size
    assert (np.diff(entries.score) >= 0).all()


def held(run, segment=None):
    """What a run says of each score, and of each segment's value: the exact weight and positives."""
    sections = read_run(run)
    found = {}

    def add(code, score, weight, hits):
        value = None if segment is None else segment[int(code)]
        before = found.get((score, value), (0, 0))
        found[score, value] = (before[0] + Fraction(weight), before[1] + Fraction(hits))

    for label, scores in enumerate((sections.negatives, sections.positives)):
        for score in scores.tolist():
            add(0, score, 1, label)
    for score, tag in zip(*map(np.ndarray.tolist, sections.tagged), strict=True):
        add(tag >> 1, score, 1, tag & 1)
    for score, signed in zip(*map(np.ndarray.tolist, sections.rows), strict=True):
        add(0, score, abs(signed), max(signed, 0))
    for entry in zip(*map(np.ndarray.tolist, sections.entries), strict=True):
        add(0, *entry)
    for score, code, weight, hits in zip(*map(np.ndarray.tolist, sections.coded_entries), strict=True):
        add(code, score, weight, hits)
    for own in sections.columns:
        assert own.flags.c_contiguous
    for own in (sections.negatives, sections.positives, sections.entries.score, sections.coded_entries.score):
        assert (np.diff(own) >= 0).all()
    return found


BATCHES = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from([0.25, 0.5, 0.75, -0.0, 0.0, np.nan, np.inf]) | st.floats(-2, 2, width=16),
            st.integers(0, 3),
            st.sampled_from([1.0, 2.0, 7.0, 0.5, 0.1, np.nan, 0.0, 40_000.0]),
            st.sampled_from("abc"),
        ),
        min_size=1,
        max_size=60,
    ),
    min_size=1,
    max_size=4,
)


@given(
    BATCHES,
    st.sampled_from(["rows", "weights", "segments"]),
    st.sampled_from([2, 16, 1024]),
    st.integers(0, 2),
)
def test_counted_rows_are_all_rows(tmp_path_factory, batches, kind, slots, many):
    counts = []
    encoder = Encoder(["segment"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "_SLOTS", slots)
        patch.setattr(counting, "_MANY", many)
        own = {"segments": buffers.CodedBuffer, "weights": buffers.WeightedBuffer, "rows": buffers.Buffer}[
            kind
        ]
        more = (encoder, False) if kind == "segments" else ()
        buffer = own(50, str(tmp_path_factory.mktemp("runs")), 0, *more)
        wanted, used, positive = {}, 0, 0
        for batch in batches:
            score, label, weight, value = (list(part) for part in zip(*batch, strict=True))
            table = pa.RecordBatch.from_arrays([pa.array(value)], ["segment"])
            rows = Rows(0, column(score), np.array(label, np.uint8), None, table)
            if kind == "weights":
                rows = rows._replace(weight=column(weight))
            if kind == "segments":
                rows = rows._replace(code=encoder.encode(table))
            counts.append(buffer.add(rows))
            for s, z, w, v in batch:
                w = w if kind == "weights" else 1
                if np.isfinite(s) and z <= 1 and w > 0:
                    key = (s, v if kind == "segments" else None)
                    before = wanted.get(key, (0, 0))
                    wanted[key] = (before[0] + Fraction(w), before[1] + z * Fraction(w))
                    used, positive = used + 1, positive + z
        buffer.flush()
    assert sum(counts) == used
    assert buffer.used_positive == positive
    found = {}
    for run in buffer.runs:
        names = None if run.segments is None else run.segments.values[0].to_pylist()
        own = held(run, names)
        if run.segments is not None:
            by_value = np.zeros((len(names), 2))
            for (_, value), (weight, hits) in own.items():
                by_value[names.index(value)] += [float(weight - hits), float(hits)]
            assert by_value.tolist() == run.segments.counts.tolist()
        for key, (weight, hits) in own.items():
            before = found.get(key, (0, 0))
            found[key] = (before[0] + weight, before[1] + hits)
    assert found == wanted
    if wanted:
        scores = [score for score, _ in wanted]
        assert (buffer.lowest, buffer.highest) == (min(scores), max(scores))


# Sorting doubles by way of whole numbers, against numpy's stable sort


@pytest.fixture(autouse=True, params=["radix", "numpy"])
def sort(request, monkeypatch):
    """Either sort, whichever this processor does better: results are the same."""
    monkeypatch.setattr(ordering, "radix_for", lambda rows: request.param == "radix" and rows > 0)


FIXTURES_STAY = [HealthCheck.function_scoped_fixture]
VALUES = {
    "uniform": lambda random, n: random.random(n),
    "normal": lambda random, n: random.normal(size=n),
    "few": lambda random, n: random.integers(-20, 20, n) / 7,
    "zeros": lambda random, n: np.where(random.random(n) < 0.5, -0.0, 0.0),
    "every size": lambda random, n: random.normal(size=n) * 10.0 ** random.integers(-300, 300, n),
    # Only the lowest bits differ, where the keys hold the places.
    "close": lambda random, n: 0.5 + random.random(n) * 1e-13,
    "close and negative": lambda random, n: -0.5 - random.random(n) * 1e-15,
    "pairs of close": lambda random, n: np.nextafter(
        np.repeat(random.random(n // 2 + 1), 2)[:n], random.random(n)
    ),
    "subnormal": lambda random, n: random.integers(-50, 50, n) * 5e-324,
    "sorted": lambda random, n: np.sort(random.random(n)),
    # Most leading bits tell nothing apart.
    "close, and one far away": lambda random, n: np.append(0.5 + random.random(n - 1) * 1e-9, -1.0),
    "many close to many": lambda random, n: random.integers(0, 50, n) + random.random(n) * 1e-12,
    "falling": lambda random, n: np.sort(0.5 + random.random(n) * 1e-9)[::-1],
    "a heavy tie": lambda random, n: np.where(random.random(n) < 0.5, 0.25, random.random(n)),
}


@settings(suppress_health_check=FIXTURES_STAY)
@given(st.sampled_from(sorted(VALUES)), st.integers(1, 40_000), st.integers(0, 2**32))
def test_the_order_is_numpys_stable_one(kind, n, seed):
    random = np.random.default_rng(seed)
    values = VALUES[kind](random, n)
    order = np.argsort(values, kind="stable")
    np.testing.assert_array_equal(stable_order(values), order)
    scores = values + 0.0
    sort_scores(scores)
    np.testing.assert_array_equal(scores.view(np.uint64), np.sort(values + 0.0).view(np.uint64))
    # Numbers move with their scores, those of equal ones in their order.
    pairs = np.stack([values, np.arange(n) * random.choice([-1.0, 1.0], n)], axis=1)
    np.testing.assert_array_equal(sort_entries(values, pairs), [values[order], *pairs[order].T])
    np.testing.assert_array_equal(np.stack(sort_pairs(pairs.copy())), pairs[order].T)


def test_many_numbers_are_sorted_by_what_was_measured_to_be_faster(monkeypatch):
    monkeypatch.undo()
    ordering._measure.cache_clear()
    for seconds, expected in (([1.0, 2.0], True), ([2.0, 1.0], False)):
        monkeypatch.setattr(ordering, "_seconds", lambda sort, left=list(seconds): left.pop(0))
        assert ordering.radix_for(1 << 20) is expected
        assert ordering.radix_for(1 << 20) is expected
        assert not ordering.radix_for(1000)
        ordering._measure.cache_clear()


@settings(suppress_health_check=FIXTURES_STAY)
@given(
    st.lists(st.integers(0, 64), min_size=1, max_size=4),
    st.integers(1, 40_000),
    st.integers(1, 40_000),
    st.integers(0, 2**32),
)
def test_whole_numbers_are_sorted_piece_by_piece(bits, n, different, seed):
    random = np.random.default_rng(seed)
    widths = random.choice(bits, n)
    numbers = random.integers(0, 2**64, n, np.uint64)
    numbers = np.where(widths == 0, 0, numbers >> (64 - widths.clip(1)).astype(np.uint64))
    numbers = numbers[random.integers(0, min(different, n), n)]
    ends = np.append(np.sort(random.integers(0, n + 1, 5)), n)
    expected = np.concatenate([np.sort(piece) for piece in np.split(numbers, ends[:-1])])
    found = sort_pieces(numbers.copy(), ends, max(bits))
    np.testing.assert_array_equal(found, expected)


@settings(deadline=None, suppress_health_check=FIXTURES_STAY)
@given(
    st.integers(0, 2**32),
    st.sampled_from([0, 1, 5, 300, 5000]),
    st.sampled_from([1, 2, 12]),
    st.integers(1, 31),
)
def test_rows_with_tags_are_in_the_order_of_score_and_tag(seed, n, digits, bits):
    """By pieces where their number and the tags allow it, otherwise by pairs."""
    random = np.random.default_rng(seed)
    score = random.normal(0, 10.0 ** random.integers(-3, 4), n).round(digits) + 0.0
    tag = random.integers(0, 1 << bits, n).astype(np.int64)
    order = np.lexsort((tag, score))
    found = (score, tag) if n == 0 else sort_tagged(score, tag, bits)
    assert (found[0] == score[order]).all()
    assert (found[1] == tag[order]).all()
    assert found[1].dtype == np.int64


@settings(deadline=None, suppress_health_check=FIXTURES_STAY)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 50, 3000]), st.sampled_from([0, 1, 40]))
def test_rows_and_entries_are_merged_in_the_order_of_score_and_code(seed, n, m):
    """As a range's rows are that has ties that were folded; equal ones may be in any order, since they are added up."""
    random = np.random.default_rng(seed)
    score, tag = random.integers(0, 9, n) / 4, random.integers(0, 12, n)
    own = random.integers(0, 9, m) / 4, random.integers(0, 6, m), random.integers(1, 9, m) * 1.0, np.ones(m)
    bucket = CodedBucket(score, tag, (np.empty(0), np.empty(0, np.int64), np.empty(0)), own)
    found = np.stack([np.asarray(column, np.float64) for column in bucket.sorted_entries()])
    rows = np.stack([score, tag >> 1, np.ones(n), tag & 1])
    whole = np.concatenate([rows, np.stack(own)], axis=1)
    assert (np.lexsort((found[1], found[0])) == np.arange(n + m)).all()
    np.testing.assert_array_equal(found[:, np.lexsort(found[::-1])], whole[:, np.lexsort(whole[::-1])])
