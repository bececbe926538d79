"""Loops over the bytes of a Parquet column chunk whose pages hold indices of a dictionary.

Bytes may be damaged: nothing is read or written outside the arrays, and -1 or False is returned for unexpected bytes.
Sources: the Apache Parquet format (parquet.thrift, Encodings.md) and Thrift's compact protocol.
"""

import numpy as np

from calibrators.core.compiled import kernel

PADDING = 8
"""Bytes beyond the last page that loops may read."""

ABSENT = -1 << 40
"""Stands for a field that is absent."""

START, TYPE, SIZE, COMPRESSED, CHECKSUM, VALUES, ENCODING, LEVELS = range(8)
"""Columns of `read_headers`. From TYPE to CHECKSUM they are the numbers of a page header's fields; then follow those
of its struct, for a dictionary or a page of version 1: number of values, encoding, encoding of levels."""

_BOOLEANS = 1, 2
_I32, _I64, _BINARY, _STRUCT = 5, 6, 8, 12
_DATA_HEADER, _DICTIONARY_HEADER = 5, 7
_MOST_BITS = 24
_LONGEST_RUN = 1 << 32


@kernel
def read_headers(data, end, pages):
    """Read the page headers of a column chunk and return their number.

    Parameters
    ----------
    data : uint8 array, shape (end + PADDING,) or longer
    pages : int64 array, shape (most pages, 8): filled with the first byte after each header, and its fields
    """
    number = np.zeros(4, np.int64)
    at = p = 0
    while at < end and p < pages.shape[0]:
        pages[p] = ABSENT
        depth = number[0] = 0
        while depth >= 0:
            if at >= end:
                return -1
            head = np.int64(data[at])
            at += 1
            kind = head & 15
            if head == 0:
                depth -= 1
                continue
            if head < 16 or depth == number.size - 1:
                return -1
            number[depth] += head >> 4
            if kind == _STRUCT:
                depth += 1
                number[depth] = 0
            elif kind in (_I32, _I64, _BINARY):
                value, at = _varint(data, at)
                if kind == _BINARY:
                    if not 0 <= value <= end:
                        return -1
                    at += value
                    continue
                value = (value >> 1) ^ -(value & 1)
                if depth == 0 and number[0] <= CHECKSUM:
                    pages[p, number[0]] = value
                elif depth == 1 and number[0] in (_DATA_HEADER, _DICTIONARY_HEADER) and number[1] <= 3:
                    pages[p, CHECKSUM + number[1]] = value
            elif kind not in _BOOLEANS:
                return -1
        pages[p, START] = at
        if not 0 <= pages[p, COMPRESSED] <= end - at:
            return -1
        at += pages[p, COMPRESSED]
        p += 1
    return p if at == end else -1


@kernel(inline=True)
def _varint(data, at):
    """Read an unsigned number; return it and its end, at most ten bytes later."""
    value = np.int64(0)
    for shift in range(0, 70, 7):
        if at >= data.size:
            break
        byte = np.int64(data[at])
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            break
    return value, at


@kernel
def count_pairs(first, second, counts):
    """Count the pairs of indices of two columns with the same rows; tell whether all pages could be read.

    Parameters
    ----------
    first, second : columns without nulls, as tuples

        - bytes: uint8 array, uncompressed pages of version 1, and PADDING bytes
        - pages: int64 array, shape (pages, 2): end of each page, and its number of values
        - leveled: whether pages begin with definition levels, of one bit each
        - indices: uint32 array with room for the values of any page, overwritten
    counts : int64 array, shape (values of the first column, values of the second), added to
    """
    flat, inner, size = counts.reshape(-1), np.uint64(counts.shape[1]), np.uint64(counts.size)
    page, other_page, i, j, n, m = 0, 0, 0, 0, 0, 0
    while True:
        if i == n and page < first[1].shape[0]:
            i, n = 0, _unpack_page(first, page)
            page += 1
        elif j == m and other_page < second[1].shape[0]:
            j, m = 0, _unpack_page(second, other_page)
            other_page += 1
        elif i == n or j == m:
            return i == n and j == m
        if n < 0 or m < 0:
            return False
        common = min(n - i, m - j)
        one, other = first[3][i : i + common], second[3][j : j + common]
        for k in range(common):
            pair = np.uint64(one[k]) * inner + np.uint64(other[k])
            if other[k] >= inner or pair >= size:
                return False
            flat[pair] += 1
        i += common
        j += common


@kernel
def _unpack_page(column, page):
    """Unpack the indices of a page and return their number; -1 if it has nulls or reads differently."""
    data, pages, leveled, out = column
    at = pages[page - 1, 0] if page else 0
    end, n = pages[page]
    if leveled:
        size = np.int64(0)
        for i in range(4):
            size |= np.int64(data[at + i]) << (8 * i)
        at += 4
        if size >= end - at or not _all_one(data, at, at + size, n):
            return -1
        at += size
    if n > out.size or at >= end or data[at] > _MOST_BITS:
        return -1
    return n if _unpack_runs(data, at + 1, end, np.int64(data[at]), out[:n]) else -1


@kernel
def _all_one(data, at, end, n):
    """Tell whether n levels are 1, in repeated runs."""
    while n > 0 and at < end:
        run, at = _varint(data, at)
        if run & 1 or run <= 0 or data[at] != 1:
            return False
        n -= run >> 1
        at += 1
    return n <= 0


@kernel
def _unpack_runs(data, at, end, width, out):
    """Unpack numbers of `width` bits from runs, repeated or bit-packed; tell whether they end with `out`, at `end`."""
    mask = np.uint32((1 << width) - 1)
    m = 0
    while m < out.size:
        if at >= end:
            return False
        run, at = _varint(data, at)
        count = run >> 1
        size = count * width if run & 1 else (width + 7) // 8
        if not 0 < count <= _LONGEST_RUN or size > end - at:
            return False
        if run & 1:
            packed, target = data[at:], out[m : m + 8 * count]
            for i in range(target.size):
                bit = np.uint64(i) * np.uint64(width)
                j = bit >> np.uint64(3)
                # The compiler makes one load of these four.
                x = np.uint32(packed[j]) | np.uint32(packed[j + np.uint64(1)]) << np.uint32(8)
                x |= np.uint32(packed[j + np.uint64(2)]) << np.uint32(16)
                x |= np.uint32(packed[j + np.uint64(3)]) << np.uint32(24)
                target[i] = (x >> np.uint32(bit & np.uint64(7))) & mask
        else:
            target = out[m : m + count]
            x = np.uint32(0)
            for i in range(size):
                x |= np.uint32(data[at + i]) << np.uint32(8 * i)
            for i in range(target.size):
                target[i] = x
        m += target.size
        at += size
    return at == end
