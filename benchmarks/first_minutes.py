"""Time of the first steps in a fresh clone and environment, with nothing compiled: make first-minutes.

Prints wall and processor seconds of the set-up and of the first and second runs, which README and docs/start.md state.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _measure import print_machine
from make_log import LogSpec, write_log

ROOT = Path(__file__).parents[1]


def timed(name: str, command: list[str], folder: Path, **variables: str) -> None:
    """Run a command, and print its wall and processor time."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=folder, env={**os.environ, **variables}, check=True, capture_output=True)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - begun
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{name:44s} {wall:7.1f} s {cpu:7.1f} processor s", flush=True)


def main() -> None:
    """Clone, install and run."""
    print_machine()
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        timed("clone", ["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", "logcal"], folder)
        timed("environment", [sys.executable, "-m", "venv", "env"], folder)
        timed("pip install .", [str(folder / "env/bin/pip"), "install", "--quiet", "./logcal"], folder)
        logcal = str(folder / "env/bin/logcal")
        write_log(folder / "log", LogSpec(rows=200_000, files=4, row_groups=1, tie_share=0.1))
        fit = [logcal, "fit", "--set", "log.path=log", "--set", "store.path=store", "--set"]
        timed("first fit, 200,000 rows", [*fit, "store.table=a"], folder, LOGCAL_CACHE=f"{root}/one")
        timed("second fit", [*fit, "store.table=b"], folder, LOGCAL_CACHE=f"{root}/one")
        timed(
            "first demo, nothing compiled",
            [logcal, "demo", "--output", "d"],
            folder,
            LOGCAL_CACHE=f"{root}/two",
        )
        timed("second demo", [logcal, "demo", "--output", "e"], folder, LOGCAL_CACHE=f"{root}/two")
        timed("logcal warm", [logcal, "warm"], folder, LOGCAL_CACHE=f"{root}/three")


if __name__ == "__main__":
    main()
