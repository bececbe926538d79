"""Logs of a folder a day, and fits of their windows."""

import datetime as dt
import itertools
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.common import ANY_TABLE, run_job

FIRST = dt.date(2026, 1, 1)

NAMES = ["a", "b", None, "c"]

_times = itertools.count(1_700_000_000)


def rows_of(seed: int, rows: int = 120) -> pa.Table:
    rng = np.random.default_rng(seed)
    score = np.where(rng.random(rows) < 0.4, 0.5, rng.integers(0, 400, rows) / 400)
    return pa.table(
        {
            "score": score,
            "label": (rng.random(rows) < score).astype(np.int8),
            "w": rng.choice([0.1, 1.0, 1e-9, 3e11], rows),
            "model": pa.array([NAMES[i] for i in rng.integers(0, 4, rows)]),
        }
    )


def date_of(day: int) -> str:
    return (FIRST + dt.timedelta(days=day)).isoformat()


def write_day(log: Path, day: int, table: pa.Table, name: str = "part-0") -> None:
    """Write a file, later than all before it."""
    path = log / f"date={date_of(day)}" / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=50)
    now = next(_times)
    os.utime(path, (now, now))


def run(root: Path, path, store: str = "store", /, *, log=None, **sections):
    own = {"store": {"path": root / store, "table": "ads"}, "scratch": root, "gate": ANY_TABLE}
    if "window" in sections:  # days of some hundred rows that are made to differ
        sections["window"] = {"suspect_days": "use", **sections["window"]}
    return run_job("fit", log={"path": path, **(log or {})}, **own, **sections)


def window(last: str = "3d", **more):
    return {"column": "date", "last": last, **more}


def manifest(summary):
    return json.loads((Path(summary["lookup_path"]).parent / "manifest.json").read_text())


def content(summary) -> str:
    return summary["fingerprint"]
