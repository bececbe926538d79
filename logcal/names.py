"""Encoding values: hash tables that number values in the order of their first appearance, and look them up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators.core.arrays import Codes, Integers
from calibrators.core.kernels import names as kernels


class Numbers:
    """Hash table from whole numbers to codes 0, 1, ...; it grows."""

    def __init__(self) -> None:
        self._count = 0
        self._numbers = np.empty(1 << 10, np.int64)
        self._new_slots()

    def _new_slots(self) -> None:
        size = 4 * self._numbers.size
        self._table = np.full(size, -1, np.int32), np.uint64(65 - size.bit_length()), self._numbers

    @property
    def numbers(self) -> Integers:
        """The encoded numbers, by code."""
        return self._numbers[: self._count]

    def __len__(self) -> int:
        return self._count

    def encode(self, values: Integers) -> Codes:
        """Return the codes of numbers; new numbers get the next codes in the order of their appearance."""
        codes, done = np.empty(values.size, np.int32), 0
        while True:
            done, self._count = kernels.number(values, done, self._table, self._count, True, codes)
            if done == values.size:
                return codes
            encoded = self.numbers
            self._numbers = np.concatenate([encoded, np.empty(3 * encoded.size, np.int64)])
            self._new_slots()
            kernels.number(encoded, 0, self._table, 0, True, np.empty(encoded.size, np.int32))

    def find(self, values: Integers) -> Codes:
        """Return the codes of numbers, -1 for numbers without a code."""
        codes = np.full(values.size, -1, np.int32)
        kernels.number(values, 0, self._table, self._count, False, codes)
        return codes


def hash_texts(texts: pa.Array) -> npt.NDArray[np.uint64]:
    """Hash texts, equally in every process; the hash of a null is undefined."""
    hashes = np.empty(len(texts), np.uint64)
    kernels.hash_texts(*_bytes_of(texts), hashes)
    return hashes


def _bytes_of(texts: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
    """Return the offsets of texts, shape (texts + 1,), and the bytes of all texts."""
    kind = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    _, offsets, data = texts.buffers()
    data = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    if offsets is None or len(texts) == 0:
        return np.zeros(1, kind), data
    return np.frombuffer(offsets, kind)[texts.offset : texts.offset + len(texts) + 1], data


class Texts:
    """Hash table from texts to codes 0, 1, ...; it grows."""

    def __init__(self) -> None:
        self._used = np.zeros(2, np.int64)
        self._positions = np.empty(1 << 8, np.int64)
        self._words = np.empty(1 << 12, np.uint64)
        self._new_slots()

    def __len__(self) -> int:
        return int(self._used[0])

    def _new_slots(self) -> None:
        size = 2 * self._positions.size
        self._shift = np.uint64(65 - size.bit_length())
        # Offsets of 32 bits, in words of 8 bytes, reach 32 GiB of texts.
        self._slots = np.zeros(size, np.uint64)
        kernels.rehash(self._words, self._positions[: len(self)], -1, self._slots, self._shift)

    def encode(self, texts: pa.Array) -> Codes:
        """Return the codes of texts without nulls; new texts get the next codes in the order of their appearance."""
        return self._codes(texts, adding=True)

    def find(self, texts: pa.Array) -> Codes:
        """Return the codes of texts, -1 for texts without a code; the code of a null is undefined."""
        return self._codes(texts, adding=False)

    def _codes(self, texts: pa.Array, *, adding: bool) -> Codes:
        starts, data = _bytes_of(texts)
        codes = np.empty(len(texts), np.int32)
        done = 0
        while True:
            table = (self._slots, self._shift, self._words, self._positions, self._used)
            done, _ = kernels.number_text(starts, data, done, table, adding, codes)
            if done == codes.size:
                return codes
            self._grow(int(starts[done + 1] - starts[done]))

    def _grow(self, size: int) -> None:
        """Make room for a text of `size` bytes."""
        count, end = self._used
        needed = 4 + (size + 7) // 8  # reading ahead looks at two words beyond
        if end + needed > self._words.size:
            self._words = np.concatenate([self._words[:end], np.empty(3 * end + needed, np.uint64)])
        if count == self._positions.size:
            self._positions = np.concatenate([self._positions, np.empty(3 * count, np.int64)])
            self._new_slots()

    def values(self, start: int, stop: int) -> pa.Array:
        """Return the texts of the codes start, ..., stop - 1."""
        positions = self._positions[start:stop]
        sizes = (self._words[positions + 1] >> np.uint64(32)).astype(np.int64)
        starts = np.concatenate([[0], np.cumsum(sizes)])
        data = np.empty(starts[-1], np.uint8)
        kernels.bytes_of_texts(self._words, positions, starts, data)
        offsets = pa.py_buffer(starts.astype(np.int32))
        return pa.Array.from_buffers(pa.string(), positions.size, [None, offsets, pa.py_buffer(data)])


class Keys:
    """Hash tables from keys of several columns to codes 0, 1, ...

    tables : a `Numbers` or `Texts` for each column
    """

    def __init__(self, tables: Sequence[Any]) -> None:
        self.tables = list(tables)
        # From the second column on: codes of pairs (code of the columns before, code of the column).
        self.pairs = [Numbers() for _ in self.tables[1:]]

    def __len__(self) -> int:
        return len((self.pairs or self.tables)[-1])

    def encode(self, columns: Sequence[Any]) -> Codes:
        """Return the codes of keys; new keys get the next codes."""
        codes: Codes = self.tables[0].encode(columns[0])
        for table, pairs, column in zip(self.tables[1:], self.pairs, columns[1:], strict=True):
            codes = pairs.encode((codes.astype(np.int64) << 32) | table.encode(column))
        return codes

    def members(self, codes: Integers) -> list[Integers]:
        """Return the codes of the keys' values, an array for each column."""
        members = []
        for pairs in reversed(self.pairs):
            both = pairs.numbers[codes]
            members.append(both & 0xFFFFFFFF)
            codes = both >> 32
        return [codes, *reversed(members)]
