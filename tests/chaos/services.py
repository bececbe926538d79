"""An object store that fails at 5 to 90 % of its requests, and clusters that lose their scheduler or a worker."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
from s3 import BUCKET, Proxy, environment, s3_server

from chaos.scenarios import SEGMENTS, Place, empty_place, job, setting, write_days, write_log
from chaos.trials import Trial

FAULTS = ("500", "503", "reset", "cut")
SHARES = (0.05, 0.1, 0.3, 0.5, 0.9)
_PATIENCE = 120.0


def _command(place: Place, arguments: tuple[str, ...], more: dict[str, str] | None = None) -> Any:
    own = {**os.environ, **(more or {}), "TMPDIR": str(place.root / "temporary")}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    command = [sys.executable, "-m", "logcal", *arguments]
    return subprocess.Popen(command, cwd=place.root, env=own, text=True, **pipes)


def _end(process: Any, seconds: float = _PATIENCE) -> tuple[int, str]:
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        return 1, f"no end in {seconds} s: {said}"
    return process.returncode, said


def _run(place: Place, arguments: tuple[str, ...], more: dict[str, str] | None = None) -> tuple[int, str]:
    return _end(_command(place, arguments, more))


def _remote(url: str, name: str) -> tuple[str, ...]:
    """A job whose log, store and output are on the object store."""
    more = {
        "fit": (), "fit with segments": SEGMENTS,
        "fit with a window": ("window.column=date", "window.last=2d", f"log.path={url}/days"),
        "evaluate": ("evaluate.allow_in_sample=true", f"report.path={url}/report"),
        "score": (f"output.path={url}/scored",),
        "follow": (f"output.path={url}/followed", f"log.path={url}/log"),
    }[name]  # fmt: skip
    verb = name.partition(" ")[0]
    first = (f"log.path={url}/log", f"store.path={url}/store")
    found = job(verb, *first, *more)
    return (*found, "--once") if verb == "follow" else found


_RESULT = re.compile(r"lookup\.parquet$|segments\.parquet$|/(scored|followed)/part")
REMOTE = ("fit", "fit with segments", "fit with a window", "score", "evaluate", "follow")


def object_store(trials: int, seed: int, folder: Path) -> Iterator[Trial]:
    """Jobs on a store that fails now and then: an exit code that says so, and the right bytes once it does not."""
    random = np.random.default_rng(seed)
    place = empty_place(folder / "remote")
    write_log(place.root / "log", 2, 200)
    write_days(place.root / "days", range(1, 3))
    with s3_server() as server:
        filesystem = fsspec.filesystem(
            "s3", endpoint_url=server.url, key="someone", secret="very-secret-indeed", skip_instance_cache=True,
            use_listings_cache=False,
        )  # fmt: skip
        for name in REMOTE:
            url = f"s3://{BUCKET}/{name.replace(' ', '-')}"
            expected = None
            for number in range(trials + 1):
                share = 0.0 if number == 0 else SHARES[number % len(SHARES)]
                if filesystem.exists(url):
                    filesystem.rm(url, recursive=True)
                filesystem.invalidate_cache()
                for part in ("log", "days"):
                    filesystem.put(str(place.root / part), f"{url}/{part}", recursive=True)
                # Times of objects tell whole seconds: those of this trial are not those of the last.
                code, again, said = _on_store(place, server, url, name, share, random)
                results = [path for path in filesystem.find(url) if _RESULT.search(path)]
                found = {path: filesystem.cat_file(path) for path in results}
                expected = found if expected is None else expected
                problems = (said,) if said else ()
                odd = {path for path in found.keys() | expected if found.get(path) != expected.get(path)}
                if odd:
                    problems += (f"other bytes than undisturbed: {sorted(odd)}",)
                kind, what = f"{share:.0%} of requests fail", f"{name}, on an object store"
                if number or code:
                    yield Trial(kind, what, f"trial {number}", code, again, problems)
                if not number and code:
                    break


def _on_store(place: Place, server: Proxy, url: str, name: str, share: float, random: Any) -> Any:
    secrets = environment(server.url)
    said = ""
    if not name.startswith("fit"):
        code, text = _run(place, _remote(url, "fit"), secrets)
        if code:
            return code, code, text
    faults = np.random.default_rng(random.integers(2**31))
    server.fault = lambda method, path: str(faults.choice(FAULTS)) if faults.random() < share else None
    code, text = _run(place, _remote(url, name), secrets)
    if code not in (0, 75, 99) or "Traceback" in text:
        said = f"ended with {code}: {text[-2000:]}"
    server.fault = lambda method, path: None
    # Whatever a run that failed still held counts as held until its lease is over.
    for _ in range(12):  # four minutes: a lease is over after three
        again, text = _run(place, _remote(url, name), secrets)
        if again != 75:
            break
        time.sleep(20)
    if again not in (0, 99):
        said += f"run again, it ended with {again}: {text[-2000:]}"
    return code, again, said


@contextmanager
def _cluster(place: Place, workers: int) -> Iterator[list[Any]]:
    """A scheduler and workers, each a process of its own."""
    file = place.root / "temporary" / "scheduler.json"
    file.unlink(missing_ok=True)
    common = ["--scheduler-file", str(file), "--no-dashboard"]
    programs = [("dask_scheduler", "--host", "127.0.0.1", "--port", "0")]
    programs += [("dask_worker", "--nthreads", "1", "--memory-limit", "1GiB", "--no-nanny")] * workers
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.{program}", *common, *more],
            cwd=place.root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for program, *more in programs
    ]  # fmt: skip
    try:
        while not file.exists():
            time.sleep(0.05)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
        file.unlink(missing_ok=True)


def clusters(trials: int, seed: int, folder: Path) -> Iterator[Trial]:
    """Fits on a cluster whose scheduler, or a worker, dies or stands still at any moment."""
    random = np.random.default_rng(seed)
    place = empty_place(folder / "clustered")
    write_log(place.root / "log", 16, 20_000)
    assert _run(place, job("fit", "store.path=expected"))[0] == 0
    [lookup] = (place.root / "expected").rglob("lookup.parquet")
    for whom in ("scheduler", "worker"):
        for what in ("killed", "stopped for a while"):
            for number in range(trials):
                shutil.rmtree(place.root / "store", ignore_errors=True)
                moment = float(random.random() * 3)
                yield _on_cluster(place, whom, what, number, moment, lookup.read_bytes())


def _on_cluster(place: Place, whom: str, what: str, number: int, moment: float, expected: bytes) -> Trial:
    file = place.root / "temporary" / "scheduler.json"
    given = ("cluster.kind=scheduler_file", "cluster.memory=1GiB", "cluster.timeout=15")
    own = setting(*given, f"cluster.scheduler_file={file}")
    with _cluster(place, 2) as processes:
        running = _command(place, (*job("fit"), *own))
        time.sleep(moment)
        victim = processes[0 if whom == "scheduler" else 1]
        if what == "killed":
            victim.kill()
        else:
            victim.send_signal(signal.SIGSTOP)
            time.sleep(1)
            victim.send_signal(signal.SIGCONT)
        code, said = _end(running)
    problems = []
    if code not in (0, 75) or "Traceback" in said:
        problems.append(f"ended with {code}: {said[-2000:]}")
    again, text = _run(place, job("fit"))
    if again not in (0, 99):
        problems.append(f"run again, it ended with {again}: {text[-2000:]}")
    found = [path.read_bytes() for path in (place.root / "store").rglob("lookup.parquet")]
    if found != [expected]:
        problems.append("other bytes than undisturbed")
    if left := place.litter():
        problems.append(f"left {left[:5]}")
    when = f"trial {number}, {moment:.2f} s"
    return Trial(f"{what} at random", f"fit on a cluster, its {whom}", when, code, again, tuple(problems))
