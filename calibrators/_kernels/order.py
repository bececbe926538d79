"""The order of doubles by way of whole numbers."""

import numpy as np

from calibrators._kernels.compiled import kernel

_TOP = np.uint64(1) << np.uint64(63)


@kernel(inline=True)
def ordinal(bits):
    """The bits of a double as a whole number in the order of the doubles."""
    # The bits of negative numbers ascend as the numbers descend.
    return ~bits if bits & _TOP else bits | _TOP


@kernel(inline=True)
def bits_of(number):
    """The bits of the double that `ordinal` made a number of."""
    return number ^ _TOP if number & _TOP else ~number
