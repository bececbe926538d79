"""The natural logarithm, the same to the last bit on every machine.

Built from additions, multiplications and divisions, which IEEE 754 rounds correctly; the logarithms of numpy and of C
libraries differ between processors in their last bit. log(x) as in Sun's fdlibm (e_log.c): x = 2**k (1 + f) with
sqrt(1/2) <= 1 + f < sqrt(2), and a polynomial in s = f / (2 + f). Without branches, so that a processor takes several
at a time.
"""

import numpy as np

from calibrators._kernels.compiled import kernel

_LN2_HIGH = 6.93147180369123816490e-01  # its last 32 bits are zero, so that k times it is exact
_LN2_LOW = 1.90821492927058770002e-10
_L1 = 6.666666666666735130e-01
_L2 = 3.999999999940941908e-01
_L3 = 2.857142874366239149e-01
_L4 = 2.222219843214978396e-01
_L5 = 1.818357216161805012e-01
_L6 = 1.531383769920937332e-01
_L7 = 1.479819860511658591e-01

_ROOT_HALF = np.int64(0x3FE6A09E) << np.int64(32)
_UP = (np.int64(0x3FF00000) << np.int64(32)) - _ROOT_HALF
_MANTISSA = np.int64(0xFFFFFFFFFFFFF)


@kernel
def log_in_place(values, bits, exponents, n):
    """Replace the first n values, finite normal doubles > 0, by their logarithms, within one unit in the last place.

    bits : the memory of `values` as int64. exponents : float64 scratch of the same shape.
    """
    for i in range(n):
        b = bits[i] + _UP
        exponents[i] = np.float64((b >> 52) - 1023)
        bits[i] = (b & _MANTISSA) + _ROOT_HALF
    for i in range(n):
        f = values[i] - 1.0
        half = 0.5 * f * f
        s = f / (2.0 + f)
        z = s * s
        w = z * z
        even = w * (_L2 + w * (_L4 + w * _L6))
        odd = z * (_L1 + w * (_L3 + w * (_L5 + w * _L7)))
        k = exponents[i]
        values[i] = s * (half + (odd + even)) + k * _LN2_LOW - half + f + k * _LN2_HIGH
