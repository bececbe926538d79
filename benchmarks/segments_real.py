"""Partial pooling on real data sets: with isotonic regression, and with the curve of `auto`.

    python benchmarks/segments_real.py FOLDER    # FOLDER has Parquet files with a column `label`: adult, covtype, ...

A classifier of a few columns is trained on a third of the rows and calibrated on another third. The measure is the log
loss on the last third minus that of one map for all rows, 1e-5 nats: the mean over draws and its standard error. The
segments are the values of a column that the classifier does not see; numbers are cut at their deciles.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from _measure import print_machine
from segments_shrinkage import ours
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

MOST_ROWS = 60_000


def sets(folder: Path, chosen: dict[str, str]):
    """Yield name, frame and segment column of each data set in the folder."""
    for name, column in chosen.items():
        path = folder / f"{name}.parquet"
        if path.exists():
            frame = pq.read_table(path).to_pandas()
            yield name, frame.sample(min(len(frame), MOST_ROWS), random_state=0), column


def segments_of(values: pd.Series) -> np.ndarray:
    """Number the segments: deciles of numbers with many values, else the values."""
    if values.nunique() > 50 and pd.api.types.is_numeric_dtype(values):
        return pd.qcut(values, 10, labels=False, duplicates="drop").fillna(-1).to_numpy(np.int64)
    return pd.factorize(values)[0].astype(np.int64)


def classifier():
    """Return a linear classifier of a few columns, so that segments differ."""
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    texts = OneHotEncoder(handle_unknown="ignore", max_categories=20)
    kinds = make_column_selector(dtype_include=np.number), make_column_selector(dtype_exclude=np.number)
    return make_pipeline(
        make_column_transformer((numbers, kinds[0]), (texts, kinds[1])), LogisticRegression(max_iter=200)
    )


def main(arguments: list[str]) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument(
        "--segments",
        nargs="*",
        default=["adult:occupation", "covtype:Elevation", "contraceptive:wife_age"],
    )
    options = parser.parse_args(arguments)
    print_machine()
    settings = {
        "none": ("segments.shrinkage=none",),
        "pooled with isotonic regression": ("calibrator.method=isotonic",),
        "adjusted parent curve only": ("segments.min_positives=1000000000",),
        "auto": (),
    }
    names = ["one map, isotonic", *settings]
    print(f"| set | {' | '.join(names)} |\n|---|{'---|' * len(names)}", flush=True)
    chosen = dict(pair.split(":") for pair in options.segments)
    for name, frame, column in sets(options.folder, chosen):
        label = frame.pop("label").to_numpy().astype(np.int8)
        segment = segments_of(frame.pop(column))
        few = frame[frame.columns[:6]]
        losses: dict[str, list[float]] = {method: [] for method in names}
        for draw in range(options.draws):
            part = np.random.default_rng(draw).permutation(len(label)) % 3
            score = classifier().fit(few[part == 0], label[part == 0]).decision_function(few)
            folder = Path(tempfile.mkdtemp(prefix="logcal-real-"))
            (folder / "log").mkdir()
            fitted, held = part == 1, part == 2
            table = pa.table({"score": score[fitted], "label": label[fitted], "s": segment[fitted]})
            pq.write_table(table, folder / "log" / "part-0.parquet")
            rows = (score[held], {"s": segment[held]})

            def loss(table, columns, settings, rows=rows, y=label[held], folder=folder):
                p = np.clip(ours(folder, table, columns, settings, rows)[2], 1e-6, 1 - 1e-6)
                return -1e5 * float(np.mean(np.where(y == 1, np.log(p), np.log1p(-p))))

            baseline = loss("one", (), ())
            losses[names[0]].append(loss("isotonic", (), ("calibrator.method=isotonic",)) - baseline)
            for i, (method, extra) in enumerate(settings.items()):
                losses[method].append(loss(f"s{i}", ("s",), extra) - baseline)
            shutil.rmtree(folder)
        cells = [f"{np.mean(v):.0f} ± {np.std(v, ddof=1) / np.sqrt(len(v)):.0f}" for v in losses.values()]
        print(f"| {name}, {column} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
