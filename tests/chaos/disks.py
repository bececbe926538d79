"""Commands on a small file system (tmpfs, which root may mount) with little space or few names left."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from chaos.scenarios import SCENARIOS, Stage
from chaos.tracing import forked
from chaos.trials import TEMPORARY, Trial, judged

COMMANDS = (*(name for name in SCENARIOS if name.startswith("follow")), "monitor", "score")
_BLOCK = 4096


@contextmanager
def _mounted(folder: Path) -> Iterator[bool]:
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=24m,nr_inodes=4k", "chaos", str(folder)]
    mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=False)


def _fill(filler: Path, left: int, kind: str) -> None:
    """Leave so many blocks, or names, on a file system."""
    filler.mkdir()
    if kind == "no names are left":
        for i in range(max(0, os.statvfs(filler).f_ffree - left)):
            (filler / str(i)).touch()
        return
    with (filler / "blocks").open("wb", buffering=0) as file:
        for _ in range(max(0, os.statvfs(filler).f_bavail - left)):
            file.write(bytes(_BLOCK))


def disks(trials: int, seed: int, folder: Path) -> Iterator[Trial]:
    """Each command so many times on a full disk, which has space again when the command is run again."""
    random = np.random.default_rng(seed)
    with _mounted(folder / "small") as mounted:
        for name in COMMANDS if mounted else ():
            stage = Stage(SCENARIOS[name], folder / "small")
            stage.warm()
            for kind in ("no space is left", "no names are left"):
                for _ in range(trials):
                    left = int(random.integers(16))
                    filler = folder / "small" / "filler"
                    stage.reset()
                    _fill(filler, left, kind)
                    ended = forked(stage.command)
                    shutil.rmtree(filler)
                    yield judged(stage, kind, f"but {left}", ended, (TEMPORARY,))
