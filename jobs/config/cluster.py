"""Configuration of the cluster."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from jobs.config.base import PathText, Section, Text

AUTO, INLINE, THREADS, LOCAL = "auto", "inline", "threads", "local"


ADDRESS, SCHEDULER_FILE = "address", "scheduler_file"


CLUSTER_KINDS = (AUTO, INLINE, THREADS, LOCAL, ADDRESS, SCHEDULER_FILE)


_UNITS = {
    "B": 1,
    **{f"{prefix}B": 1000 ** (i + 1) for i, prefix in enumerate("KMGT")},
    **{f"{prefix}iB": 1024 ** (i + 1) for i, prefix in enumerate("KMGT")},
}


MIN_MEMORY = 256 * 1024**2
"""Least memory of a worker in bytes: it takes about 155 MB after its imports, and is killed above 95 % of its limit."""


def parse_bytes(text: str) -> int:
    """Parse a size such as '2GiB' or '1500 MB' to bytes. Raises ValueError.

    >>> parse_bytes("1.5KiB")
    1536
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text)
    unit = {name.lower(): size for name, size in _UNITS.items()}.get(match[2].lower()) if match else None
    size = math.inf if match is None or unit is None else float(match[1]) * unit
    if math.isinf(size):
        raise ValueError(f"expected a size with its unit, such as 2GiB or 1500MB, found {text[:80]!r}")
    return int(size)


def _check_memory(text: Any) -> str:
    if parse_bytes(str(text)) < MIN_MEMORY:
        raise ValueError(f"expected at least 256MiB, which a worker needs to start, found {text!r}")
    return text


def _check_kind(kind: str) -> str:
    if kind in CLUSTER_KINDS or re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", kind):
        return kind
    other = "the dotted path of a cluster class, such as dask_jobqueue.SLURMCluster"
    raise PydanticCustomError("choice", "", {"choices": CLUSTER_KINDS, "or": other})


class SecurityConfig(Section):
    """Certificates for a scheduler at a tls address."""

    ca_file: PathText | None = None
    """Certificate of the authority that signed the scheduler's. null: as in Dask's own configuration."""
    cert_file: PathText | None = None
    """Certificate of this command."""
    key_file: PathText | None = None
    """The key of cert_file."""

    @property
    def is_set(self) -> bool:
        """True if certificates are configured."""
        return self.ca_file is not None

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Check that all three files are given, or none."""
        keys = ("ca_file", "cert_file", "key_file")
        set_keys = [key for key in keys if getattr(self, key) is not None]
        for key in keys:
            if set_keys and key not in set_keys:
                yield key, f"REQUIRED with cluster.security.{set_keys[0]}"


class ClusterConfig(Section):
    """Place where the work runs."""

    kind: Annotated[Text, AfterValidator(_check_kind)] = AUTO
    """auto: local if classifiers are trained or applied; otherwise threads, and also forked processes if many small
    files are scored. inline: in this process, one task after the other, for debugging. threads: on
    threads of this process. local: on worker processes of this machine, as a Dask cluster. address, scheduler_file:
    a Dask cluster that is running. Or the dotted path of a cluster class, such as dask_jobqueue.SLURMCluster,
    dask_kubernetes.operator.KubeCluster or coiled.Cluster.
    """
    workers: int | None = Field(None, ge=1)
    """Number of workers. null: with auto, threads and local, one per core as far as the memory goes; with a class,
    as many as the class starts by itself. Not used with the other kinds.
    """
    memory: Annotated[Text, BeforeValidator(_check_memory)] = "2GiB"
    """Memory of each worker, such as 2GiB or 1500MB. Tasks are sized for it, and a worker process of this machine never
    gets more. Workers of a running cluster must have at least as much for each of their threads.
    """
    address: Text | None = None
    """With kind address: the scheduler's, such as tcp://10.0.0.5:8786."""
    scheduler_file: PathText | None = None
    """With kind scheduler_file: the file that the scheduler wrote (dask scheduler --scheduler-file)."""
    arguments: dict[str, Any] = Field({})
    """With a class: its keyword arguments."""
    security: SecurityConfig = Field(default_factory=SecurityConfig)
    """With kind address or scheduler_file: certificates (TLS)."""
    timeout: float = Field(300.0, gt=0)
    """Seconds to wait for the cluster's first worker, or for a new one if all have gone."""

    @property
    def memory_bytes(self) -> int:
        """Memory of each worker."""
        return parse_bytes(self.memory)

    @property
    def on_this_machine(self) -> bool:
        """True if workers are processes of this machine."""
        return self.kind in (AUTO, LOCAL)

    @property
    def by_class(self) -> bool:
        """True if `kind` is the dotted path of a class."""
        return self.kind not in CLUSTER_KINDS

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Check that the keys of a kind are given exactly with that kind."""
        for key in (ADDRESS, SCHEDULER_FILE):
            is_set = getattr(self, key) is not None
            if self.kind == key and not is_set:
                yield key, f"REQUIRED with cluster.kind={key}"
            elif is_set and self.kind != key:
                yield key, f"only goes with cluster.kind={key}, found cluster.kind={self.kind}"
        if self.arguments and not self.by_class:
            yield "arguments", f"only go with a cluster class, found cluster.kind={self.kind}"
        if self.security.is_set and self.kind not in (ADDRESS, SCHEDULER_FILE):
            kinds = f"{ADDRESS} or {SCHEDULER_FILE}"
            yield "security", f"only goes with cluster.kind={kinds}, found cluster.kind={self.kind}"
