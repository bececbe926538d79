"""Run files: sorted rows in scratch space, packed, with an index.

A run's sections (`pipeline.sort.sections`) ascend by score, and equal scores by tag. Codes of segments are
the run's own. Each column of a section is packed in blocks (`pipeline._kernels.packing`); any range of blocks can be
read alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators.core.arrays import Array, Integers
from pipeline._kernels import packing
from pipeline.files.blobs import Blob, write_blob
from pipeline.sort.sections import Coded, Sections, UnitRows, WeightedRows

SAMPLE_STRIDE = 1024
"""Numbers per block. The first score of each block is a sample, used to find splitters and block ranges."""

MOST_ROWS = 1 << 30
"""Most rows of a run: positions in it have 32 bits."""

ROWS, WEIGHTED, SUMS = range(3)
"""The sections."""

COLUMNS = ((0, 1), (2, 3, 4), (5, 6, 7, 8))
"""Column numbers of each section: scores, tags or codes, and numbers."""

WIDTHS = (12, 20, 28)
"""Bytes of a row in memory, by section."""

_HEADERS = 1 << 13
"""Allowance for short last blocks in the runs of a small log, in bytes."""

Words = npt.NDArray[np.uint64]


def row_width(weighted: bool) -> int:
    """Return the bytes of a row of a log in memory."""
    return WIDTHS[WEIGHTED if weighted else ROWS]


def most_bytes(rows: int, weighted: bool, segmented: bool = False) -> int:
    """Return an upper bound of the bytes of the run files of `rows` rows."""
    width = 16 if weighted else 8
    # A tag has some 21 bits at most, and one without segments.
    return rows * (width + width // 8 + (3 if segmented else 1)) + _HEADERS


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
    return Run(
        path,
        sections.sizes,
        # Copies: a view would keep the whole column alive.
        tuple(section.score[::SAMPLE_STRIDE].copy() for section in sections),
        tuple(end.astype(np.uint32) for end in ends),
        segments,
        below=math.nextafter(sections.score_range[1], math.inf),
    )


def packed_columns(
    columns: Iterable[tuple[npt.NDArray[Any], bool]], ends: list[Integers]
) -> Iterator[memoryview]:
    """Yield the packed words of columns; append the block offsets of each column to `ends`.

    columns : pairs of a column, of 8-byte numbers or of int32 >= 0, and whether it ascends
    """
    file_offset = 0
    words: Words = np.empty(0, np.uint64)
    for column, ascending in columns:
        offsets = np.zeros(blocks_of(column.size) + 1, np.int64)
        room = column.size + (packing.HEADER + 1) * (offsets.size - 1)
        if words.size < room:
            words = np.empty(room, np.uint64)
        column = np.ascontiguousarray(column)
        if column.dtype == np.int32:
            packing.pack_tags(column, SAMPLE_STRIDE, words, offsets)
        else:
            packing.pack(column.view(np.uint64), SAMPLE_STRIDE, ascending, words, offsets)
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
    sections = []
    with RunFile(run.path) as file:
        for section, (columns, size) in enumerate(zip(COLUMNS, run.sizes, strict=True)):
            rows = allocate(section, size)
            spans = [run.ends[column][[0, -1]].tolist() for column in columns]
            file.read_rows(spans, -np.inf, np.inf, rows)
            sections.append(rows)
    return sections_of(sections)


def allocate(section: int, size: int) -> list[npt.NDArray[Any]]:
    """Return arrays for the columns of `size` rows of a section."""
    numbers = range(len(COLUMNS[section]) - 2)
    return [np.empty(size), np.empty(size, np.int32), *(np.empty(size) for _ in numbers)]


def sections_of(columns: Sequence[Sequence[npt.NDArray[Any]]]) -> Sections:
    """Return the sections with these columns."""
    rows, weighted, sums = columns
    return Sections(UnitRows(*rows), WeightedRows(*weighted), Coded(*sums))


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
        self, spans: Sequence[Sequence[int]], low: float, high: float, out: Sequence[npt.NDArray[Any]]
    ) -> int:
        """Read the rows with low <= score < high from a range of blocks of a section; return their number.

        Parameters
        ----------
        spans : words of these blocks, [start, stop) for each column of the section
        out : an array for each column, float64 or int32, with room for all rows of the blocks; filled from the start
        """
        numbers = np.empty(out[0].size, np.uint64) if self._numbers is None else self._numbers
        a = b = 0
        for column, (span, target) in enumerate(zip(spans, out, strict=True)):
            words, size = self._read_words(*span)
            if target.dtype == np.int32:
                values = numbers.view(np.int32)
                packing.unpack_tags(words, size, values)
            else:
                values = numbers.view(np.float64)
                n = packing.unpack(words, size, column == 0, numbers)
                if column == 0:
                    a, b = np.searchsorted(values[:n], [low, high]).tolist()
            target[: b - a] = values[a:b]
        return b - a

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
