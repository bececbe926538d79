"""Damaged Parquet files and configurations that nobody would write, many at a time in a process of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from common import FACTS

from chaos.fuzzed_configurations import ALLOWED
from chaos.fuzzed_configurations import trial as configuration_trial
from chaos.mutated_parquet import WRITERS, contradicting, mutated
from chaos.mutated_parquet import trial as file_trial
from chaos.tracing import forked
from chaos.trials import Trial

_BATCH = 100
_KINDS = ("read", "window", "score", "facts")
_NO_NETWORK = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_MAX_ATTEMPTS": "1", "NO_PROXY": "*"}
_NO_NETWORK["NO_GCE_CHECK"] = "true"


def lookup_table(path: Path) -> str:
    """A published lookup table, alone."""
    from calibrators import Isotonic
    from pipeline.table.lookup_table import plain_files

    fitted = Isotonic().fit(np.linspace(0, 1, 9), np.arange(9) > 4).calibration_map_
    path.write_bytes(plain_files(fitted, **FACTS).files("000001-a")["lookup.parquet"])
    return str(path)


def files(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """Mutated files, read, windowed and scored: an answer, or exit code 3."""
    lookup = lookup_table(folder / "lookup.parquet")
    contents = {name: write() for name, write in WRITERS.items()}
    every = [(kind, writer, seed * count + i) for i in range(count) for kind in _KINDS for writer in WRITERS]
    chosen = every[:count]

    def one(i: int) -> str:
        kind, writer, number = chosen[i]
        # Half of them with bytes changed, half with a footer that decodes and contradicts itself.
        change = (mutated, contradicting)[number % 2]
        return file_trial(kind, writer, number, folder, lookup, contents[writer], change)

    def name(i: int) -> str:
        return f"{chosen[i][1]}, {chosen[i][0]}, seed {chosen[i][2]}"

    for i, said in _in_batches(len(chosen), one, folder):
        code = {"answer": 0, "3": 3}.get(said, 1)
        problems = () if code != 1 else (said,)
        yield Trial("mutated file", f"files of {chosen[i][1]}", name(i), code, None, problems)


def commands(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """Whole commands on mutated files: fit, score, follow, evaluate and init say 0, or 3, or what a check says."""
    from chaos.scenarios import empty_place, job, write_log

    place = empty_place(folder / "commanded")
    (place.root / "mutated").mkdir()
    write_log(place.root / "log")
    place.do(*job("fit"))
    contents = {name: write() for name, write in WRITERS.items()}
    arguments = {
        "fit": job("fit", "store.path=other", log="mutated"),
        "score": job("score", log="mutated"),
        "follow": (*job("follow", "output.path=followed", log="mutated"), "--once"),
        "evaluate": job("evaluate", "evaluate.allow_in_sample=true", log="mutated"),
        "init": ("init", "mutated", "begun"),
    }

    def chosen(i: int) -> tuple[str, str, Callable[[bytes, int], bytes]]:
        name = list(arguments)[i % len(arguments)]
        writer = list(WRITERS)[i // len(arguments) % len(WRITERS)]
        return name, writer, (mutated, contradicting)[i // len(arguments) // len(WRITERS) % 2]

    def one(i: int) -> str:
        name, writer, change = chosen(i)
        path = place.root / "mutated" / "mutated.parquet"
        path.write_bytes(change(contents[writer], seed * count + i))
        for left in (
            "other",
            "scored",
            "followed",
            ".followed.logcal",
            "evaluate",
            "begun",
            ".scored.logcal",
        ):
            shutil.rmtree(place.root / left, ignore_errors=True)
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            code = place.command(*arguments[name])()
        fine = code in ALLOWED and "Traceback" not in said.getvalue()
        return str(code) if fine else f"ended with {code}: {said.getvalue()[-1500:]}"

    for i, said in _in_batches(count, one, folder):
        name, writer, _ = chosen(i)
        moment = f"{writer}, seed {seed * count + i}"
        code, problems = (int(said), ()) if said.isdigit() else (1, (said,))
        yield Trial("mutated file", f"{name} of a damaged file", moment, code, None, problems)


def configurations(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """Fuzzed configurations, planned: any exit code but 1."""
    from chaos.scenarios import empty_place, job, write_log

    place = empty_place(folder / "configured")
    write_log(place.root / "log")
    place.do(*job("fit"))
    base = {
        "log.path": place.root / "log", "store.path": place.root / "store", "store.table": "ads",
        "output.path": place.root / "out", "report.path": place.root / "page",
        "data.path": place.root / "log", "cluster.kind": "inline",
    }  # fmt: skip
    texts = {key: str(value) for key, value in base.items()}

    def one(i: int) -> str:
        os.environ.update(_NO_NETWORK)
        os.chdir(place.root)
        code, said, settings = configuration_trial(seed * count + i, texts, folder)
        return str(code) if code in ALLOWED else f"ended with {code}: {settings!r} {said[-1000:]}"

    for i, said in _in_batches(count, one, folder):
        code, problems = (int(said), ()) if said.isdigit() else (1, (said,))
        moment = f"seed {seed * count + i}"
        yield Trial("fuzzed configuration", "configurations", moment, code, None, problems)


def _in_batches(count: int, one: Callable[[int], str], folder: Path) -> Iterator[tuple[int, str]]:
    """What each of many trials says; one that ends its process, or never ends, says so."""
    results = folder / "results"
    done = 0
    while done < count:
        batch = range(done, min(done + _BATCH, count))
        results.write_text("")

        def run(batch: range = batch) -> int:
            with results.open("a") as file:
                for i in batch:
                    try:
                        said = one(i)
                    except Exception as error:  # noqa: BLE001 - what is neither an answer nor a refusal
                        said = f"{type(error).__name__}: {error}"
                    file.write(f"{json.dumps(said)}\n")
                    file.flush()
            return 0

        ended = forked(run, seconds=120)
        said = [json.loads(line) for line in results.read_text().splitlines()]
        yield from zip(batch, said, strict=False)
        done += len(said)
        if ended.code:
            yield done, f"the process ended with {ended.code}: {ended.said[-1000:]}"
            done += 1
