"""Where the work runs: in this process, on worker processes of this machine, or on a Dask cluster."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

from jobs.config import ADDRESS, INLINE, LOCAL, SCHEDULER_FILE, ClusterConfig
from jobs.progress import reporting
from pipeline.errors import ConfigError, TemporaryError
from pipeline.execution import DaskExecutor, Executor, InlineExecutor

log = logging.getLogger("logcal")

_LARGE = str(1 << 30)
_WORKER_ENVIRONMENT = {
    # A worker runs one task at a time, on one thread.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    # Buffers of some MB come and go with every task: keep them, rather than ask the system for zeroed pages anew.
    "MALLOC_TRIM_THRESHOLD_": _LARGE,
    "MALLOC_MMAP_THRESHOLD_": _LARGE,
}


@contextmanager
def starting_executor(config: ClusterConfig) -> Iterator[Callable[[], Executor]]:
    """Begin to start a cluster; yield what waits for it and returns its executor.

    So that a job can be prepared meanwhile. Whatever was started is stopped at the end.

    Raises
    ------
    ConfigError
        The cluster class cannot be imported or made.
    TemporaryError
        The cluster cannot be reached, or no worker comes.
    """
    with ExitStack() as stack:
        if config.kind == INLINE:
            yield lambda: InlineExecutor(stack.enter_context(reporting()))
            return
        pool = stack.enter_context(ThreadPoolExecutor(1, "logcal-cluster"))
        started: Future[tuple[Any, Any]] = pool.submit(_start, config)
        stack.callback(_stop, started)

        def executor() -> Executor:
            client, workers = started.result()
            log.info("dashboard: %s", client.dashboard_link)
            return DaskExecutor(client, workers, stack.enter_context(reporting()))

        yield executor


def _start(config: ClusterConfig) -> tuple[Any, int]:
    """A client with at least one worker, and the number of workers asked for."""
    _quiet()
    from distributed import Client

    if config.kind == LOCAL:
        cluster = _local_cluster(config)
    elif config.by_class:
        cluster = _cluster_of_class(config)
    else:
        return _connect(config)
    try:
        client = Client(cluster, timeout=config.timeout)
        client.own_cluster = cluster
        return client, _await_workers(client, config)
    except BaseException:
        cluster.close()
        raise


def _stop(started: Future[tuple[Any, Any]]) -> None:
    try:
        client, _ = started.result()
    except Exception:  # noqa: BLE001 - was raised where the executor was asked for, or nobody asked
        return
    cluster = getattr(client, "own_cluster", None)
    client.close()
    if cluster is not None:
        cluster.close()


def _quiet() -> None:
    """Keep Dask's own log lines, about restarts of workers and the like, to errors."""
    for name in ("distributed", "bokeh", "tornado"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _local_cluster(config: ClusterConfig) -> Any:
    import dask
    from distributed import LocalCluster

    dask.config.set(
        {
            "distributed.nanny.pre-spawn-environ": _WORKER_ENVIRONMENT,
            "distributed.scheduler.work-stealing": False,
        }
    )
    return LocalCluster(
        n_workers=_local_workers(config),
        threads_per_worker=1,
        memory_limit=config.memory_bytes,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        silence_logs=logging.ERROR,
    )


def _local_workers(config: ClusterConfig) -> int:
    """As asked for; otherwise one a core, as far as the machine's memory goes."""
    if config.workers is not None:
        return config.workers
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(cores, memory // config.memory_bytes))


def _cluster_of_class(config: ClusterConfig) -> Any:
    module_name, _, name = config.kind.rpartition(".")
    try:
        cls = getattr(importlib.import_module(module_name), name)
    except ImportError as error:
        package = module_name.partition(".")[0].replace("_", "-")
        raise ConfigError(
            f"cluster.kind: cannot import {config.kind} ({error}): install it with `pip install {package}`, "
            "or correct the path"
        ) from None
    except AttributeError:
        raise ConfigError(f"cluster.kind: the module {module_name} has no class {name}") from None
    if not (isinstance(cls, type) and hasattr(cls, "scale")):
        raise ConfigError(f"cluster.kind: expected a Dask cluster class, found {cls!r:.80}")
    try:
        cluster = cls(**config.arguments)
    except TypeError as error:
        raise ConfigError(f"cluster.arguments: {config.kind} does not take them: {error}") from None
    except Exception as error:
        raise TemporaryError(f"the cluster {config.kind} does not start: {error}") from error
    if config.workers is not None:
        cluster.scale(config.workers)
    return cluster


def _connect(config: ClusterConfig) -> tuple[Any, int]:
    from distributed import Client

    where = config.address if config.kind == ADDRESS else config.scheduler_file
    try:
        if config.kind == SCHEDULER_FILE:
            client = Client(scheduler_file=config.scheduler_file, timeout=config.timeout)
        else:
            client = Client(config.address, timeout=config.timeout)
    except FileNotFoundError:
        raise ConfigError(
            f"cluster.scheduler_file: expected a scheduler's file, found none at {where}"
        ) from None
    except (OSError, ValueError) as error:
        raise TemporaryError(
            f"no Dask scheduler answers at {where} within {config.timeout:g} s (cluster.timeout): {error}"
        ) from None
    try:
        return client, _await_workers(client, config)
    except BaseException:
        client.close()
        raise


def _await_workers(client: Any, config: ClusterConfig) -> int:
    from distributed import TimeoutError as DaskTimeoutError

    try:
        client.wait_for_workers(1, timeout=config.timeout)
    except (DaskTimeoutError, TimeoutError):
        raise TemporaryError(
            f"no worker came within {config.timeout:g} s (cluster.timeout): see the cluster's own logs"
        ) from None
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    small = [
        w for w in workers if w["memory_limit"] and w["memory_limit"] / w["nthreads"] < config.memory_bytes
    ]
    if small:
        raise ConfigError(
            f"cluster.memory: expected workers with at least {config.memory} for each thread, found one with "
            f"{small[0]['memory_limit'] / 2**20:.0f} MiB and {small[0]['nthreads']} threads: start workers with more, "
            "or lower cluster.memory"
        )
    return len(workers)
