"""Walking over values in Thrift's compact protocol, such as Parquet footers of some megabytes."""

import numpy as np

from calibrators._kernels.compiled import kernel

_DEEPEST = 64
_IN_STRUCT = -1


@kernel
def _varint(data, at):
    """An unsigned number and where it ends; -1 where it does not end, or is too large."""
    value = np.int64(0)
    shift = 0
    while at < data.size and shift < 63:
        byte = np.int64(data[at])
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return np.int64(-1), at


@kernel
def element_ends(data, at, kind, ends):
    """Find the ends of consecutive values of a list.

    Parameters
    ----------
    data : uint8 array: the bytes.
    at : where the first one starts.
    kind : their Thrift type.
    ends : int64 array, shape (values,): filled.

    Returns
    -------
    bool
        Whether all could be walked over; not so where there are maps, or the bytes end before.
    """
    # Of each open collection: the type of its elements, or _IN_STRUCT; and how many are left.
    kinds = np.empty(_DEEPEST, np.int64)
    left = np.empty(_DEEPEST, np.int64)
    size = data.size
    for i in range(ends.size):
        depth = 0
        value = kind
        in_list = True
        while value != 0:
            if value <= 2:
                at += 1 if in_list else 0
            elif value == 3:
                at += 1
            elif value <= 6:
                while at < size and data[at] >= 0x80:
                    at += 1
                at += 1
            elif value == 7:
                at += 8
            elif value == 13:
                at += 16
            elif value == 8:
                length, at = _varint(data, at)
                if length < 0 or length > size - at:
                    return False
                at += length
            elif depth == _DEEPEST or at >= size:
                return False
            elif value == 12:
                kinds[depth] = _IN_STRUCT
                depth += 1
            elif value <= 10:
                head = np.int64(data[at])
                at += 1
                left[depth] = head >> 4
                kinds[depth] = head & 0x0F
                if left[depth] == 15:
                    left[depth], at = _varint(data, at)
                if left[depth] < 0 or (kinds[depth] == 0 and left[depth] > 0):
                    return False
                depth += 1
            else:
                return False
            if at > size:
                return False
            # What comes next; 0 where the value is at its end.
            value = 0
            while depth > 0 and value == 0:
                if kinds[depth - 1] != _IN_STRUCT:
                    in_list = True
                    if left[depth - 1] == 0:
                        depth -= 1
                    else:
                        left[depth - 1] -= 1
                        value = kinds[depth - 1]
                    continue
                if at >= size:
                    return False
                in_list = False
                head = np.int64(data[at])
                at += 1
                if head == 0:
                    depth -= 1
                    continue
                if head < 0x10:
                    while at < size and data[at] >= 0x80:
                        at += 1
                    at += 1
                value = head & 0x0F
                if value == 0:
                    return False
        ends[i] = at
    return True


@kernel
def fields(data, at, found):
    """Read the fields of a struct.

    Parameters
    ----------
    data : uint8 array: the bytes.
    at : where its first field starts.
    found : int64 array, shape (most, 4): of each field its number, its type, where its value starts, and where it
        ends; filled.

    Returns
    -------
    number of fields, and where the struct ends; -1 and anything where it could not be walked over (see
    `element_ends`), or has more than `most` fields
    """
    last = np.empty(1, np.int64)
    number = np.int64(0)
    count = 0
    while at < data.size:
        head = np.int64(data[at])
        at += 1
        if head == 0:
            return count, at
        if head >= 0x10:
            number += head >> 4
        else:
            coded, at = _varint(data, at)
            if coded < 0:
                break
            number = (coded >> 1) ^ -(coded & 1)
        kind = head & 0x0F
        end = at
        if kind > 2:
            if not element_ends(data, at, kind, last):
                break
            end = last[0]
        if count == found.shape[0]:
            break
        found[count, 0], found[count, 1], found[count, 2], found[count, 3] = number, kind, at, end
        count += 1
        at = end
    return -1, at
