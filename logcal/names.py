"""Giving values codes in the order of their first appearance, and finding the codes of known ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators._kernels import names as kernels

Integers = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]


class Numbers:
    """Whole numbers to codes: a hash table that grows."""

    def __init__(self) -> None:
        self._count = 0
        self._found = np.empty(1 << 10, np.int64)
        self._hash()

    def _hash(self) -> None:
        size = 4 * self._found.size
        self._shift = np.uint64(65 - size.bit_length())
        self._slots = np.full(size, -1, np.int32)

    @property
    def found(self) -> Integers:
        """The number of each code."""
        return self._found[: self._count]

    def __len__(self) -> int:
        return self._count

    def encode(self, values: Integers) -> Codes:
        """The codes of numbers; new ones get the next codes in the order of their appearance."""
        codes = np.empty(values.size, np.int32)
        done, self._count = kernels.number(
            values, 0, self._slots, self._shift, self._found, self._count, True, codes
        )
        while done < values.size:
            known = self.found
            self._found = np.concatenate([known, np.empty(3 * known.size, np.int64)])
            self._hash()
            kernels.number(
                known, 0, self._slots, self._shift, self._found, 0, True, np.empty(known.size, np.int32)
            )
            done, self._count = kernels.number(
                values, done, self._slots, self._shift, self._found, self._count, True, codes
            )
        return codes

    def find(self, values: Integers) -> Codes:
        """The codes of numbers, -1 for those that have none."""
        codes = np.full(values.size, -1, np.int32)
        kernels.number(values, 0, self._slots, self._shift, self._found, self._count, False, codes)
        return codes


def hash_texts(texts: pa.Array) -> npt.NDArray[np.uint64]:
    """Hashes of texts, the same in every process; of nulls, anything."""
    hashes = np.empty(len(texts), np.uint64)
    kernels.hash_texts(*_bytes_of(texts), hashes)
    return hashes


def _bytes_of(texts: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
    """Return the starts of texts in the bytes of all, and these."""
    kind = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    _, offsets, data = texts.buffers()
    letters = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    if offsets is None or len(texts) == 0:
        return np.zeros(1, kind), letters
    return np.frombuffer(offsets, kind)[texts.offset : texts.offset + len(texts) + 1], letters


class Texts:
    """Texts to codes: a hash table that grows; null has a code of its own where it has been asked for."""

    def __init__(self) -> None:
        self._null = -1
        self._used = np.zeros(2, np.int64)
        self._places = np.empty(1 << 8, np.int64)
        self._words = np.empty(1 << 12, np.uint64)
        self._hash()

    @property
    def count(self) -> int:
        """Number of codes."""
        return int(self._used[0])

    def _hash(self) -> None:
        size = 2 * self._places.size
        self._shift = np.uint64(65 - size.bit_length())
        # Offsets of 32 bits, in words of 8 bytes, reach 32 GiB of texts.
        self._slots = np.zeros(size, np.uint64)
        kernels.hash_again(self._words, self._places[: self.count], self._null, self._slots, self._shift)

    def encode(self, texts: pa.Array) -> Codes:
        """The codes of texts without nulls; new ones get the next codes in the order of their appearance."""
        return self._codes(texts, adding=True)

    def find(self, texts: pa.Array) -> Codes:
        """The codes of texts, -1 for those that have none; of nulls, anything."""
        return self._codes(texts, adding=False)

    def _codes(self, texts: pa.Array, *, adding: bool) -> Codes:
        starts, letters = _bytes_of(texts)
        codes = np.empty(len(texts), np.int32)
        done = 0
        while True:
            known = (self._words, self._places, self._used, adding, codes)
            done, _ = kernels.number_text(starts, letters, done, self._slots, self._shift, *known)
            if done == codes.size:
                return codes
            self._grow(int(starts[done + 1] - starts[done]))

    def null(self) -> int:
        """The code of null."""
        if self._null < 0:
            self._grow(0)
            # As an empty text that no search finds.
            count, end = self._used
            self._words[end : end + 2] = 0
            self._places[count] = end
            self._used += (1, 2)
            self._null = int(count)
        return self._null

    def _grow(self, size: int) -> None:
        """Make room for a text of so many bytes."""
        count, end = self._used
        needed = 4 + (size + 7) // 8  # reading ahead looks at two words beyond
        if end + needed > self._words.size:
            self._words = np.concatenate([self._words[:end], np.empty(3 * end + needed, np.uint64)])
        if count == self._places.size:
            self._places = np.concatenate([self._places, np.empty(3 * count, np.int64)])
            self._hash()

    def values(self, start: int, stop: int) -> pa.Array:
        """The texts of codes start, ..., stop - 1."""
        return self._values(self._places[start:stop], self._null - start)

    def values_of(self, codes: Integers) -> pa.Array:
        """The texts of codes, each once at most."""
        nothing = np.flatnonzero(codes == self._null)
        return self._values(self._places[codes], int(nothing[0]) if nothing.size else -1)

    def _values(self, places: Integers, nothing: int) -> pa.Array:
        """The texts at places among the words. nothing : which of them is null, if any."""
        sizes = (self._words[places + 1] >> np.uint64(32)).astype(np.int64)
        starts = np.concatenate([[0], np.cumsum(sizes)])
        data = np.empty(starts[-1], np.uint8)
        kernels.bytes_of_texts(self._words, places, starts, data)
        valid = None
        if 0 <= nothing < places.size:
            valid = pa.py_buffer(np.packbits(np.arange(places.size) != nothing, bitorder="little"))
        offsets = pa.py_buffer(starts.astype(np.int32))
        return pa.Array.from_buffers(pa.string(), places.size, [valid, offsets, pa.py_buffer(data)])
