"""Jobs against another checkout of logcal, such as the previous version.

    git worktree add /tmp/before VERSION      (with its own environment in /tmp/before/.venv)
    python benchmarks/make_log.py /tmp/logcal-bench/ties100m --tie-share 0.1
    python benchmarks/graphs.py /tmp/logcal-bench/ties100m --before /tmp/before/.venv/bin

Whole processes, start included, in turns: fit, score and evaluate on threads and on two worker processes, and 5,000
empty tasks on two worker processes. Ratios to the other checkout are of wall seconds and of processor seconds, which
are more reliable on a busy machine.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from _measure import Contender, Measurement, clearing, measure_interleaved, print_machine, warm

EMPTY = """
import time
from jobs.cluster.starting import starting_executor
from jobs.config.jobs import ClusterConfig

def main():
    with starting_executor(ClusterConfig(kind="local", workers=2)) as executor:
        started = executor()
        started.run("warm", abs, [(i,) for i in range(50)])
        start = time.perf_counter()
        assert len(started.run("stage", abs, [(i,) for i in range(TASKS)])) == TASKS
        print(time.perf_counter() - start)

if __name__ == "__main__":
    main()
"""


def command(folder: Path, job: str, *settings: str) -> list[str]:
    """Return the command of a job of the checkout whose commands are in a folder."""
    return [str(folder / "logcal"), job, *(word for setting in settings for word in ("--set", setting))]


def compare(name: str, now: Contender, before: Contender, runs: int) -> None:
    """Measure both in turns, and print the ratios."""
    results = measure_interleaved([before, now], runs)

    def ratio(field: str) -> float:
        pairs = zip(results[now.name], results[before.name], strict=True)
        return statistics.median(getattr(a, field) / getattr(b, field) for a, b in pairs)

    def median(measurements: list[Measurement], field: str) -> float:
        return statistics.median(getattr(measurement, field) for measurement in measurements)

    shown = [
        f"{field.replace('_', ' ')} {median(results[now.name], field) / unit:,.2f} (ratio {ratio(field):.2f})"
        for field, unit in (("seconds", 1), ("cpu_seconds", 1), ("peak_bytes", 1e6))
    ]
    print(f"{name}: {', '.join(shown)}", flush=True)


def empty_tasks(ours: Path, theirs: Path, tasks: int, runs: int) -> None:
    """Compare the seconds for tasks that do nothing, on two started workers, in turns."""
    seconds: dict[Path, list[float]] = {ours: [], theirs: []}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "empty.py"
        script.write_text(EMPTY.replace("TASKS", str(tasks)))
        for _ in range(runs):
            for checkout, times in seconds.items():
                done = subprocess.run(
                    [str(checkout / "python"), str(script)], capture_output=True, text=True, check=True
                )
                times.append(float(done.stdout.split()[-1]))
    ratio = statistics.median(a / b for a, b in zip(seconds[ours], seconds[theirs], strict=True))
    ours_now, theirs_now = (statistics.median(seconds[checkout]) for checkout in (ours, theirs))
    print(
        f"{tasks:,} empty tasks: {ours_now:.2f} s, before {theirs_now:.2f} s (ratio {ratio:.2f})", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("log", type=Path)
    parser.add_argument("--before", type=Path, required=True, help="folder of the other checkout's commands")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=5000)
    parser.add_argument("--jobs", nargs="*", default=["fit", "score", "evaluate", "tasks"])
    parser.add_argument("--kinds", nargs="*", default=["threads", "local"])
    arguments = parser.parse_args()
    ours = Path(sys.executable).parent
    print_machine()
    print(f"log: {warm(arguments.log) / 1e9:.2f} GB")
    with tempfile.TemporaryDirectory(dir=arguments.log.parent) as folder:
        root = Path(folder)
        for kind in arguments.kinds:
            for job in (job for job in arguments.jobs if job != "tasks"):
                contenders = [
                    _contender(root, checkout, name, job, kind, arguments.log)
                    for checkout, name in ((ours, "now"), (arguments.before, "before"))
                ]
                compare(f"{job}, {kind}", *contenders, arguments.runs)
    if "tasks" in arguments.jobs:
        empty_tasks(ours, arguments.before, arguments.tasks, arguments.runs)


def _contender(root: Path, checkout: Path, name: str, job: str, kind: str, log: Path) -> Contender:
    """Return a job of a checkout, with its own store and outputs."""
    parent = root / name
    output, store = parent / "output", parent / ("fitted" if job == "fit" else "store")
    for folder in (output, store):
        folder.mkdir(parents=True, exist_ok=True)
    common = (f"log.path={log}", f"store.path={store}", "store.table=x", f"scratch={parent}/scratch")
    if job != "fit" and not (store / "x").exists():
        subprocess.run(command(checkout, "fit", *common), check=True, capture_output=True)
    paths = () if job == "fit" else (f"{'output' if job == 'score' else 'report'}.path={output}/{job}",)
    cluster = (f"cluster.kind={kind}", *(("cluster.workers=2",) if kind == "local" else ()))
    # The evaluation uses the rows of the fit, which later versions must be allowed to.
    allowed = ("evaluate.allow_in_sample=true",) if job == "evaluate" and name == "now" else ()
    return Contender(
        name,
        command(checkout, job, *common, *paths, *cluster, *allowed),
        clearing(store if job == "fit" else output),
    )


if __name__ == "__main__":
    main()
