"""How near to the truth segments' probabilities come: with one map, with maps of their own, and borrowing strength.

    python benchmarks/segments_shrinkage.py                      # four truths, 1 million rows
    python benchmarks/segments_shrinkage.py --rows 10000000 --truths A
    python benchmarks/segments_shrinkage.py --mcgrad             # Meta's MCGrad beside them: pip install mcgrad

10,000 segments with shares of a power law, 1 % positives; the truth is known, and what is measured is the mean
Kullback-Leibler divergence over it, 1e-5 nats, on rows that nobody was fitted to; predictions are clipped at 1e-6. With
--mcgrad its package's multicalibration error, too, in sigma: by its defaults, which merge most values of a column, and
over all segments with 1,000 rows or more.

    A   every segment has a shift and a slope of its own
    B   two nested columns of shifts and slopes, and a wiggle that no shift or slope describes
    C   two crossed columns: each value of the second shifts all segments of the first alike, and pairs differ little
    0   segments do not differ
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
JUDGED = 200_000  # of the held-out rows, by the multicalibration error


def truth_of(name: str, rng: np.random.Generator):
    """Of scores and segments the probability, and how to draw segments."""
    share = 1.0 / (np.arange(SEGMENTS) + 10.0) ** 1.1
    share /= share.sum()
    order = rng.permutation(SEGMENTS)  # a segment's number says nothing of its size
    first = np.arange(SEGMENTS) // 100
    shift = slope = phase = np.zeros(SEGMENTS)
    if name == "A":
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
    """KL over the truth, 1e-5 nats."""
    q = np.clip(q, 1e-6, 1 - 1e-6)
    return 1e5 * float(np.mean(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))))


def ours(
    folder: Path, name: str, columns: tuple[str, ...], settings: tuple[str, ...], held_out
) -> tuple[float, ...]:
    """Seconds of the fit, size of the table, and the probabilities of held-out rows."""
    config = load(
        FitConfig,
        (),
        [
            f"log.path={folder / 'log'}", f"store.path={folder / 'store'}", f"store.table={name}",
            "log.score_transform=sigmoid", "gate.min_rows=0", "cluster.kind=threads", "cluster.workers=2", *settings,
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
    """Meta's, with its defaults."""
    import pandas as pd
    from mcgrad import methods

    def frame(score, segments):
        return pd.DataFrame({"score": expit(score), **{c: segments[c].astype(str) for c in columns}})

    one = frame(*train[:2]).assign(label=train[2])
    began = time.perf_counter()
    model = methods.MCGrad()
    model.fit(
        df_train=one, prediction_column_name="score", label_column_name="label",
        categorical_feature_column_names=list(columns),
    )  # fmt: skip
    seconds = time.perf_counter() - began
    names = {"prediction_column_name": "score", "categorical_feature_column_names": list(columns)}
    p = model.predict(df=frame(*held_out), **names)
    return seconds, float("nan"), np.asarray(p)


def multicalibration(labels, p, segments) -> str:
    """As MCGrad's package computes it."""
    import pandas as pd
    from mcgrad.metrics import MulticalibrationError

    columns = {"p": p, "label": labels, **{c: v.astype(str) for c, v in segments.items()}}
    frame = pd.DataFrame({c: v[:JUDGED] for c, v in columns.items()})
    every = {
        "max_values_per_segment_feature": SEGMENTS,
        "min_samples_per_segment": 1000,
        "max_n_segments": None,
        "chunk_size": 5,
    }
    found = [
        MulticalibrationError(frame, "label", "p", categorical_segment_columns=list(segments), **settings)
        for settings in ({}, every)
    ]
    return " / ".join(f"{one.mce_sigma:.1f}" for one in found)


CONTENDERS = (
    ("one map, isotonic", False, ("calibrator.method=isotonic",)),
    ("one map", False, ()),
    ("maps of their own or their parents'", True, ("segments.shrinkage=none",)),
    ("pooled with isotonic regression", True, ("calibrator.method=isotonic",)),
    ("moved alone", True, ("segments.min_positives=1000000000",)),
    ("auto", True, ()),
)


def main(arguments: list[str]) -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--truths", nargs="*", default=["A", "B", "C", "0"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mcgrad", action="store_true")
    given = parser.parse_args(arguments)
    print_machine()
    more = " multicalibration error, sigma |" if given.mcgrad else ""
    print(f"{given.rows:,} rows\n\n| truth | | KL over the truth | fit, s | table, MB |{more}")
    print("|---" * (6 if more else 5) + "|")
    for name in given.truths:
        draw = truth_of(name, np.random.default_rng(given.seed))
        x, segment, _, label = draw(given.rows)
        held_x, held_segment, p, held_label = draw(HELD_OUT)
        columns = ("a", "b") if name in "BC" else ("b",)

        def values(segment, crossed=name == "C", columns=columns):
            every = {"a": segment // 100, "b": segment % 100 if crossed else segment}
            return {c: every[c] for c in columns}

        folder = Path(tempfile.mkdtemp(prefix="logcal-shrinkage-"))
        (folder / "log").mkdir()
        table = pa.table({"score": x, "label": label, **values(segment)})
        pq.write_table(table, folder / "log" / "part-0.parquet", row_group_size=1 << 20)
        held_out = (held_x, values(held_segment))

        def say(said, seconds, size, q, judged, name=name, p=p, held=(held_label, held_out[1])):
            error = f" {multicalibration(held[0], q, held[1])} |" if judged else ""
            print(
                f"| {name} | {said} | {divergence(p, q):.1f} | {seconds:.2f} | {size / 1e6:.2f} |{error}",
                flush=True,
            )

        for number, (said, by_segment, settings) in enumerate(CONTENDERS):
            say(
                said,
                *ours(folder, f"t{number}", columns if by_segment else (), settings, held_out),
                judged=given.mcgrad and number in (1, 3, 5),
            )
        if given.mcgrad:
            say("MCGrad", *mcgrad((x, values(segment), label), held_out, columns), judged=True)
            say("the truth itself", float("nan"), float("nan"), p, judged=True)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
