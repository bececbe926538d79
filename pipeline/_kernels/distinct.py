"""Dictionary encoding of doubles, batch after batch, that gives up early where it does not pay."""

import numpy as np

from calibrators._kernels.compiled import kernel

_MULTIPLIER = np.uint64(
    0x9E3779B97F4A7C15
)  # 2**64 / golden ratio: spreads neighbouring doubles over the slots
_EMPTY = -1


@kernel
def encode(bits, slots, shift, dictionary, used, limit, codes):
    """Replace values by their places in a dictionary that grows in order of appearance.

    Parameters
    ----------
    bits : uint64 array, shape (n,): the values' bits.
    slots : int32 array, shape (2**k,), at least twice `limit`: open-addressing hash table, -1 where empty.
    shift : 64 - k.
    dictionary : uint64 array, shape (limit,) or more; dictionary[:used] is filled.
    codes : unsigned integer array, shape (n,): filled.

    Returns
    -------
    int
        The new length of the dictionary, or -1 when it would pass `limit`: then codes are incomplete.
    """
    mask = np.uint64(slots.size - 1)
    for i in range(bits.size):
        value = bits[i]
        slot = (value * _MULTIPLIER) >> shift
        while True:
            code = slots[np.int64(slot)]
            if code == _EMPTY:
                if used == limit:
                    return -1
                dictionary[used] = value
                slots[np.int64(slot)] = used
                code = used
                used += 1
                break
            if dictionary[code] == value:
                break
            slot = (slot + np.uint64(1)) & mask
        codes[i] = code
    return used


@kernel
def pack(codes, width, out):
    """Pack codes of `width` <= 16 bits side by side, the lowest bits first.

    codes : uint16 array, shape (n,).
    out : uint32 array, shape (ceil(n * width / 32),): filled.
    """
    held = np.uint64(0)
    count = 0
    j = 0
    for i in range(codes.size):
        held |= np.uint64(codes[i]) << np.uint64(count)
        count += width
        if count >= 32:
            out[j] = np.uint32(held & np.uint64(0xFFFFFFFF))
            held >>= np.uint64(32)
            count -= 32
            j += 1
    if count > 0:
        out[j] = np.uint32(held)
