"""`make chaos`: every job disturbed for as long as it is told, and a table of what came of it.

python tests/chaos --seconds 600                     as long as that
python tests/chaos --trials 100                      so many kills of each job, and a quarter of all other trials
python tests/chaos --table RESULTS                   the table of results that earlier runs left
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from chaos import damaged_stores, disks, inputs, services, together
from chaos.scenarios import SCENARIOS, Stage
from chaos.tracing import possible, traced
from chaos.trials import AT_RANDOM, AT_WRITES, Trial

_IMPORTED = ("cli", "run", "fit", "score", "evaluate", "generate", "monitor", "compare", "follow", "tables")
_KINDS = (*AT_WRITES, *AT_RANDOM)
_ROUNDS = 4
"""How often a command with few calls has each disturbed in one way."""


def disturbed(name: str, trials: int, kinds: Iterable[str], seed: int, folder: Path) -> Iterator[Trial]:
    """Trials of one command: of each kind about so many, and of kills four times as many."""
    random = np.random.default_rng(seed)
    stage = Stage(SCENARIOS[name], folder)
    stage.warm()
    stage.reset()
    start = time.monotonic()
    calls = traced(stage.command, stage.place.root).calls
    seconds = time.monotonic() - start
    kills = 0
    for kind in kinds:
        wanted = 4 * trials if kind == "killed" else trials
        if kind in AT_WRITES:
            # A kill at a call is the same each time; what else is done there differs, and some calls do not suit.
            rounds = range(1 if kind == "killed" else _ROUNDS)
            count = 0
            for i in (i for _ in rounds for i in random.permutation(len(calls))):
                if count >= wanted:
                    break
                for one in AT_WRITES[kind](stage, calls[i], random):
                    count += 1
                    yield one
            kills += count if kind == "killed" else 0
        else:
            if kind == "killed at random":
                wanted = max(wanted, 4 * trials - kills)
            for _ in range(wanted):
                yield AT_RANDOM[kind](stage, random, 1.1 * seconds)


_OTHERS: dict[str, Callable[[argparse.Namespace, int, int, Path], Iterator[Trial]]] = {
    "files": lambda options, trials, seed, folder: chain(
        inputs.files(300 if options.seconds else options.files, seed, folder),
        inputs.commands(100 if options.seconds else options.files // 4, seed, folder),
    ),
    "configurations": lambda options, trials, seed, folder: inputs.configurations(
        300 if options.seconds else options.files, seed, folder
    ),
    "bytes": lambda options, trials, seed, folder: damaged_stores.stores(4 * trials, seed, folder),
    "together": lambda options, trials, seed, folder: together.together(trials, seed, folder),
    "disks": lambda options, trials, seed, folder: disks.disks(max(1, trials // 2), seed, folder),
    "store": lambda options, trials, seed, folder: services.object_store(trials, seed, folder),
    "cluster": lambda options, trials, seed, folder: services.clusters(max(1, trials // 4), seed, folder),
}
"""Parts of the campaign beside disturbed writes."""


def campaign(options: argparse.Namespace, folder: Path) -> Iterator[Trial]:
    """All that is asked for."""
    end = None if options.seconds is None else time.monotonic() + options.seconds
    trials = 2 if end is not None else max(1, options.trials // 4)
    names = options.jobs or list(SCENARIOS)
    seed = options.seed
    while True:
        for part in options.parts:
            if part == "writes":
                for name in names:
                    if end is not None and time.monotonic() > end:
                        return
                    yield from disturbed(name, trials, options.kinds, seed, folder)
            else:
                yield from _OTHERS[part](options, trials, seed, folder)
            if end is not None and time.monotonic() > end:
                return
        if end is None:
            return
        seed += 1


def table(trials: Iterable[Trial]) -> str:
    """Trials by what was disturbed and how, and what they ended with."""
    found = pd.DataFrame(asdict(trial) for trial in trials)
    bad = found["problems"].map(bool)
    by_kind = found.groupby(["scenario", "kind"], sort=False).size().unstack(fill_value=0)
    by_kind["not as it should be"] = bad.groupby(found["scenario"]).sum()
    again = found["again"].map(lambda code: "" if pd.isna(code) else f" then {code:.0f}")
    ended = (found["code"].astype(str) + again).groupby(found["kind"], sort=False).value_counts()
    text = f"{by_kind.to_string()}\n\n{ended.to_string()}\n\n"
    return f"{text}{len(found):,} trials, {bad.sum()} not as they should be."


def _read(path: Path) -> list[Trial]:
    return [Trial(**json.loads(line)) for line in path.open()]


def main() -> int:
    """Run the campaign; 1 if anything is not as it should be."""
    parser = argparse.ArgumentParser(prog="python tests/chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, help="how long; without it, until all trials are done")
    parser.add_argument("--trials", type=int, default=100, help="kills of each job; of all else a quarter")
    parser.add_argument("--files", type=int, default=10_000, help="mutated files, and configurations, in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--jobs", nargs="*", choices=list(SCENARIOS), metavar="JOB", help="only these commands"
    )
    parser.add_argument(
        "--kinds", nargs="*", choices=_KINDS, default=_KINDS, metavar="KIND", help="only these ways"
    )
    parser.add_argument("--parts", nargs="*", choices=("writes", *_OTHERS), default=("writes", *_OTHERS))
    parser.add_argument("--results", type=Path, help="a line of JSON a trial is added to this file")
    parser.add_argument("--table", type=Path, help="only print the table of such a file")
    options = parser.parse_args()
    if options.table is not None:
        found = _read(options.table)
        sys.stdout.write(f"{table(found)}\n")
        return int(any(trial.problems for trial in found))
    if not possible():
        sys.stderr.write("expected Linux on x86-64 where processes may be traced (ptrace)\n")
        return 2
    for name in _IMPORTED:
        import_module(f"jobs.{name}")
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="logcal-chaos-", dir=shared if shared.is_dir() else None))
    found = []
    try:
        for trial in campaign(options, folder):
            found.append(trial)
            if options.results is not None:
                with options.results.open("a") as file:
                    file.write(f"{json.dumps(asdict(trial))}\n")
            if trial.problems:
                sys.stderr.write(f"{trial.scenario} | {trial.kind} | {trial.moment}\n")
                sys.stderr.writelines(f"    {problem}\n" for problem in trial.problems)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    packages = ", ".join(f"{name} {version(name)}" for name in ("pyarrow", "numpy", "dask", "skops"))
    sys.stdout.write(
        f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {packages}\n\n{table(found)}\n"
    )
    return int(any(trial.problems for trial in found))


if __name__ == "__main__":
    sys.exit(main())
