"""Run every check of the Makefile once, also after a failure, and print a line for each: `make everything`.

A target whose needs are missing here is left out, and named.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]


def _network() -> str | None:
    """Return what is missing for targets that download advisories."""
    try:
        socket.getaddrinfo("api.osv.dev", 443)
    except OSError:
        return "no network"
    return None


def _slurm() -> str | None:
    return None if shutil.which("slurmctld") or os.geteuid() == 0 else "no Slurm, and not root to install it"


def _java() -> str | None:
    return None if shutil.which("java") else "no Java for Spark"


CHECKS: dict[str, Callable[[], str | None] | None] = {
    "test": None,
    "system": None,
    "docs": None,
    "latest": None,
    "lowest": None,
    "recipes": _java,
    "slurm": _slurm,
    "boundscheck": None,
    "wheel": None,
    "reproduce-quick": None,
    "audit": _network,
    "chaos": None,
    "matrix": None,
}
"""Targets, and what tells that one must be left out."""


def main(targets: list[str]) -> int:
    """Run the targets, or all; return the number of failures."""
    failed = 0
    logs = ROOT / "build" / "everything"
    logs.mkdir(parents=True, exist_ok=True)
    for target in targets or CHECKS:
        needs = CHECKS[target]
        missing = needs() if needs else None
        if missing:
            print(f"{target}: left out: {missing}", flush=True)
            continue
        started = time.monotonic()
        with (logs / f"{target}.txt").open("w") as log:
            make = ["make", "--silent", target]
            code = subprocess.run(make, cwd=ROOT, stdout=log, stderr=log, check=False).returncode
        lines = (logs / f"{target}.txt").read_text("utf-8", "replace").splitlines()
        last = next(
            (line.strip(" =") for line in reversed(lines) if line and not line.startswith("make")), ""
        )
        failed += code != 0
        outcome = "passed" if code == 0 else f"FAILED ({logs.relative_to(ROOT) / target}.txt)"
        print(f"{target}: {outcome}, {(time.monotonic() - started) / 60:.1f} min; {last[:100]}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
