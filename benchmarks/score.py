"""`logcal score` against a lower bound: pyarrow reads all columns and writes them with one more float64 column.

    python benchmarks/score.py /tmp/logcal-bench/log100m

The bound is two processes that copy a row group at a time, with the source's codec and encodings; the new column is a
copy of the score. Whole processes, start included; the page cache is warm; medians of interleaved runs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
from _measure import Contender, logcal, measure, measure_interleaved, print_machine, print_table, warm


def copy_log(log: Path, output: Path, processes: int) -> None:
    """Copy a log with an additional column: the lower bound."""
    output.mkdir()
    files = sorted(log.glob("*.parquet"))
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_copy_file, files, [output / file.name for file in files]))


def _copy_file(source: Path, target: Path) -> None:
    with pq.ParquetFile(source, memory_map=True, pre_buffer=False) as parquet:
        group = parquet.metadata.row_group(0)
        columns = [group.column(i) for i in range(group.num_columns)]
        schema = parquet.schema_arrow.append(parquet.schema_arrow.field("score").with_name("probability"))
        with pq.ParquetWriter(
            target,
            schema,
            compression={column.path_in_schema: column.compression for column in columns}
            | {"probability": columns[0].compression},
            use_dictionary=[column.path_in_schema for column in columns if column.has_dictionary_page],
        ) as writer:
            for index in range(parquet.num_row_groups):
                table = parquet.read_row_group(index, use_threads=False)
                table = table.append_column(schema.field("probability"), table.column("score"))
                writer.write_table(table, row_group_size=table.num_rows)


def main(arguments: list[str]) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("log", type=Path, help="written by make_log.py")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--scratch", type=Path, help="folder for outputs (default: the log's folder)")
    parser.add_argument("--floor-output", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.floor_output is not None:
        copy_log(options.log, options.floor_output, processes=2)
        return
    print_machine()
    size = warm(options.log)
    print(f"{options.log}: {size / 1e6:,.0f} MB")
    folder = Path(tempfile.mkdtemp(prefix="logcal-score-", dir=options.scratch or options.log.parent))
    try:
        _compare(options.log, folder, options.runs)
    finally:
        shutil.rmtree(folder)


def _compare(log: Path, folder: Path, runs: int) -> None:
    common = (f"log.path={log}", f"store.path={folder / 'store'}", "store.table=bench", "cluster.workers=2")
    measure(logcal("fit", *common, f"scratch={folder}"))
    outputs = {name: folder / name for name in ("ours", "floor")}

    def clear() -> None:
        for output in outputs.values():
            shutil.rmtree(output, ignore_errors=True)

    results = measure_interleaved(
        [
            Contender(
                "two pyarrow processes",
                [sys.executable, __file__, str(log), "--floor-output", str(outputs["floor"])],
                clear,
            ),
            Contender(
                "logcal score",
                logcal("score", *common, f"output.path={outputs['ours']}"),
                clear,
            ),
        ],
        runs,
    )
    print_table(results, against="two pyarrow processes")
    print(
        f"output of logcal score: {sum(p.stat().st_size for p in outputs['ours'].rglob('*.parquet')) / 1e6:,.0f} MB"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
