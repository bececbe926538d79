"""Configurations that nobody would write: keys of every job with values of every kind, and files of any bytes."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

JOBS = ("fit", "score", "evaluate", "generate", "compare", "follow", "monitor")
ALLOWED = {0, 2, 3, 4, 75, 99}
TEXTS = [
    "", " ", "\0", "a\0b", "x" * 300, "x/" * 3000, "/dev/null/x", "/proc/self/mem", "/", ".", "..", "~", "~nobody/x",
    "s3://", "s3:///x", "nosuch://x", "file://", "memory://", "http://", "https://127.0.0.1:9/x", "s3://b ucket/x",
    "::memory", "zip://a::b", "simplecache::file:///x", "*", "**", "[", "?", "{", "]", "log/*", "log/[", "C:\\x",
    "\udcff",
    "\u202e", "NaN", "inf", "-1", "0", "1e999", "yes", "null", "2026-02-30", "2026-01-31", "30d", "0d", "99999999d",
    "é" * 130, "../../../../../etc/passwd", "-", "--help", "a=b", "%00", "${HOME}", "$(x)", "`x`", "'", '"', "\n", "\t",
    "1GiB", "0B", "1e400GiB", "9" * 400 + "GiB", "dask.x", "os.system", "jobs.run.show", "isotonic", "platt", "inline",
]  # fmt: skip
WHOLE = [0, -1, 1, 2**31, 2**63, 2**64, 10**400, True, False]
NUMBERS = [*WHOLE, 0.5, -0.0, 1e308, 5e-324, float("nan"), float("inf")]


def keys_of(model: Any, prefix: str = "") -> list[str]:
    """The dotted keys of a configuration."""
    from jobs.config.base import section_of

    found = []
    for name, info in model.model_fields.items():
        section = section_of(info.annotation)
        found += keys_of(section, f"{prefix}{name}.") if section else [f"{prefix}{name}"]
    return found


def any_value(random: np.random.Generator, depth: int = 0) -> Any:
    """A YAML value of any kind."""
    kind = random.integers(0, 8 if depth < 2 else 5)
    if kind <= 2:
        return TEXTS[random.integers(len(TEXTS))]
    if kind == 3:
        return NUMBERS[random.integers(len(NUMBERS))]
    if kind == 4:
        return None
    if kind == 5:
        return [any_value(random, depth + 1) for _ in range(random.integers(0, 3))]
    if kind == 6:
        return {
            TEXTS[random.integers(len(TEXTS))]: any_value(random, depth + 1)
            for _ in range(random.integers(0, 3))
        }
    return bytes(random.integers(0, 256, 8).tolist()).decode("latin-1")


def any_file(random: np.random.Generator, keys: list[str]) -> bytes:
    """A configuration file: YAML, nearly YAML, or any bytes."""
    kind = random.integers(0, 4)
    if kind == 0:
        return bytes(random.integers(0, 256, random.integers(0, 60)).tolist())
    nested: dict[str, Any] = {}
    for key in random.choice(keys, 3):
        *sections, last = key.split(".")
        inside = nested
        for section in sections:
            inside = inside.setdefault(section, {})
            if not isinstance(inside, dict):
                break
        else:
            inside[last] = any_value(random)
    text = json.dumps(nested).encode("utf-8", "surrogatepass")
    if kind == 1:
        place = random.integers(0, len(text) + 1)
        return text[:place] + bytes(random.integers(0, 256, 3).tolist()) + text[place:]
    if kind == 2:
        return text + b"\nlog: *alias\n? &a [*a]\n"
    return text


def trial(seed: int, base: dict[str, str], folder: Path) -> tuple[int, str, list[str]]:
    """Run one configuration, only planning it: its exit code, what it said, and its settings."""
    from jobs.registry import JOBS as REGISTRY
    from jobs.run import run_job

    random = np.random.default_rng(seed)
    if random.random() < 1 / (len(JOBS) + 1):
        return _begun(random, base, folder / f"begun-{seed}")
    registered = REGISTRY if isinstance(REGISTRY, dict) else {job.name: job for job in REGISTRY}
    job = registered[str(random.choice(JOBS))]
    keys = keys_of(job.config_class())
    settings = [f"{key}={value}" for key, value in base.items() if key in keys or key.startswith("cluster.")]
    for key in random.choice(keys, random.integers(1, 3)):
        if key.startswith("cluster.") and random.random() < 0.8:
            continue
        value = any_value(random)
        shown = value if isinstance(value, str) and random.random() < 0.7 else json.dumps(value)
        settings.append(f"{key}={shown}")
    files = []
    if random.random() < 0.3:
        path = folder / f"config-{seed}.yaml"
        path.write_bytes(any_file(random, keys))
        files.append(str(path))
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        code = run_job(job, files, settings, dry_run=True, as_json=False)
    return code, said.getvalue(), [job.name, *files, *settings]


def _begun(random: np.random.Generator, base: dict[str, str], folder: Path) -> tuple[int, str, list[str]]:
    """The same of `logcal init`."""
    from jobs.cli import main
    from jobs.config.jobs import FitConfig

    settings = ["--daily"] * int(random.integers(2))
    for key in random.choice(keys_of(FitConfig), random.integers(0, 3)):
        settings += ["--set", f"{key}={json.dumps(any_value(random))}"]
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            log = base["log.path"] if random.random() < 0.7 else TEXTS[random.integers(len(TEXTS))]
            main(["init", *settings, "--", log, str(folder)], prog_name="logcal")
        except SystemExit as ending:
            return int(ending.code or 0), said.getvalue(), ["init", *settings]
    raise AssertionError("a command ends the process")
