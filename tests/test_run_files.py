"""Packed run files against the arrays that went in, and folded ties against exact fractions."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrators.core.passes import Points
from calibrators.core.sorting import Coded
from pipeline.log.logs import Rows
from pipeline.log.segment_values import Encoder
from pipeline.sort import buffers, counting, run_files
from pipeline.sort.run_files import COLUMNS, WEIGHTED, RunFile, RunSegments, read_run, restore_run, write_run
from pipeline.sort.run_merging import merge_piece, pieces_of
from pipeline.sort.sections import Sections, UnitRows, WeightedRows, _merge_points

SCORES = st.floats(allow_nan=False, allow_infinity=False).map(lambda x: x + 0.0)
# Often the same, often a float's, so that there are ties and bits that all numbers lack.
FEW = st.one_of(st.sampled_from([0.0, 0.25, 0.5, -3.0]), st.floats(0, 1, width=32), SCORES)
WEIGHTS = st.one_of(st.sampled_from([0.1, 1.0, 3.0]), st.floats(1e-300, 1e300))
STRIDES = st.sampled_from([1, 2, 7, 1024])


def column(values):
    return np.array(values, dtype=np.float64)


def section(rows, *types):
    """Columns of sorted rows."""
    return [
        np.array(values, kind)
        for values, kind in zip(
            zip(*sorted(rows), strict=True) if rows else [()] * len(types), types, strict=True
        )
    ]


TAGS = st.integers(0, 2**31 - 1)


@given(
    st.lists(st.tuples(FEW, TAGS), max_size=40),
    st.lists(st.tuples(FEW, TAGS, WEIGHTS), max_size=40),
    st.lists(st.tuples(FEW, TAGS, st.floats(-1e300, 1e300), SCORES), max_size=40),
    STRIDES,
)
def test_a_run_is_read_as_it_was_written(tmp_path_factory, rows, weighted, sums, stride):
    numbers = np.float64, np.int32, np.float64, np.float64
    written = Sections(
        UnitRows(*section(rows, *numbers[:2])),
        WeightedRows(*section(weighted, *numbers[:3])),
        Coded(*section(sums, *numbers)),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_files, "SAMPLE_STRIDE", stride)
        path = tmp_path_factory.mktemp("run") / "run"
        run = write_run(path, written)
        assert path.stat().st_size == run.file_bytes
        again, rest = restore_run(str(path), run.sizes, np.append(run.index, [7.0]))
        assert rest.tolist() == [7.0]
        for found in (run, again):
            assert found.sizes == (len(rows), len(weighted), len(sums))
            for one, other in zip(read_run(found).columns, written.columns, strict=True):
                # Bit for bit.
                assert one.dtype == other.dtype
                assert one.tobytes() == other.tobytes()
        with pytest.raises(ValueError, match="numbers, found"):
            restore_run(str(path), run.sizes, run.index[:-1])


@given(
    st.lists(st.tuples(FEW, st.just(3), WEIGHTS), min_size=1, max_size=60),
    st.lists(FEW, min_size=2, max_size=2),
    STRIDES,
)
def test_any_range_of_scores_is_read(tmp_path_factory, rows, bounds, stride):
    rows = WeightedRows(*section(rows, np.float64, np.int32, np.float64))
    low, high = sorted(bounds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_files, "SAMPLE_STRIDE", stride)
        run = write_run(tmp_path_factory.mktemp("run") / "run", Sections(weighted=rows))
        edges = [-np.inf, low, high, np.inf]
        start, stop = run_files.blocks_between(run, WEIGHTED, column(edges))
        for i in range(3):
            own = [(run.ends[c][start[i]], run.ends[c][stop[i]]) for c in COLUMNS[WEIGHTED]]
            out = run_files.allocate(WEIGHTED, rows.score.size)
            below, above = edges[i : i + 2]
            inside = (rows.score >= below) & (rows.score < above)
            if own[0][0] == own[0][1]:
                assert not inside.any()
                continue
            with RunFile(run.path) as file:
                count = file.read_rows(own, below, above, out)
            for found, expected in zip(out, rows, strict=True):
                assert found[:count].tolist() == expected[inside].tolist()


def unit_rows(score):
    """Rows of weight 1 with label 0."""
    return Sections(UnitRows(score, np.zeros(score.size, np.int32)))


def test_sorted_scores_and_weights_take_few_bytes(tmp_path):
    rng = np.random.default_rng(0)
    n = 200_000
    doubles = write_run(tmp_path / "doubles", unit_rows(np.sort(rng.random(n)))).file_bytes
    floats = write_run(tmp_path / "floats", unit_rows(np.sort(rng.random(n, np.float32)).astype(float)))
    rows = WeightedRows(np.sort(rng.random(n)), rng.integers(0, 2, n, np.int32), rng.choice([1.0, 10.0], n))
    weighted = write_run(tmp_path / "w", Sections(weighted=rows))
    assert doubles < 5.6 * n
    assert floats.file_bytes < 2.5 * n
    assert weighted.file_bytes < doubles + 1.8 * n


def test_what_cannot_be_packed_takes_little_more_than_its_size(tmp_path):
    raw = np.random.default_rng(0).integers(0, 2**63, 100_000, np.uint64).view(np.float64)
    values = np.sort(raw[np.isfinite(raw)])
    run = write_run(tmp_path / "run", unit_rows(values))
    assert run.file_bytes <= 8.05 * values.size


def test_a_file_that_was_cut_off_is_noticed(tmp_path):
    run = write_run(tmp_path / "run", unit_rows(np.arange(5000.0)))
    (tmp_path / "run").write_bytes((tmp_path / "run").read_bytes()[:-8])
    with pytest.raises(OSError, match=r"expected [0-9,]+ bytes, found"):
        read_run(run)


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.5]), WEIGHTS, st.booleans()), min_size=1, max_size=60)
)
def test_folding_weighted_ties_changes_no_sum(rows):
    score, weight, hit = column([(s, w, hit) for s, w, hit in rows]).T.copy()
    sections = Sections(weighted=WeightedRows(score, hit.astype(np.int32), weight))
    kept = sections.sorted()
    found, expected = {}, {}
    for sums, entries in ((expected, sections.as_sums()), (found, kept.as_sums())):
        for s, _, w, k in zip(*(own.tolist() for own in entries), strict=True):
            before = sums.get(s, (0, 0))
            sums[s] = (before[0] + Fraction(w), before[1] + Fraction(k))
    assert found == expected
    # As points, they are rounded once.
    exact = [(s, float(w), float(k)) for s, (w, k) in sorted(expected.items())]
    for own in (sections, kept):
        assert list(zip(*(part.tolist() for part in own.points()), strict=True)) == exact
    # Shorter than the rows, or the rows.
    assert 20 * kept.weighted.score.size + 28 * kept.sums.score.size <= 20 * score.size
    assert (np.diff(kept.sums.score) >= 0).all()


def held(run, segment=None):
    """What a run says of each score, and of each segment's value: the exact weight and positives."""
    sections = read_run(run)
    found = {}

    def add(code, score, weight, hits):
        value = None if segment is None else segment[int(code)]
        before = found.get((score, value), (0, 0))
        found[score, value] = (before[0] + Fraction(weight), before[1] + Fraction(hits))

    for score, code, weight, hits in zip(*map(np.ndarray.tolist, sections.as_sums()), strict=True):
        add(code, score, weight, hits)
    for own in sections.columns:
        assert own.flags.c_contiguous
    for score, tag, *_ in sections:
        assert (np.lexsort((tag, score)) == np.arange(score.size)).all()
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
        own = encoder if kind == "segments" else None
        folder = str(tmp_path_factory.mktemp("runs"))
        buffer = buffers.Buffer(50, folder, 0, own, weighted=kind == "weights")
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


@settings(deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 50, 3000]), st.sampled_from([0, 1, 40]))
def test_rows_and_entries_are_merged_in_the_order_of_score_and_code(seed, n, m):
    """As a range's rows are that has ties that were folded; equal ones may be in any order, since they are added up."""
    random = np.random.default_rng(seed)
    score, tag = random.integers(0, 9, n) / 4, random.integers(0, 12, n).astype(np.int32)
    code = random.integers(0, 6, m).astype(np.int32)
    own = Coded(random.integers(0, 9, m) / 4, code, random.integers(1, 9, m) * 1.0, np.ones(m))
    sections = Sections(UnitRows(score, tag), sums=own)
    rows = np.stack([score, tag >> 1, np.ones(n), tag & 1])
    whole = np.concatenate([rows, np.stack(own)], axis=1)
    found = np.stack([np.asarray(column, np.float64) for column in sections.sorted_sums()])
    assert (np.lexsort((found[1], found[0])) == np.arange(n + m)).all()
    np.testing.assert_array_equal(found[:, np.lexsort(found[::-1])], whole[:, np.lexsort(whole[::-1])])


def test_pieces_of_a_group_of_runs_count_each_segments_rows_once(tmp_path):
    random = np.random.default_rng(0)
    runs, expected = [], Counter()
    for number, names in enumerate((["a", "b"], ["b", "c", "a"], ["d"])):
        code, label = random.integers(0, len(names), 400), random.integers(0, 2, 400)
        score = np.sort(random.random(400))
        counts = np.zeros((len(names), 2), np.int64)
        np.add.at(counts, (code, label), 1)
        expected.update({(name, i): int(counts[k, i]) for k, name in enumerate(names) for i in (0, 1)})
        rows = UnitRows(score, (2 * code + label).astype(np.int32))
        segments = RunSegments([pa.array(names)], counts)
        runs.append(write_run(str(tmp_path / f"run-{number}"), Sections(rows).sorted(), segments))
    pieces = pieces_of(runs, np.array([-np.inf, 0.3, 0.7, np.inf]))
    merged = [merge_piece(piece, str(tmp_path / f"merged-{i}")) for i, piece in enumerate(pieces)]
    found = Counter()
    for run in merged:
        for name, row in zip(run.segments.values[0].to_pylist(), run.segments.counts.tolist(), strict=True):
            found.update({(name, 0): row[0], (name, 1): row[1]})
    assert +found == +expected
    assert sum(run.sizes[0] for run in merged) == 1200


@given(st.lists(st.tuples(FEW, st.integers(1, 9)), min_size=1), st.lists(st.tuples(FEW, st.integers(1, 9))))
def test_points_are_merged_as_their_rows_are(first, others):
    def points(rows):
        scores = sorted({score + 0.0 for score, _ in rows})
        weight = [float(sum(w for score, w in rows if score == s)) for s in scores]
        return [np.array(scores), np.array(weight), np.floor(np.array(weight) / 2)]

    one, other = points(first), points(others)
    found = _merge_points([column.copy() for column in one], Points(*other))
    sums = {}
    for score, weight, positives in zip(
        *(np.append(*pair) for pair in zip(one, other, strict=True)), strict=True
    ):
        w, k = sums.get(score, (0.0, 0.0))
        sums[score] = w + weight, k + positives
    assert found.score.tolist() == sorted(sums)
    assert list(zip(found.weight.tolist(), found.positives.tolist(), strict=True)) == [
        sums[s] for s in sorted(sums)
    ]
