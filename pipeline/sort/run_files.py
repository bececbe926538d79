"""Run files: sorted rows in scratch space, packed, with an index.

A run's sections ascend by score. A log without segments has four: the scores of rows with label 0, those of rows with
label 1, weighted rows (score and weight, with the sign of the label), and *entries* (score, weight, positives) for ties
of several rows. With segments each row also has the run's code of its segment, and equal scores ascend by code. Rows of
weight 1 have a *tag* instead: twice the code, plus the label.

Each column of a section is packed in blocks (`pipeline._kernels.packing`); any range of blocks can be read alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators.arithmetic.ordering import Coded
from calibrators.arithmetic.passes import Array, Points
from pipeline._kernels import packing
from pipeline.files.blobs import Blob, write_blob

SAMPLE_STRIDE = 1024
"""Numbers per block. The first score of each block is a sample, used to find splitters and block ranges."""

MOST_ROWS = 1 << 30
"""Most rows of a run: positions in it have 32 bits."""

NEGATIVES, POSITIVES, ROWS, ENTRIES, TAGGED, CODED_ROWS, CODED_ENTRIES = range(7)
"""The sections."""

COLUMNS = ((0,), (1,), (2, 3), (4, 5, 6), (7, 8), (9, 10, 11), (12, 13, 14, 15))
"""Column numbers of each section, the scores first."""

WIDTHS = tuple(8 * len(columns) for columns in COLUMNS)
"""Bytes of a row in memory, by section."""

_HEADERS = 1 << 13
"""Allowance for short last blocks in the runs of a small log, in bytes."""

_EMPTY = np.empty(0)
_NO_CODES = np.empty(0, np.int64)

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


def row_width(weighted: bool, segmented: bool = False) -> int:
    """Return the bytes of a row of a log in memory."""
    if segmented:
        return WIDTHS[CODED_ROWS if weighted else TAGGED]
    return WIDTHS[ROWS if weighted else NEGATIVES]


def most_bytes(rows: int, weighted: bool, segmented: bool = False) -> int:
    """Return an upper bound of the bytes of the run files of `rows` rows."""
    width = row_width(weighted)
    # A tag has some 21 bits at most.
    return rows * (width + width // 8 + (3 if segmented else 0)) + _HEADERS


class SignedRows(NamedTuple):
    """Weighted rows: float64 arrays, shape (n,). signed : weight, negative for label 0."""

    score: Array
    signed: Array


class Tagged(NamedTuple):
    """Rows of weight 1 with segments. tag : int64 array: twice the segment's code, plus the label."""

    score: Array
    tag: Integers


class CodedRows(NamedTuple):
    """Weighted rows with segments. code : int64 array. signed : as in `SignedRows`."""

    score: Array
    code: Integers
    signed: Array

    @classmethod
    def of(cls, score: Array, signed: Array) -> CodedRows:
        """Return rows without segments."""
        return cls(score, _NO_CODES, signed)


class Sections(NamedTuple):
    """Sections of a run, each ascending by score, and equal scores by segment.

    coded_entries : ties of several rows of one segment. Several entries of one score and segment are components of an
        exact sum.
    """

    negatives: Array = _EMPTY
    positives: Array = _EMPTY
    rows: SignedRows = SignedRows(_EMPTY, _EMPTY)
    entries: Points = Points(_EMPTY, _EMPTY, _EMPTY)
    tagged: Tagged = Tagged(_EMPTY, _NO_CODES)
    coded_rows: CodedRows = CodedRows(_EMPTY, _NO_CODES, _EMPTY)
    coded_entries: Coded = Coded(_EMPTY, _NO_CODES, _EMPTY, _EMPTY)

    @property
    def columns(self) -> tuple[Any, ...]:
        """All columns, numbered as in `COLUMNS`."""
        return (
            self.negatives,
            self.positives,
            *self.rows,
            *self.entries,
            *self.tagged,
            *self.coded_rows,
            *self.coded_entries,
        )

    @property
    def score_range(self) -> tuple[float, float]:
        """The lowest and the highest score."""
        scores = [self.columns[columns[0]] for columns in COLUMNS]
        return (
            min((float(score[0]) for score in scores if score.size), default=math.inf),
            max((float(score[-1]) for score in scores if score.size), default=-math.inf),
        )


class RunSegments(NamedTuple):
    """Segments of a run, indexed by the run's codes.

    values : one array per column of the key. counts : integers, shape (codes, 2): rows with label 0 and with label 1
    """

    values: list[pa.Array]
    counts: npt.NDArray[np.integer[Any]]


@dataclass
class Run:
    """Run file: path, size and block index.

    sizes : rows of each section. samples : first score of each block, one array per section
    ends : block offsets in 8-byte words, with the end of the last block; one uint32 array per column
    segments : None without segments. below : exclusive upper bound of the scores; infinite if not known
    """

    path: str
    sizes: tuple[int, ...]
    samples: tuple[Array, ...]
    ends: tuple[npt.NDArray[np.uint32], ...]
    segments: RunSegments | None = None
    below: float = np.inf

    @property
    def bytes(self) -> int:
        """Size of the rows in memory."""
        return sum(width * size for width, size in zip(WIDTHS, self.sizes, strict=True))

    @property
    def file_bytes(self) -> int:
        """Size of the file."""
        return 8 * int(self.ends[-1][-1])

    @property
    def index(self) -> Array:
        """Block index: samples and offsets in one float64 array."""
        return np.concatenate([*self.samples, *self.ends])


def write_run(path: str, sections: Sections, segments: RunSegments | None = None) -> Run:
    """Write a run; a repeated task writes the same file again."""
    ends: list[Integers] = []
    first = {columns[0] for columns in COLUMNS}
    columns = ((column, i in first) for i, column in enumerate(sections.columns))
    write_blob(path, packed_columns(columns, ends))
    scores = [sections.columns[columns[0]] for columns in COLUMNS]
    return Run(
        path,
        tuple(score.size for score in scores),
        # Copies: a view would keep the whole column alive.
        tuple(score[::SAMPLE_STRIDE].copy() for score in scores),
        tuple(end.astype(np.uint32) for end in ends),
        segments,
        below=math.nextafter(sections.score_range[1], math.inf),
    )


def packed_columns(
    columns: Iterable[tuple[npt.NDArray[Any], bool]], ends: list[Integers]
) -> Iterator[memoryview]:
    """Yield the packed words of 8-byte columns; append the block offsets of each column to `ends`.

    columns : pairs of a column and whether it ascends
    """
    file_offset = 0
    words: Words = np.empty(0, np.uint64)
    for column, ascending in columns:
        offsets = np.zeros(blocks_of(column.size) + 1, np.int64)
        room = column.size + (packing.HEADER + 1) * (offsets.size - 1)
        if words.size < room:
            words = np.empty(room, np.uint64)
        packing.pack(np.ascontiguousarray(column).view(np.uint64), SAMPLE_STRIDE, ascending, words, offsets)
        yield words[: offsets[-1]].data
        ends.append(offsets + file_offset)
        file_offset += int(offsets[-1])


def restore_run(
    path: str, sizes: Sequence[int], numbers: Array, segments: RunSegments | None = None
) -> tuple[Run, Array]:
    """Restore a run from its `index`, the first numbers of `numbers`; return it and the numbers that follow.

    Raises
    ------
    ValueError
        `numbers` is shorter than the index.
    """
    blocks = [blocks_of(size) for size in sizes]
    end_counts = [blocks[section] + 1 for section, columns in enumerate(COLUMNS) for _ in columns]
    lengths = [*blocks, *end_counts]
    if numbers.size < sum(lengths):
        raise ValueError(f"expected {sum(lengths):,} numbers, found {numbers.size:,}")
    *parts, remaining = np.split(numbers, np.cumsum(lengths))
    samples, offsets = parts[: len(blocks)], parts[len(blocks) :]
    ends = tuple(part.astype(np.uint32) for part in offsets)
    return Run(path, tuple(sizes), tuple(samples), ends, segments), remaining


def blocks_of(numbers: int) -> int:
    """Return the number of blocks of a column of `numbers` numbers."""
    return -(-numbers // SAMPLE_STRIDE)


def read_run(run: Run) -> Sections:
    """Read a whole run."""
    sections: list[list[Any]] = []
    with RunFile(run.path) as file:
        for columns, size in zip(COLUMNS, run.sizes, strict=True):
            out: Words = np.empty((size, len(columns)), np.uint64)
            spans = [run.ends[column][[0, -1]].tolist() for column in columns]
            file.read_rows(spans, -np.inf, np.inf, out, 0)
            sections.append([np.ascontiguousarray(column) for column in out.view(np.float64).T])
    negatives, positives, rows, entries, tagged, coded, coded_entries = sections
    for section in (tagged, coded, coded_entries):
        section[1] = section[1].view(np.int64)
    return Sections(
        negatives[0],
        positives[0],
        SignedRows(*rows),
        Points(*entries),
        Tagged(*tagged),
        CodedRows(*coded),
        Coded(*coded_entries),
    )


class RunFile(Blob):
    """Open run file.

    ahead : see `Blob`. numbers : work array, uint64, as long as the longest column to read; None: allocated per read
    """

    def __init__(
        self, path: str, ahead: dict[int, bytes] | None = None, numbers: Words | None = None
    ) -> None:
        super().__init__(path, ahead)
        self._words: Words = np.empty(0, np.uint64)
        self._numbers = numbers

    def read_rows(
        self, spans: Sequence[Sequence[int]], low: float, high: float, out: Words, start: int
    ) -> tuple[int, int]:
        """Read the rows with low <= score < high from a range of blocks of a section.

        Parameters
        ----------
        spans : words of these blocks, [start, stop) for each column of the section
        out : uint64 array, shape (rows, columns): bits of doubles, filled from row `start` on; needs room for all rows
            of the blocks

        Returns
        -------
        first : position in the section of the first row read. stop : row of `out` after the last one
        """
        numbers = np.empty(out.shape[0] - start, np.uint64) if self._numbers is None else self._numbers
        first, a, stop = 0, 0, start
        for column, span in enumerate(spans):
            words, size = self._read_words(*span)
            n = packing.unpack(words, size, column == 0, numbers)
            if column == 0 and n:
                a, b = np.searchsorted(numbers[:n].view(np.float64), [low, high]).tolist()
                first, stop = packing.first_position(words) + a, start + b - a
            out[start:stop, column] = numbers[a : a + stop - start]
        return first, stop

    def _read_words(self, start: int, stop: int) -> tuple[Words, int]:
        """Read the words from start to stop; return them with padding, and their number."""
        size = stop - start
        if self._words.size < size + packing.PADDING:
            self._words = np.zeros(size + packing.PADDING, np.uint64)
        if size:
            self.read(8 * start, self._words[:size].data.cast("B"))
        return self._words, size


def blocks_between(run: Run, section: int, edges: Array) -> tuple[Integers, Integers]:
    """Find the blocks of a section of a run that may hold scores between edges, from the samples.

    Parameters
    ----------
    edges : float64 array, shape (buckets + 1,), ascending

    Returns
    -------
    start, stop : int64 arrays, shape (buckets,): first block of each bucket, and one past the last
    """
    position = np.searchsorted(run.samples[section], edges)
    return np.maximum(position[:-1] - 1, 0), position[1:]
