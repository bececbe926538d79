"""Run files: sorted rows in scratch space, packed, and what is known of them without reading them.

A run has four sections, each ascending by score: the scores of rows with label 0, those of rows with label 1, weighted
rows (score and weight, with the sign of the label), and *entries* (score, weight, positives) for ties of several rows.
Each number of a section is packed for itself (`pipeline._kernels.packing`), in blocks: any stretch of blocks can be
read alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators._kernels.order import ordinal
from calibrators.passes import Array, Points
from pipeline._kernels import packing

SAMPLE_STRIDE = 1024
"""Numbers of a block. The first score of each is kept: splitters and places are found from them."""

MOST_ROWS = 1 << 30
"""Of a run: places in it are numbers of 32 bits."""

WIDTHS = (8, 8, 16, 24)
"""Bytes of a row of each section in memory."""

COLUMNS = ((0,), (1,), (2, 3), (4, 5, 6))
"""The columns of each section, the scores first."""

_HEADERS = 1 << 13
"""Bytes of short blocks at the ends of a small log's runs."""

_EMPTY = np.empty(0)

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


def row_width(weighted: bool) -> int:
    """Bytes of a row of a log in memory."""
    return WIDTHS[2] if weighted else WIDTHS[0]


def most_bytes(rows: int, weighted: bool) -> int:
    """Of the run files of so many rows of a log, whatever is in them."""
    width = row_width(weighted)
    return rows * (width + width // 8) + _HEADERS


class SignedRows(NamedTuple):
    """Weighted rows: float64 arrays, shape (n,). signed : the weight, negative where the label is 0."""

    score: Array
    signed: Array


class Sections(NamedTuple):
    """What a run holds, each section ascending by score."""

    negatives: Array = _EMPTY
    positives: Array = _EMPTY
    rows: SignedRows = SignedRows(_EMPTY, _EMPTY)
    entries: Points = Points(_EMPTY, _EMPTY, _EMPTY)

    @property
    def columns(self) -> tuple[Array, ...]:
        """All columns, as `COLUMNS` numbers them."""
        return (self.negatives, self.positives, *self.rows, *self.entries)


@dataclass
class Run:
    """A run file.

    sizes : rows of each section. samples : the first score of each block, of each section.
    ends : uint32 arrays, one a column: the word of the file that each block begins at, and the end.
    before : float64 array, one number a block of the entries: the weight of the entries before it; exact where entries
        are counts of rows
    """

    path: str
    sizes: tuple[int, ...]
    samples: tuple[Array, ...]
    ends: tuple[npt.NDArray[np.uint32], ...]
    before: Array

    @property
    def bytes(self) -> int:
        """Of what it holds, in memory."""
        return sum(width * size for width, size in zip(WIDTHS, self.sizes, strict=True))

    @property
    def file_bytes(self) -> int:
        """Size of the file."""
        return 8 * int(self.ends[-1][-1])

    @property
    def index(self) -> Array:
        """What is known of the blocks, in one float64 array."""
        return np.concatenate([*self.samples, *self.ends, self.before])


def write_run(path: Path, sections: Sections) -> Run:
    """Write a run; a repeated task writes the same file again."""
    temporary = path.with_suffix(".tmp")
    longest = max(column.size for column in sections.columns)
    words: Words = np.empty(longest + (packing.HEADER + 1) * _blocks(longest), np.uint64)
    ends, at = [], 0
    with temporary.open("wb", buffering=0) as file:
        for i, column in enumerate(sections.columns):
            own = np.zeros(_blocks(column.size) + 1, np.int64)
            ascending = any(columns[0] == i for columns in COLUMNS)
            write = packing.pack_ascending if ascending else packing.pack
            write(np.ascontiguousarray(column).view(np.uint64), SAMPLE_STRIDE, words, own)
            _write_all(file, words[: own[-1]])
            ends.append((own + at).astype(np.uint32))
            at += int(own[-1])
    temporary.replace(path)
    scores = [sections.columns[columns[0]] for columns in COLUMNS]
    return Run(
        str(path),
        tuple(score.size for score in scores),
        # Copies: a view would keep the whole column alive.
        tuple(score[::SAMPLE_STRIDE].copy() for score in scores),
        tuple(ends),
        _weight_before(sections.entries),
    )


def restored(path: str, sizes: Sequence[int], numbers: Array) -> tuple[Run, Array]:
    """The run whose `index` is at the front of `numbers`, and the numbers behind it.

    Raises
    ------
    ValueError
        There are too few numbers.
    """
    blocks = [_blocks(size) for size in sizes]
    ends = [blocks[section] + 1 for section, own in enumerate(COLUMNS) for _ in own]
    lengths = [*blocks, *ends, blocks[-1]]
    if numbers.size < sum(lengths):
        raise ValueError(f"expected {sum(lengths):,} numbers, found {numbers.size:,}")
    *parts, rest = np.split(numbers, np.cumsum(lengths))
    samples, own, before = parts[: len(blocks)], parts[len(blocks) : -1], parts[-1]
    places = tuple(part.astype(np.uint32) for part in own)
    return Run(path, tuple(sizes), tuple(samples), places, before), rest


def _blocks(numbers: int) -> int:
    return -(-numbers // SAMPLE_STRIDE)


def _write_all(file: FileIO, words: Words) -> None:
    rest = words.data.cast("B")
    while rest:
        rest = rest[file.write(rest) :]


def _weight_before(entries: Points) -> Array:
    """See `Run.before`."""
    starts = np.arange(0, entries.score.size, SAMPLE_STRIDE)
    sums = np.add.reduceat(entries.weight, starts) if starts.size else starts
    return np.concatenate([np.zeros(min(1, starts.size)), np.cumsum(sums[:-1])])


def read_run(run: Run) -> Sections:
    """All that a run holds."""
    kept = []
    with RunFile(run.path) as file:
        for own, size in zip(COLUMNS, run.sizes, strict=True):
            out: Words = np.empty((size, len(own)), np.uint64)
            file.read([run.ends[column][[0, -1]].tolist() for column in own], -np.inf, np.inf, out, 0)
            kept.append([np.ascontiguousarray(column) for column in out.view(np.float64).T])
    negatives, positives, rows, entries = kept
    return Sections(negatives[0], positives[0], SignedRows(*rows), Points(*entries))


class RunFile:
    """An open run file.

    Not mapped into memory: the pages of all runs together would count as the process's.
    """

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("rb", buffering=0)  # noqa: SIM115 - closed by __exit__
        self._words: Words = np.empty(0, np.uint64)

    def __enter__(self) -> RunFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(
        self, spans: Sequence[Sequence[int]], low: float, high: float, out: Words, start: int
    ) -> tuple[int, int]:
        """Read the rows with low <= score < high of some blocks of a section.

        Parameters
        ----------
        spans : the words of these blocks in each column of the section
        out : uint64 array, shape (rows, columns): bits of doubles, filled from row `start` on; all rows of the blocks
            need room.

        Returns
        -------
        first : how many rows of the section have lower scores, if those before the blocks have. stop : the row of
        `out` behind the last one
        """
        scores, *others = spans
        words = self._load(*scores)
        first, stop = packing.unpack_ascending(*words, _key(low), _key(high), out, 0, start)
        for column, span in enumerate(others, start=1):
            words = self._load(*span)
            packing.unpack(*words, first, out, column, start, stop)
        return first, stop

    def _load(self, start: int, stop: int) -> tuple[Words, int]:
        """Read the words from start to stop; return them, with padding behind, and how many they are."""
        size = stop - start
        if self._words.size < size + packing.PADDING:
            self._words = np.zeros(size + packing.PADDING, np.uint64)
        view = self._words[:size].data.cast("B")
        at = 8 * start
        while view:
            count = os.preadv(self._file.fileno(), [view], at)
            if count == 0:
                raise OSError(f"{self._file.name}: expected {8 * stop:,} bytes, found {at:,}")
            view, at = view[count:], at + count
        return self._words, size


def _key(bound: float) -> np.uint64:
    """The whole number that stands for a score in a packed column."""
    return np.uint64(ordinal(np.array([bound + 0.0]).view(np.uint64)[0]))


def blocks_between(run: Run, section: int, edges: Array) -> tuple[Integers, Integers]:
    """Which blocks of a section of a run may hold scores between edges, from the samples alone.

    Parameters
    ----------
    edges : float64 array, shape (buckets + 1,), ascending

    Returns
    -------
    start, stop : int64 arrays, shape (buckets,): what is looked for lies in blocks start, ..., stop - 1.
    """
    at = np.searchsorted(run.samples[section], edges)
    return np.maximum(at[:-1] - 1, 0), at[1:]
