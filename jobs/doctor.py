"""Check of the installation: versions, compiled code, memory, scratch space, the cluster, the store and the log."""

from __future__ import annotations

import copy
import logging
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from jobs.config.base import PathText, Section
from jobs.config.cluster import ClusterConfig
from jobs.config.loading import load_values, read_values
from jobs.outcome import Outcome
from jobs.progress import quiet
from logcal import own_packages
from logcal.errors import ConfigError, LogcalError, counted
from logcal.storage import open_filesystem
from logcal.version import __version__
from pipeline.execution.processors import processors
from pipeline.files.faults import as_fault
from pipeline.files.folders import check_writable, size

_PACKAGES = ("numpy", "pyarrow", "pandas", "numba", "scipy", "scikit-learn", "dask", "distributed")
_LITTLE_SCRATCH = 10**9
_BUSY = 1.5


class DoctorConfig(Section):
    """Sections of a job's configuration that `doctor` checks, besides the paths of store and log."""

    scratch: PathText | None = None
    """Folder for temporary files."""
    cluster: ClusterConfig


def examine(files: Sequence[str] = (), settings: Sequence[str] = (), *, report: bool = False) -> Outcome:
    """Run all checks and return their results.

    report : return also the configuration, the plan and the last record, and checks that failed as text

    Raises
    ------
    LogcalError
        A check failed. The error has the class of the first failure and lists all results.
    """
    values = read_values(files, settings)
    all_values = copy.deepcopy(values) if report else values
    # None: not checked.
    store, log = (values.get((section, "path")) for section in ("store", "log"))
    values.values = {key: value for key, value in values.values.items() if key in DoctorConfig.model_fields}
    config = load_values(DoctorConfig, values)
    checks: dict[str, Callable[[], str]] = {
        "logcal": lambda: f"{__version__}, {Path(__file__).parents[1]}",
        "Python": lambda: f"{platform.python_version()}, {sys.executable}",
        "names": _names,
        "packages": lambda: ", ".join(f"{name} {metadata.version(name)}" for name in _PACKAGES),
        "machine": _machine,
        "memory": lambda: _memory(config.cluster),
        "compiled code": _compiled,
        "scratch": lambda: _scratch(config.scratch),
        "cluster": lambda: _cluster(config.cluster),
        "store": lambda: _store(store),
        "log": lambda: _log(log),
    }
    results: dict[str, str] = {}
    errors: dict[str, LogcalError] = {}
    for name, check in checks.items():
        try:
            results[name] = check()
        except Exception as error:
            fault = as_fault(error, name)
            if fault is None:
                raise
            results[name], errors[name] = str(fault), fault
    width = max(map(len, results))
    lines = [f"{'!!' if name in errors else 'ok'}  {name:{width}}  {text}" for name, text in results.items()]
    if report:
        from jobs.fault_report import fault_report

        lines += fault_report(files, settings, all_values)
        return Outcome({**results, "report": "\n".join(lines)}, lines)
    if errors:
        raise type(next(iter(errors.values())))(
            "\n".join([f"found {counted(len(errors), 'obstacle')}", *lines])
        )
    return Outcome(results, [*lines, "", "ready"])


# The checks. Each returns a description, or raises.


def _names() -> str:
    """Name other installed distributions that have packages of our names: whichever is found first is imported."""
    owners = metadata.packages_distributions()
    others = [
        f"{name} of {owner}"
        for name in own_packages.NAMES
        for owner in sorted(set(owners.get(name, ())))
        if owner.lower() != "logcal"
    ]
    if others:
        raise ConfigError(
            f"expected packages named {', '.join(own_packages.NAMES)} of logcal alone, found {', '.join(others)}: "
            "uninstall it, or install logcal in an environment of its own"
        )
    return "no other distribution has packages of logcal's names"


def _machine() -> str:
    cores = processors()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    busy = f"; busy: {load:.1f} processes wait for them" if load > _BUSY * cores else ""
    return f"{platform.machine()}, {cores} cores{busy}"


def _memory(config: ClusterConfig) -> str:
    from distributed.system import MEMORY_LIMIT

    needed = config.memory_bytes * (config.workers or 1)
    if (config.on_this_machine or config.kind == "threads") and needed > MEMORY_LIMIT:
        raise ConfigError(
            f"cluster.memory: expected {config.workers or 1} times {config.memory} to fit into this machine's "
            f"{size(MEMORY_LIMIT)}: lower it, or cluster.workers"
        )
    return f"{size(MEMORY_LIMIT)}; a worker takes up to {config.memory} of it"


def _compiled() -> str:
    """Run a small fit, and describe where its compiled code is cached."""
    import numpy as np

    from calibrators.core.kernels import pava
    from calibrators.isotonic.calibrator import Isotonic

    started = time.perf_counter()
    Isotonic().fit(np.linspace(0, 1, 100), np.arange(100) % 2)
    seconds = time.perf_counter() - started
    path = pava.pool_groups.stats.cache_path
    location = f"kept in {Path(path).parent}" if path else "kept nowhere: each command compiles again"
    return f"{location}; a small fit took {seconds:.1f} s"


def _scratch(folder: str | None) -> str:
    import shutil

    from pipeline.files.folders import is_url
    from pipeline.files.scratch import check_space, scratch_folder

    check_space(folder, _LITTLE_SCRATCH)
    with scratch_folder(folder) as scratch:
        if is_url(scratch):
            return f"{folder}, which can be written to"
        free = shutil.disk_usage(scratch).free
    return f"{folder or tempfile.gettempdir()}, {size(free)} free: enough for some {free // 10**7:,} million rows"


def _cluster(config: ClusterConfig) -> str:
    from jobs.cluster.kinds import check_class
    from jobs.cluster.starting import starting_executor

    check_class(config)
    with quiet(logging.INFO), starting_executor(config) as start:
        started = time.perf_counter()
        executor = start(threads=True)
        hosts = executor.run("doctor", _host, [(i,) for i in range(4)])
        seconds = time.perf_counter() - started
    names = ", ".join(sorted(set(hosts)))
    return f"{config.kind}, {counted(executor.workers, 'task')} at a time on {names}; answered in {seconds:.1f} s"


def _host(_: int) -> str:
    return platform.node() or "this machine"


def _store(path: Any) -> str:
    if path is None:
        return "not checked: give --set store.path=..."
    import uuid

    from fsspec.implementations.local import LocalFileSystem

    filesystem, root = open_filesystem(path, "store.path")
    if isinstance(filesystem, LocalFileSystem):
        folder = check_writable(Path(root), "store.path")
        new = "" if str(folder) == root.rstrip("/") else ", which will be made"
        return f"{path}{new}: can be written to"
    probe = f"{root.rstrip('/')}/.logcal-doctor-{uuid.uuid4().hex}"
    filesystem.pipe_file(probe, b"logcal")
    filesystem.rm_file(probe)
    return f"{path}: a file was written there and removed"


def _log(path: Any) -> str:
    if path is None:
        return "not checked: give --set log.path=..."
    from pipeline.log.column_facts import log_facts

    paths = [path] if isinstance(path, str) else list(path)
    facts = log_facts(paths)
    return f"{', '.join(paths)}: {counted(facts.files, 'file')}, {facts.rows:,} rows"
