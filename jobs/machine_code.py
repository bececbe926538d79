"""Wheels that bring machine code: `python -m jobs.machine_code WHEEL FOLDER`, which `make wheel` runs.

The code is compiled from the wheel's own sources for any processor of this one's kind (x86-64, say), without what only
newer ones have. It is found where Python, numpy, numba and llvmlite are of the same versions (see
`calibrators._kernels.kept_code`); elsewhere kernels are compiled as without it, so the wheel may be installed anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from calibrators._kernels.kept_code import ANY_PROCESSOR, MACHINE_CODE
from logcal.errors import ConfigError

_DATE = (2020, 1, 1, 0, 0, 0)
"""Of the files that are added: the oldest that all that reads archives can write is 1980."""


def build(wheel: Path, folder: Path, kernels: Sequence[Sequence[str]] | None = None) -> Path:
    """Write a wheel's copy that brings machine code, and return its path.

    Parameters
    ----------
    wheel : as `pip wheel` makes it.
    folder : where the copy is written to; its build tag names this Python and this kind of processor.
    kernels : names of kernels and the types of their arguments; None for all that jobs can meet, some minutes.

    Raises
    ------
    ConfigError
        The file is no wheel of this project, or nothing could be compiled from it.
    """
    with tempfile.TemporaryDirectory(prefix="logcal-wheel-") as place:
        unpacked, code = Path(place) / "wheel", Path(place) / "code"
        try:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(unpacked)
            (record,) = unpacked.glob("logcal-*.dist-info/RECORD")
        except (OSError, ValueError, zipfile.BadZipFile):
            raise ConfigError(
                f"expected a wheel of logcal, found {wheel}: make one with `pip wheel .`"
            ) from None
        _compile(unpacked, code, kernels)
        added = {
            _path_in_wheel(path.relative_to(code)): path.read_bytes() for path in sorted(code.rglob("*.nbc"))
        }
        if not added:
            raise ConfigError(f"expected kernels to compile in {wheel}, found none")
        return _write(wheel, folder, record.relative_to(unpacked).as_posix(), added)


def _compile(root: Path, cache: Path, kernels: Sequence[Sequence[str]] | None) -> None:
    """Compile what is in a folder, for any processor, in a process of its own."""
    if kernels is None:
        what = "sys.argv = ['logcal', 'warm']; from logcal.command import run; run()"
    else:
        what = f"from jobs.compile_ahead import compile_kernels; compile_kernels({json.dumps(kernels)})"
    environment = {
        **os.environ,
        "NUMBA_CPU_NAME": ANY_PROCESSOR,
        "NUMBA_CPU_FEATURES": "",
        "LOGCAL_CACHE": str(cache),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(root)!r}); {what}"]
    done = subprocess.run(command, env=environment, check=False)
    if done.returncode:
        raise ConfigError("expected the wheel's kernels to be compiled, found the error above")


def _path_in_wheel(kept: Path) -> str:
    """Where a file of kept code belongs: beside the package whose module its folder is named after."""
    package = kept.parts[0].rpartition(".")[0].replace(".", "/")
    return f"{package}/{MACHINE_CODE}/{kept.as_posix()}"


def _write(wheel: Path, folder: Path, record: str, added: dict[str, bytes]) -> Path:
    """Copy an archive with more files, listed as wheels list theirs, under a name with a build tag."""
    tag = f"1_{sys.implementation.cache_tag}_{platform.machine()}".replace("-", "_")
    name, version, *rest = wheel.name.split("-")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "-".join([name, version, tag, *rest[-3:]])
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        info = record.replace("RECORD", "WHEEL")
        lines = [line for line in old.read(record).decode().splitlines() if not line.startswith(f"{info},")]
        described = old.read(info).decode().rstrip("\n") + f"\nBuild: {tag}\n"
        changed = {info: described.encode(), **added}
        for entry in old.infolist():
            if entry.filename not in (record, info):
                new.writestr(entry, old.read(entry))
        lines[:0] = [f"{name},{_digest(content)},{len(content)}" for name, content in changed.items()]
        changed[record] = ("\n".join(lines) + "\n").encode()
        for name, content in changed.items():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.external_attr = 0o644 << 16
            new.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return path


def _digest(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def main(wheel: str, folder: str) -> None:
    """Write the wheel and say where it is."""
    print(build(Path(wheel), Path(folder)))  # noqa: T201


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (ConfigError, TypeError) as error:
        sys.exit(f"jobs.machine_code: {error}")
