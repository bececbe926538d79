"""A fit whose labels are joined by key, against DuckDB's join to Parquet and a fit of what it wrote.

    python benchmarks/labels.py /tmp/logcal-bench --rows 20000000 --outcomes 2000000
    python benchmarks/labels.py /tmp/logcal-bench --rows 100000000 --outcomes 50000000 --memory 2GiB --runs 1

Makes predictions with a key and a score (files of 2 million rows) and outcomes in another order, positives alone
(`labels-<rows>-<outcomes>-<key>/`, which stays). Whole processes, start included; the page cache is warm; turns are
interleaved, and processor time is printed, too. The fingerprints of both tables must be equal. Needs the `bench` extra.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from _measure import Contender, clearing, logcal, measure_interleaved, print_machine, print_table, warm

FILE_ROWS = 2_000_000
DUCKDB = """
import duckdb, sys
predictions, outcomes, output, memory, scratch = sys.argv[1:]
connection = duckdb.connect()
connection.execute(f"SET memory_limit='{memory}'; SET threads=2; SET temp_directory='{scratch}'")
connection.execute(
    f"COPY (SELECT p.score, (o.id IS NOT NULL)::TINYINT AS label FROM read_parquet('{predictions}/*.parquet') p "
    f"LEFT JOIN (SELECT DISTINCT id FROM read_parquet('{outcomes}/*.parquet')) o USING (id)) "
    f"TO '{output}' (FORMAT parquet)"
)
"""


def ids(numbers: np.ndarray, key: str) -> pa.Array:
    """Keys: numbers that are spread over 63 bits, or texts of 32 characters."""
    spread = (numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(1)
    if key == "integer":
        return pa.array(spread.view(np.int64))
    digits = pc.utf8_lpad(pa.array(spread.view(np.int64)).cast(pa.string()), 20, "0")
    return pc.binary_join_element_wise("request-2026", digits, "")


def make(folder: Path, rows: int, outcomes: int, key: str) -> Path:
    """Predictions and outcomes; what is there already stays."""
    place = folder / f"labels-{rows}-{outcomes}-{key}"
    if place.exists():
        return place
    draft = folder / f".{place.name}"
    for name in ("predictions", "outcomes"):
        (draft / name).mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(1)
    positive = []
    for start in range(0, rows, FILE_ROWS):
        count = min(FILE_ROWS, rows - start)
        score = random.random(count)
        # Twice the share where scores are uniform.
        positive.append(start + np.flatnonzero(random.random(count) < 2 * score * outcomes / rows))
        table = pa.table({"id": ids(np.arange(start, start + count), key), "score": score})
        pq.write_table(
            table, draft / "predictions" / f"{start // FILE_ROWS:05}.parquet", row_group_size=1 << 20
        )
    every = random.permutation(np.concatenate(positive))
    for start in range(0, every.size, FILE_ROWS):
        table = pa.table({"id": ids(every[start : start + FILE_ROWS], key)})
        pq.write_table(table, draft / "outcomes" / f"{start // FILE_ROWS:05}.parquet", row_group_size=1 << 20)
    return draft.rename(place)


def main(arguments: list[str]) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the files, and for scratch")
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--outcomes", type=int, default=2_000_000, help="about so many")
    parser.add_argument("--key", choices=("integer", "text"), default="integer")
    parser.add_argument("--memory", default="1GiB", help="cluster.memory, and DuckDB's limit")
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args(arguments)
    asked.folder.mkdir(parents=True, exist_ok=True)
    place = make(asked.folder, asked.rows, asked.outcomes, asked.key)
    print_machine()
    warm(place)
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        folder = Path(name)
        own, beforehand = folder / "own", folder / "beforehand"
        for path in (own, beforehand):
            path.mkdir()
        common = ["store.table=bench", f"scratch={folder}", f"cluster.memory={asked.memory}"]
        common += ["calibrator.method=isotonic"]
        labels = ["log.key=id", f"log.labels.path={place / 'outcomes'}"]
        joined = str(beforehand / "joined.parquet")
        paths = [
            str(place / "predictions"),
            str(place / "outcomes"),
            joined,
            asked.memory,
            str(folder / "spill"),
        ]
        join = shlex.join([sys.executable, "-c", DUCKDB, *paths])
        fit = shlex.join(logcal("fit", f"log.path={joined}", f"store.path={beforehand}", *common))
        contenders = [
            Contender(
                "DuckDB's join, then a fit", ["sh", "-c", f"{join} && exec {fit}"], clearing(beforehand)
            ),
            Contender(
                "logcal with log.labels",
                logcal("fit", f"log.path={place / 'predictions'}", f"store.path={own}", *labels, *common),
                clearing(own),
            ),
        ]
        results = measure_interleaved(contenders, asked.runs)
        print_table(results, contenders[0].name)
        for contender, runs in results.items():
            print(f"{contender}: {statistics.median(run.cpu_seconds for run in runs):.1f} processor s")
        found = [json.loads(next(path.rglob("manifest.json")).read_text()) for path in (own, beforehand)]
        assert found[0]["fingerprint"] == found[1]["fingerprint"], "expected the same table"
        print(f"the same table; {found[0]['labels']['rows_matched']:,} rows matched")


if __name__ == "__main__":
    main(sys.argv[1:])
