"""Which of numpy's vector instructions a command does without: those that make its sort slow on this processor."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import MutableMapping
from pathlib import Path

_DISABLE, _ENABLE = "NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES"

_CPUS = Path("/proc/cpuinfo")

_FAMILY_OF_ZEN_4 = 0x19
"""AMD's family of Zen 3 and Zen 4, of which only the latter has AVX-512."""


def sort_fast(environment: MutableMapping[str, str] = os.environ) -> None:
    """Have numpy sort with AVX2 on AMD's Zen 4, in this process and those that it starts, if numpy is not loaded yet.

    numpy's sort writes what it has compared with an AVX-512 instruction, 'compress' into memory, that this processor
    (EPYC 9004, Ryzen 7000) takes over a hundred cycles for: a sort of float64 takes five times as long as with AVX2.
    What a user has set stays, and where numpy's version cannot be told nothing is set.
    """
    if _DISABLE in environment or _ENABLE in environment or not _is_zen_4(_first_cpu()):
        return
    features = _features_of_sort(_numpy_version())
    if features:
        environment[_DISABLE] = features


def _first_cpu() -> str:
    """What Linux says of the first processor; nothing elsewhere."""
    try:
        with _CPUS.open("rb") as file:
            return file.read(4096).decode("ascii", "replace").partition("\n\n")[0]
    except OSError:
        return ""


def _is_zen_4(cpu: str) -> bool:
    facts = {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in cpu.splitlines())
    }
    return (
        facts.get("vendor_id") == "AuthenticAMD"
        and facts.get("cpu family") == str(_FAMILY_OF_ZEN_4)
        and "avx512f" in facts.get("flags", "").split()
    )


def _numpy_version() -> tuple[int, int] | None:
    """The version of numpy, without loading it: that takes longer than all else here, and would be too late."""
    spec = importlib.util.find_spec("numpy")
    if spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text("utf-8")
    except OSError:
        return None
    found = re.search(r'^version = "(\d+)\.(\d+)', text, re.MULTILINE)
    return (int(found[1]), int(found[2])) if found else None


def _features_of_sort(version: tuple[int, int] | None) -> str | None:
    """The names, which numpy warns of where it does not know them, of what its sorts have AVX-512 by."""
    if version is None:
        return None
    return "X86_V4" if version >= (2, 4) else "AVX512F AVX512_SKX"
