"""fit, score and evaluate on various logs, compared with the same job on the plain log.

    python benchmarks/logs.py /tmp/logcal-bench/logs --rows 20e6
    python benchmarks/logs.py /tmp/logcal-bench/logs --rows 1e8 --logs plain files weights --jobs fit --runs 3
    python benchmarks/logs.py /tmp/logcal-bench/logs --before /path/to/an/older/checkout/.venv/bin/logcal

Logs that are not in the folder are written first. A ratio is the median over the turns of a job's time on a log
divided by the job's time on the plain log in the same turn; with --before also by the older version's time on the log.
Whole processes, start included; the page cache is warm.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from _measure import LOGCAL, Contender, Measurement, logcal, measure, measure_interleaved, print_machine, warm
from make_log import LogSpec, write_log

from jobs.config.jobs import JOB_CONFIGS
from jobs.config.loading import known_keys

PLAIN = LogSpec(tie_share=0.1)
"""A tenth of the rows at one score."""

LOGS = {
    "plain": PLAIN,
    "distinct": replace(PLAIN, tie_share=0.0),
    "digits": replace(PLAIN, digits=4),
    "values": replace(PLAIN, values=1000),
    "float32": replace(PLAIN, float32=True),
    "weights": replace(PLAIN, weights=True),
    "wide": replace(PLAIN, wide=26, codec="zstd"),
    "files": replace(PLAIN, file_rows=10_000, row_groups=1),
    "one-group": replace(PLAIN, files=1, row_groups=1),
    "segments-1e4": replace(PLAIN, segments=10_000),
    "segments-1e5": replace(PLAIN, segments=100_000),
    "segments-of-20": replace(PLAIN, segment_rows=20),
    "two-columns": replace(PLAIN, segments=1_000, second_segment=10),
}

SETTINGS = {
    "weights": ("log.weight=weight",),
    "segments-1e4": ("log.segment=[segment]",),
    "segments-1e5": ("log.segment=[segment]",),
    "segments-of-20": ("log.segment=[segment]",),
    "two-columns": ("log.segment=[segment, region]",),
}

JOBS = ("fit", "score", "evaluate")


def main(arguments: list[str]) -> None:
    """Measure, and print a table for each job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the logs")
    parser.add_argument("--rows", type=float, default=20e6)
    parser.add_argument("--logs", nargs="+", default=list(LOGS), choices=LOGS)
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=JOBS)
    parser.add_argument("--fits", nargs="*", default=[], help="further settings of fits on the plain log")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--before", help="command of an older version to compare with")
    options = parser.parse_args(arguments)
    print_machine()
    logs = {name: _log(options.folder, name, int(options.rows)) for name in options.logs}
    for name, path in logs.items():
        print(f"{name}: {warm(path) / 1e6:,.0f} MB")
    commands = {"now": LOGCAL} | ({"before": options.before} if options.before else {})
    folder = Path(tempfile.mkdtemp(prefix="logcal-logs-", dir=options.folder))
    try:
        for job in options.jobs:
            _compare(job, logs, commands, folder, options)
    finally:
        shutil.rmtree(folder)


def _log(folder: Path, name: str, rows: int) -> Path:
    path = folder / f"{name}-{rows:.0e}".replace("+0", "")
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_log(path, LOGS[name].with_rows(rows))
    return path


def _compare(
    job: str, logs: dict[str, Path], commands: dict[str, str], folder: Path, options: argparse.Namespace
) -> None:
    contenders = []
    for version, command in commands.items():
        variants = {name: SETTINGS.get(name, ()) for name in logs}
        if job == "fit":
            variants |= {setting: (setting,) for setting in options.fits}
        for name, settings in variants.items():
            log = logs.get(name, next(iter(logs.values())))
            contender = _contender(job, f"{name}, {version}", command, log, settings, folder)
            if contender is not None:
                contenders.append(contender)
    results = measure_interleaved(contenders, options.runs)
    base = results[f"{next(iter(logs))}, now"]
    print(f"\n{job}, {options.rows:,.0f} rows\n{'':24}       s   CPU s      MB  to plain   to before")
    for name in dict.fromkeys(key.rpartition(", ")[0] for key in results):
        now, before = results[f"{name}, now"], results.get(f"{name}, before")
        print(
            f"{name:24} {_median(now, 'seconds'):7.2f} {_median(now, 'cpu_seconds'):7.2f} "
            f"{max(run.peak_bytes for run in now) / 1e6:7,.0f} {_ratio(now, base):9.2f}   "
            + (f"{_ratio(now, before):9.2f}" if before else "")
        )


def _contender(
    job: str, name: str, command: str, log: Path, settings: tuple[str, ...], folder: Path
) -> Contender | None:
    """Return a job on a log, after fitting its table; None if this version refuses the log."""
    root = folder / job / name.replace(", ", "-").replace("/", "-")
    common = (f"log.path={log}", "store.table=bench", "cluster.workers=2", *settings)
    store = f"store.path={root / 'store'}"
    output = root / "output"

    def clear() -> None:
        shutil.rmtree(output, ignore_errors=True)

    def job_command(job: str, *settings: str) -> list[str]:
        own = [text for text in (*common, *settings) if not _is_foreign(text, job)]
        return [command, *logcal(job, *own)[1:]]

    scratch = f"scratch={folder}"
    if job == "fit":
        return Contender(name, job_command("fit", f"store.path={output}", scratch), clear)
    try:
        measure(job_command("fit", store, scratch))
    except RuntimeError as error:
        print(f"{name}: {error}")
        return None
    paths = (f"output.path={output}",) if job == "score" else (f"report.path={output}", scratch)
    contender = Contender(name, job_command(job, store, *paths), clear)
    if job == "evaluate" and subprocess.run(contender.command, check=False, capture_output=True).returncode:
        print(f"{name}: refused")
        return None
    return contender


def _is_foreign(setting: str, job: str) -> bool:
    """Tell whether only other jobs have a setting's key. A key that no job has is left to the job, which refuses it."""
    key = setting.partition("=")[0]
    having = {
        name
        for name in JOBS
        for known in known_keys(JOB_CONFIGS[name])
        if f"{known}.".startswith(f"{key}.") or key.startswith(f"{known}.")
    }
    return bool(having) and job not in having


def _median(runs: list[Measurement], field: str) -> float:
    return statistics.median(getattr(run, field) for run in runs)


def _ratio(runs: list[Measurement], others: list[Measurement]) -> float:
    return statistics.median(a.seconds / b.seconds for a, b in zip(runs, others, strict=True))


if __name__ == "__main__":
    main(sys.argv[1:])
