"""Divergence of segments' probabilities from the truth: with one map, with a map per segment, and partial pooling.

    python benchmarks/segments_shrinkage.py                      # four truths, 1 million rows
    python benchmarks/segments_shrinkage.py --rows 10000000 --truths A
    python benchmarks/segments_shrinkage.py --mcgrad             # with Meta's MCGrad: pip install mcgrad
    python benchmarks/segments_shrinkage.py --kept 0.01          # a hundredth of the negatives

10,000 segments with shares of a power law, 1 % positives. The truth is known; the measure is the mean Kullback-Leibler
divergence from it on held-out rows, 1e-5 nats, with predictions clipped at 1e-6, and the positives that are expected
over those of the truth. With --mcgrad also the
multicalibration error of its package, in sigma: with its defaults, which merge most values of a column, and over all
segments with at least 1,000 rows.

    A   every segment has its own shift and slope
    B   two nested columns with shifts and slopes, and a wave that no shift or slope describes
    C   two crossed columns: each value of the second shifts all segments of the first equally; pairs differ little
    0   segments do not differ
    E   like A, but all segments have one size
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _measure import print_machine
from scipy.special import expit

import logcal
from jobs import fit
from jobs.cluster.starting import starting_executor
from jobs.config.jobs import FitConfig
from jobs.config.loading import load

SEGMENTS, HELD_OUT = 10_000, 1_000_000
EVALUATED = 200_000  # held-out rows used for the multicalibration error


def truth_of(name: str, rng: np.random.Generator):
    """Return a function that draws scores, segments, true probabilities and labels."""
    share = 1.0 / (np.arange(SEGMENTS) + 10.0) ** (0.0 if name == "E" else 1.1)
    share /= share.sum()
    order = rng.permutation(SEGMENTS)  # a segment's number is independent of its size
    first = np.arange(SEGMENTS) // 100
    shift = slope = phase = np.zeros(SEGMENTS)
    if name in "AE":
        shift, slope = rng.normal(0, 0.5, SEGMENTS), rng.normal(0, 0.25, SEGMENTS)
    if name == "B":
        shift = rng.normal(0, 0.4, 100)[first] + rng.normal(0, 0.4, SEGMENTS)
        slope = rng.normal(0, 0.2, 100)[first] + rng.normal(0, 0.2, SEGMENTS)
        phase = rng.uniform(0, 2 * np.pi, SEGMENTS)
    if name == "C":
        second = np.arange(SEGMENTS) % 100
        shift = (
            rng.normal(0, 0.4, 100)[first] + rng.normal(0, 0.4, 100)[second] + rng.normal(0, 0.1, SEGMENTS)
        )
        slope = rng.normal(0, 0.2, 100)[first] + rng.normal(0, 0.2, 100)[second]
    wiggle = 0.5 if name == "B" else 0.0

    def draw(rows: int):
        segment = order[np.searchsorted(np.cumsum(share), rng.random(rows)).clip(0, SEGMENTS - 1)]
        x = rng.normal(0, 1, rows)
        eta = -5.4 + shift[segment] + np.maximum(1.3 + slope[segment], 0.1) * x
        p = expit(eta + wiggle * np.sin(3 * x + phase[segment]))
        return x, segment, p, (rng.random(rows) < p).astype(np.int8)

    return draw


def divergence(p: np.ndarray, q: np.ndarray) -> float:
    """Return the Kullback-Leibler divergence of q from the truth p, 1e-5 nats."""
    q = np.clip(q, 1e-6, 1 - 1e-6)
    return 1e5 * float(np.mean(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))))


def ours(
    folder: Path, name: str, columns: tuple[str, ...], settings: tuple[str, ...], held_out
) -> tuple[float, ...]:
    """Return seconds of the fit, size of the table, and probabilities of the held-out rows."""
    config = load(
        FitConfig,
        (),
        [
            f"log.path={folder / 'log'}", f"store.path={folder / 'store'}", f"store.table={name}",
            "log.score_transform=sigmoid", "gate={min_rows: 0, agreement: false}", "cluster.kind=threads",
            "cluster.workers=2", *settings,
            *([f"log.segment=[{', '.join(columns)}]"] if columns else []),
        ],
    )  # fmt: skip
    began = time.perf_counter()
    with starting_executor(config.cluster) as executor:
        fit.prepare(config).execute(executor())
    seconds = time.perf_counter() - began
    version = next((folder / "store" / name / "versions").iterdir())
    size = sum(file.stat().st_size for file in version.glob("*.parquet"))
    score, segments = held_out
    table = logcal.load(str(folder / "store"), name)
    p = table.predict(score, {c: segments[c] for c in columns} if columns else None)
    return seconds, size, p


def mcgrad(train, held_out, columns) -> tuple[float, float, np.ndarray]:
    """Return the same for Meta's MCGrad with its defaults."""
    import pandas as pd
    from mcgrad import methods

    def frame(score, segments):
        return pd.DataFrame({"score": expit(score), **{c: segments[c].astype(str) for c in columns}})

    training = frame(*train[:2]).assign(label=train[2])
    began = time.perf_counter()
    model = methods.MCGrad()
    model.fit(
        df_train=training, prediction_column_name="score", label_column_name="label",
        categorical_feature_column_names=list(columns),
    )  # fmt: skip
    seconds = time.perf_counter() - began
    names = {"prediction_column_name": "score", "categorical_feature_column_names": list(columns)}
    p = model.predict(df=frame(*held_out), **names)
    return seconds, float("nan"), np.asarray(p)


def multicalibration(labels, p, segments) -> str:
    """Compute the multicalibration error with MCGrad's package."""
    import pandas as pd
    from mcgrad.metrics import MulticalibrationError

    columns = {"p": p, "label": labels, **{c: v.astype(str) for c, v in segments.items()}}
    frame = pd.DataFrame({c: v[:EVALUATED] for c, v in columns.items()})
    all_segments = {
        "max_values_per_segment_feature": SEGMENTS,
        "min_samples_per_segment": 1000,
        "max_n_segments": None,
        "chunk_size": 5,
    }
    errors = [
        MulticalibrationError(frame, "label", "p", categorical_segment_columns=list(segments), **settings)
        for settings in ({}, all_segments)
    ]
    return " / ".join(f"{error.mce_sigma:.1f}" for error in errors)


CONTENDERS = (
    ("one map, isotonic", False, ("calibrator.method=isotonic",)),
    ("one map", False, ()),
    ("own maps or their parents'", True, ("segments.shrinkage=none",)),
    ("pooled with isotonic regression", True, ("calibrator.method=isotonic",)),
    ("adjusted parent curve only", True, ("segments.min_positives=1000000000",)),
    ("auto", True, ()),
)


def main(arguments: list[str]) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--truths", nargs="*", default=["A", "B", "C", "0"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mcgrad", action="store_true")
    parser.add_argument(
        "--kept", type=float, default=1.0, help="share of negatives in the log; without --mcgrad"
    )
    options = parser.parse_args(arguments)
    print_machine()
    sampling = () if options.kept == 1 else (f"log.negative_sampling_rate={options.kept}",)
    column = " multicalibration error, sigma |" if options.mcgrad else ""
    print(f"{options.rows:,} rows\n\n| truth | | KL over the truth | expected | fit, s | table, MB |{column}")
    print("|---" * (7 if column else 6) + "|")
    for name in options.truths:
        draw = truth_of(name, np.random.default_rng(options.seed))
        x, segment, _, labels = draw(options.rows)
        if options.kept < 1:
            kept = (labels == 1) | (np.random.default_rng(options.seed).random(labels.size) < options.kept)
            x, segment, labels = x[kept], segment[kept], labels[kept]
        held_x, held_segment, p, held_label = draw(HELD_OUT)
        columns = ("a", "b") if name in "BC" else ("b",)

        def values(segment, crossed=name == "C", columns=columns):
            pair = {"a": segment // 100, "b": segment % 100 if crossed else segment}
            return {c: pair[c] for c in columns}

        folder = Path(tempfile.mkdtemp(prefix="logcal-shrinkage-"))
        (folder / "log").mkdir()
        table = pa.table({"score": x, "label": labels, **values(segment)})
        pq.write_table(table, folder / "log" / "part-0.parquet", row_group_size=1 << 20)
        held_out = (held_x, values(held_segment))

        def report(label, seconds, size, q, errors, name=name, p=p, held=(held_label, held_out[1])):
            error = f" {multicalibration(held[0], q, held[1])} |" if errors else ""
            print(
                f"| {name} | {label} | {divergence(p, q):.1f} | {q.sum() / p.sum():.3f} | {seconds:.2f} "
                f"| {size / 1e6:.2f} |{error}",
                flush=True,
            )

        for number, (label, by_segment, settings) in enumerate(CONTENDERS):
            report(
                label,
                *ours(folder, f"t{number}", columns if by_segment else (), (*settings, *sampling), held_out),
                errors=options.mcgrad and number in (1, 3, 5),
            )
        if options.mcgrad:
            report("MCGrad", *mcgrad((x, values(segment), labels), held_out, columns), errors=True)
            report("the truth itself", float("nan"), float("nan"), p, errors=True)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
