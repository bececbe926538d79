"""The exchange between ranges of scores and segments: what a merged range leaves of each segment, and who gathers it.

A file holds items of some numbers each (points, or pooled blocks of them), segment after segment, ascending in each:
packed column by column (`pipeline._kernels.packing`), then where each column's blocks begin, then where each segment's
items begin. A segment's items of all ranges, one after the other, ascend.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from calibrators.passes import Array, Points
from pipeline._kernels import packing
from pipeline._kernels import tags as kernels
from pipeline.execution import tasks
from pipeline.files.blobs import Blob, each, write_blob
from pipeline.sort.run_files import Integers, Words

STRIDE = 1024
"""Items of a packed block."""


class Exchanged(NamedTuple):
    """A file of items. first : the lowest score of any. words : of the packed columns together."""

    path: str
    items: int
    columns: int
    segments: int
    words: int

    @property
    def _blocks(self) -> int:
        return -(-self.items // STRIDE)

    def starts(self, first: int, last: int) -> Integers:
        """Where the items of segments first, ..., last begin, and the end."""
        starts = np.empty(last - first + 2, np.int64)
        at = self.words + self.columns * (self._blocks + 1) + first
        with Blob(self.path) as blob:
            blob.read(8 * at, starts.data.cast("B"))
        return starts

    def read(self, first: int, last: int) -> tuple[list[Array], Integers]:
        """The items of segments first, ..., last, a column each, and where each segment's begin among them."""
        starts = self.starts(first, last)
        return self.slice(int(starts[0]), int(starts[-1])), starts - starts[0]

    def slice(self, start: int, stop: int) -> list[Array]:
        """Items start, ..., stop - 1."""
        columns = [np.empty((stop - start, 1), np.uint64) for _ in range(self.columns)]
        if stop > start:
            blocks = slice(start // STRIDE, -(-stop // STRIDE) + 1)
            with Blob(self.path) as blob:
                for i, column in enumerate(columns):
                    ends = np.empty(blocks.stop - blocks.start, np.int64)
                    at = self.words + i * (self._blocks + 1) + blocks.start
                    blob.read(8 * at, ends.data.cast("B"))
                    size = int(ends[-1] - ends[0])
                    words = np.zeros(size + packing.PADDING, np.uint64)
                    if size:
                        blob.read(8 * int(ends[0]), words[:size].data.cast("B"))
                    packing.unpack(words, size, start, column, 0, 0, stop - start)
        return [column.reshape(-1).view(np.float64) for column in columns]


def write_exchange(path: str, columns: Sequence[Array], starts: Integers) -> Exchanged:
    """Write a range's items. starts : of each segment's, and the end; shape (segments + 1,)."""
    items = columns[0].size
    packed: list[Words] = []
    ends = np.zeros((len(columns), -(-items // STRIDE) + 1), np.int64)
    at = 0
    for column, own in zip(columns, ends, strict=True):
        words: Words = np.empty(items + (packing.HEADER + 1) * (own.size - 1), np.uint64)
        packing.pack(np.ascontiguousarray(column).view(np.uint64), STRIDE, words, own)
        packed.append(words[: own[-1]].copy())
        own += at
        at += packed[-1].size
    write_blob(path, [*(words.data for words in packed), ends.data, np.ascontiguousarray(starts).data])
    return Exchanged(path, items, len(columns), starts.size - 1, at)


class Slices(NamedTuple):
    """Items of some segments, segment after segment: columns of float64, and where each segment begins, and the end.

    heaviest : see `ScoreTable`
    """

    columns: list[Array]
    starts: Integers
    heaviest: float = 1.0

    def points(self) -> Iterator[Points]:
        """Each segment's points, where items are points."""
        for start, stop in zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True):
            # Each is fitted: of thousands that takes long.
            tasks.check()
            yield Points(*(column[start:stop] for column in self.columns))


def gather(files: Sequence[Exchanged], first: int, last: int) -> Slices:
    """All items of segments first, ..., last. files : in the order of their ranges."""
    found = each(lambda file: file.read(first, last), files, files[0].path)
    counts = np.sum([np.diff(starts) for _, starts in found], axis=0, dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(counts)])
    columns = [np.empty(starts[-1]) for _ in range(files[0].columns)]
    for i, column in enumerate(columns):
        fill = starts[:-1].copy()
        for own, own_starts in found:
            kernels.place(own[i], own_starts, fill, column)
    return Slices(columns, starts)


def item_counts(files: Sequence[Exchanged]) -> Integers:
    """How many items each segment has in all."""
    total = np.zeros(files[0].segments, np.int64)
    for starts in each(lambda file: file.starts(0, file.segments - 1), files, files[0].path):
        total += np.diff(starts)
    return total
