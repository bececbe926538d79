"""Write a log for the benchmarks: predictions of an uncalibrated classifier.

    python benchmarks/make_log.py /tmp/logcal-bench/log100m
    python benchmarks/make_log.py /tmp/logcal-bench/ties100m --tie-share 0.4
    python benchmarks/make_log.py /tmp/logcal-bench/segments100m --segments 10000

The same arguments write the same bytes. Without --tie-share all scores of the log are distinct. With --segments there
is a string column 'segment', whose i-th value has a share of the rows proportional to 1 / i. Each process holds one
file in memory at a time.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.ensemble import HistGradientBoostingClassifier

TIE_SCORE = 0.125
MODELS = 20
FEATURES = 6


@dataclass(frozen=True)
class LogSpec:
    """Specification of a log; equal specifications give equal bytes."""

    rows: int = 100_000_000
    files: int = 50
    row_groups: int = 2
    tie_share: float = 0.0
    weights: bool = False
    segments: int = 0
    second_segment: int = 0
    digits: int = 0
    values: int = 0
    float32: bool = False
    wide: int = 0
    codec: str = "snappy"
    seed: int = 20_260_101
    file_rows: int = 0
    segment_rows: int = 0
    leaves: bool = False
    dictionary: bool = False

    def with_rows(self, rows: int) -> LogSpec:
        """Change the number of rows; files have `file_rows` (default 2 million) rows, segments `segment_rows`."""
        files = max(rows // (self.file_rows or 2_000_000), 1) if self.files != 1 else 1
        segments = rows // self.segment_rows if self.segment_rows else self.segments
        return replace(self, rows=rows, files=files, segments=segments)


def write_log(path: Path, spec: LogSpec, processes: int = 2) -> None:
    """Write the log's files into a new directory, which appears only when it is complete."""
    staging = path.with_name(f".{path.name}.tmp")
    staging.mkdir(parents=True, exist_ok=False)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        for future in [pool.submit(_write_file, staging, spec, i) for i in range(spec.files)]:
            future.result()
    staging.rename(path)


def _write_file(directory: Path, spec: LogSpec, file: int) -> None:
    start, stop = spec.rows * file // spec.files, spec.rows * (file + 1) // spec.files
    table = _table(spec, file, stop - start)
    pq.write_table(
        table,
        directory / f"part-{file:05d}.parquet",
        compression=spec.codec,
        use_dictionary=spec.dictionary
        or ["model_id", "segment", "region", *(f"text_{i}" for i in range(spec.wide // 2))],
        row_group_size=-(-(stop - start) // spec.row_groups),
    )


def _table(spec: LogSpec, file: int, rows: int) -> pa.Table:
    rng = np.random.default_rng([spec.seed, file])
    score = _distinct(np.clip(rng.beta(0.6, 2.0, rows), 1e-12, 1 - 1e-6), file, spec.files)
    if spec.tie_share > 0:
        score[rng.random(rows) < spec.tie_share] = TIE_SCORE
    if spec.digits:
        score = np.maximum(np.round(score, spec.digits), 10.0**-spec.digits)
    if spec.values:
        score = (np.floor(score * spec.values) + 0.5) / spec.values
    if spec.leaves:
        features = rng.normal(size=(rows, FEATURES)).astype(np.float32)
        score = _trees().predict_proba(features)[:, 1].astype(np.float32).astype(np.float64)
    odds = score / (1 - score)
    positive_odds = 0.8 * odds**0.7
    label = rng.random(rows) < positive_odds / (1 + positive_odds)
    model = rng.integers(0, MODELS, rows, dtype=np.int32)
    gaps = rng.integers(1, 200_000, rows)
    columns: dict[str, pa.Array] = {
        "score": pa.array(score.astype(np.float32) if spec.float32 else score),
        "label": pa.array(label.astype(np.int8)),
        "model_id": pa.DictionaryArray.from_arrays(model, [f"model-{i:02d}" for i in range(MODELS)]),
        "ts": pa.array(1_767_225_600_000_000 + file * 400_000_000_000 + np.cumsum(gaps)),
    }
    if spec.weights:
        columns["weight"] = pa.array(rng.lognormal(0.0, 0.5, rows))
    if spec.segments:
        if spec.segment_rows:
            ranks = rng.integers(0, spec.segments, rows)
        else:
            ranks = np.searchsorted(_shares(spec.segments), rng.random(rows), side="right")
        names = pa.array([f"segment-{i:06d}" for i in range(spec.segments)])
        # Strings, as most writers do not store that a column was categorical.
        columns["segment"] = names.take(pa.array(ranks))
    if spec.second_segment:
        regions = pa.array([f"region-{i:02d}" for i in range(spec.second_segment)])
        columns["region"] = regions.take(pa.array(rng.integers(0, spec.second_segment, rows)))
    for i in range(spec.wide // 2):
        words = pa.array([f"word-{i}-{j:04d}" for j in range(1000)])
        columns[f"text_{i}"] = words.take(pa.array(rng.integers(0, 1000, rows)))
        columns[f"number_{i}"] = pa.array(rng.random(rows).astype(np.float32))
    return pa.table(columns)


@functools.cache
def _trees() -> HistGradientBoostingClassifier:
    """Fit twenty trees of eight leaves, which give about 70,000 distinct probabilities in two million rows."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(100_000, FEATURES)).astype(np.float32)
    logit = features @ (0.8, -0.5, 0.3, 0.2, 0, 0) + 0.4 * features[:, 0] * features[:, 4] - 1.2
    label = rng.random(logit.size) < 1 / (1 + np.exp(-logit))
    trees = HistGradientBoostingClassifier(
        max_iter=20, max_leaf_nodes=8, early_stopping=False, random_state=0
    )
    return trees.fit(features, label)


def _shares(segments: int) -> np.ndarray:
    """Return the cumulative shares of all segments but the last; the i-th share is proportional to 1 / i."""
    share = np.cumsum(1 / np.arange(1, segments + 1))
    return share[:-1] / share[-1]


def _distinct(score: np.ndarray, file: int, files: int) -> np.ndarray:
    """Make all scores of the log distinct, by relative changes below 1e-13: the low bits hold the file's number."""
    step = 1 << (files - 1).bit_length()
    bits = (score.view(np.int64) & -step) | file
    while True:
        order = np.argsort(bits, kind="stable")
        repeated = np.flatnonzero(bits[order][1:] == bits[order][:-1]) + 1
        if repeated.size == 0:
            return bits.view(np.float64)
        bits[order[repeated]] += step


def main(arguments: list[str]) -> None:
    """Write a log, unless it exists."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("path", type=Path, help="directory to write")
    parser.add_argument("--rows", type=int, default=LogSpec.rows)
    parser.add_argument("--files", type=int, default=LogSpec.files)
    parser.add_argument("--row-groups", type=int, default=LogSpec.row_groups, help="per file")
    parser.add_argument("--tie-share", type=float, default=0.0, help="share of the rows at one score")
    parser.add_argument("--weights", action="store_true", help="add a float64 column 'weight'")
    parser.add_argument("--segments", type=int, default=0, help="number of values of a column 'segment'")
    parser.add_argument("--second-segment", type=int, default=0, help="number of values of a column 'region'")
    parser.add_argument("--digits", type=int, default=0, help="decimals of the scores; 0: all")
    parser.add_argument("--values", type=int, default=0, help="number of distinct scores; 0: unlimited")
    parser.add_argument("--float32", action="store_true", help="write scores as float32")
    parser.add_argument("--leaves", action="store_true", help="scores of boosted trees, rounded to float32")
    parser.add_argument("--dictionary", action="store_true", help="encode all columns with dictionaries")
    parser.add_argument("--wide", type=int, default=0, help="further columns, half of them strings")
    parser.add_argument("--codec", default="snappy")
    parser.add_argument("--seed", type=int, default=LogSpec.seed)
    parser.add_argument("--processes", type=int, default=2)
    options = vars(parser.parse_args(arguments))
    path, processes = options.pop("path"), options.pop("processes")
    if path.exists():
        print(f"{path} exists")
        return
    write_log(path, LogSpec(**options), processes)
    size = sum(file.stat().st_size for file in path.glob("*.parquet"))
    print(f"{path}: {options['rows']:,} rows in {options['files']} files, {size / 1e6:,.0f} MB")


if __name__ == "__main__":
    main(sys.argv[1:])
