"""Hashes of integers, for random draws that depend only on the hashed values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Hash 64-bit integers by the finaliser of splitmix64 (Steele, Lea & Flood 2014)."""
    with np.errstate(over="ignore"):
        x = values ^ (values >> np.uint64(30))
        x = x * np.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> np.uint64(27)
        x = x * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
        return x
