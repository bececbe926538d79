"""A fit with labels joined by key, against DuckDB's join to Parquet and a fit of the joined file.

    python benchmarks/labels.py /tmp/logcal-bench --rows 20000000 --outcomes 2000000
    python benchmarks/labels.py /tmp/logcal-bench --rows 100000000 --outcomes 50000000 --memory 2GiB --runs 1

Makes predictions with a key and a score (files of 2 million rows), and the outcomes of positives in another order
(`labels-<rows>-<outcomes>-<key>/`, which is kept). Whole processes, start included; the page cache is warm; runs are
interleaved. The fingerprints of both tables must be equal. Needs the `bench` extra.
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
    """Return keys: numbers spread over 63 bits, or texts of 32 characters."""
    spread = (numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(1)
    if key == "integer":
        return pa.array(spread.view(np.int64))
    digits = pc.utf8_lpad(pa.array(spread.view(np.int64)).cast(pa.string()), 20, "0")
    return pc.binary_join_element_wise("request-2026", digits, "")


def make(folder: Path, rows: int, outcomes: int, key: str) -> Path:
    """Make predictions and outcomes, unless they exist."""
    target = folder / f"labels-{rows}-{outcomes}-{key}"
    if target.exists():
        return target
    draft = folder / f".{target.name}"
    for name in ("predictions", "outcomes"):
        (draft / name).mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(1)
    positive = []
    for start in range(0, rows, FILE_ROWS):
        count = min(FILE_ROWS, rows - start)
        score = random.random(count)
        # The factor 2 makes the mean share outcomes / rows, as scores are uniform.
        positive.append(start + np.flatnonzero(random.random(count) < 2 * score * outcomes / rows))
        table = pa.table({"id": ids(np.arange(start, start + count), key), "score": score})
        pq.write_table(
            table, draft / "predictions" / f"{start // FILE_ROWS:05}.parquet", row_group_size=1 << 20
        )
    shuffled = random.permutation(np.concatenate(positive))
    for start in range(0, shuffled.size, FILE_ROWS):
        table = pa.table({"id": ids(shuffled[start : start + FILE_ROWS], key)})
        pq.write_table(table, draft / "outcomes" / f"{start // FILE_ROWS:05}.parquet", row_group_size=1 << 20)
    return draft.rename(target)


def main(arguments: list[str]) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder for the files and scratch")
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--outcomes", type=int, default=2_000_000, help="approximate number")
    parser.add_argument("--key", choices=("integer", "text"), default="integer")
    parser.add_argument("--memory", default="1GiB", help="cluster.memory and DuckDB's limit")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    data = make(options.folder, options.rows, options.outcomes, options.key)
    print_machine()
    warm(data)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        direct, joined_first = folder / "direct", folder / "joined_first"
        for path in (direct, joined_first):
            path.mkdir()
        common = ["store.table=bench", f"scratch={folder}", f"cluster.memory={options.memory}"]
        common += ["calibrator.method=isotonic"]
        labels = ["log.key=id", f"log.labels.path={data / 'outcomes'}"]
        joined = str(joined_first / "joined.parquet")
        paths = [
            str(data / "predictions"),
            str(data / "outcomes"),
            joined,
            options.memory,
            str(folder / "spill"),
        ]
        join = shlex.join([sys.executable, "-c", DUCKDB, *paths])
        fit = shlex.join(logcal("fit", f"log.path={joined}", f"store.path={joined_first / 'store'}", *common))
        contenders = [
            Contender(
                "DuckDB's join, then a fit", ["sh", "-c", f"{join} && exec {fit}"], clearing(joined_first)
            ),
            Contender(
                "logcal with log.labels",
                logcal("fit", f"log.path={data / 'predictions'}", f"store.path={direct}", *labels, *common),
                clearing(direct),
            ),
        ]
        results = measure_interleaved(contenders, options.runs)
        print_table(results, contenders[0].name)
        for contender, runs in results.items():
            print(f"{contender}: {statistics.median(run.cpu_seconds for run in runs):.1f} processor s")
        stores = (direct, joined_first)
        manifests = [json.loads(next(path.rglob("manifest.json")).read_text()) for path in stores]
        assert manifests[0]["fingerprint"] == manifests[1]["fingerprint"], "expected the same table"
        print(f"the same table; {manifests[0]['labels']['rows_matched']:,} rows matched")


if __name__ == "__main__":
    main(sys.argv[1:])
