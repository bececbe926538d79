"""Divergence of two crossed columns' probabilities from the truth: effects that add up, multiply, or break the model.

    python benchmarks/segments_crossed.py                          # all truths, three draws each
    python benchmarks/segments_crossed.py --truths adding multiplying

40 values of each of two columns, of unequal sizes; 200,000 rows of 3 to 10 % positives. Values have shifts and slopes
in the log odds of the score. Printed for each draw, and as a mean: the Kullback-Leibler divergence from the truth on
200,000 other rows, 1e-5 nats, of `auto`; and means of one map, and of own maps or their parents'.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _measure import print_machine
from scipy.special import expit
from segments_shrinkage import divergence, ours

HELD_OUT = 200_000
SLOPE = 1.2


class Truth(NamedTuple):
    """How a log is drawn.

    Attributes
    ----------
    shifts, slopes : standard deviations over the values of the first column, and of the second
    pairs, third : standard deviations of a shift of each pair, and of each of 8 values of a third column
    mix : how the second column's values are spread in one of the first: Dirichlet concentration, drawn for each value;
        None: alike for all
    leak : 97 % of the rows are nested: 5 of 200 values for each of the first column
    multiplying : the second column's value stretches the curve of the first's
    odd : what the fourth value of a column (0, 1) has: "inverted", "never positive", "shifted"
    """

    rows: int = 200_000
    base: float = -3.5
    values: int = 40
    shifts: tuple[float, float] = (0.4, 0.4)
    slopes: tuple[float, float] = (0.2, 0.2)
    pairs: float = 0.0
    third: float = 0.0
    mix: float | None = None
    scale: float = 1.0
    leak: bool = False
    multiplying: bool = False
    odd: tuple[int, str] | None = None


TRUTHS = {
    "adding": Truth(),
    "adding, strong": Truth(shifts=(1.5, 1.5)),
    "adding, slopes": Truth(slopes=(0.5, 0.5)),
    "adding, 5 x 5 values": Truth(values=5),
    "adding, 4,000 rows": Truth(rows=4000, base=-2.0),
    "adding, 2 million rows": Truth(rows=2_000_000),
    "multiplying": Truth(multiplying=True),
    "multiplying, strong": Truth(shifts=(0.8, 0.8), slopes=(0.4, 0.4), multiplying=True),
    "no differences": Truth(shifts=(0.0, 0.0), slopes=(0.0, 0.0)),
    "first column only": Truth(shifts=(0.4, 0.0), slopes=(0.2, 0.0)),
    "second column only": Truth(shifts=(0.0, 0.4), slopes=(0.0, 0.2)),
    "pairs": Truth(pairs=0.3),
    "three columns": Truth(third=0.4),
    "confounded": Truth(mix=0.05),
    "confounded, strong": Truth(mix=0.05, scale=3.0),
    "nearly nested": Truth(leak=True),
    "first column: one inverted": Truth(odd=(0, "inverted")),
    "first column: one never positive": Truth(odd=(0, "never positive")),
    "second column: one never positive": Truth(odd=(1, "never positive")),
    "first column: one shifted by 4": Truth(odd=(0, "shifted")),
}
ODD = {
    "inverted": lambda odds: -odds - 2,
    "never positive": lambda odds: np.full_like(odds, -12.0),
    "shifted": lambda odds: odds + 4,
}
CONTENDERS = (
    ("auto", True, ()),
    ("one map", False, ()),
    ("own maps or their parents'", True, ("segments.shrinkage=none",)),
)


def drawing(truth: Truth, random: np.random.Generator):
    """Return a function that draws scores, segments, true probabilities and labels."""
    first, second = truth.values, truth.values * (5 if truth.leak else 1)
    share = random.dirichlet(np.full(first, 0.7))
    a_shift, b_shift = (
        truth.scale * random.normal(0, s, n) for s, n in zip(truth.shifts, (first, second), strict=True)
    )
    a_slope, b_slope = (random.normal(0, s, n) for s, n in zip(truth.slopes, (first, second), strict=True))
    pairs = random.normal(0, truth.pairs, (first, second)) if truth.pairs else np.zeros((first, second))
    of_third = random.normal(0, truth.third, 8) if truth.third else None
    if truth.leak:
        mix = np.full((first, second), 0.03 / second) + 0.97 / 5 * np.repeat(np.eye(first), 5, axis=1)
    else:
        mix = random.dirichlet(np.full(second, truth.mix or 0.7), first if truth.mix else 1)

    def draw(rows: int):
        a, u = random.choice(first, rows, p=share), random.random(rows)
        b = np.empty_like(a)
        for value in range(first):
            upper = np.cumsum(mix[value % len(mix)])
            b[a == value] = np.searchsorted(upper / upper[-1], u[a == value])
        x, segments = random.normal(size=rows), {"a": a, "b": b}
        odds = b_shift[b] + pairs[a, b] + a_shift[a] + np.maximum(SLOPE + a_slope[a] + b_slope[b], 0.05) * x
        if truth.multiplying:
            odds = b_shift[b] + (1 + b_slope[b] / SLOPE) * (a_shift[a] + (SLOPE + a_slope[a]) * x)
        odds += truth.base
        if of_third is not None:
            segments["c"] = random.integers(0, 8, rows)
            odds += of_third[segments["c"]]
        if truth.odd is not None:
            odds = np.where((a, b)[truth.odd[0]] == 3, ODD[truth.odd[1]](odds), odds)
        p = expit(odds)
        return x, segments, p, (random.random(rows) < p).astype(np.int8)

    return draw


def measured(truth: Truth, seed: int) -> list[float]:
    """Draw a log, fit it with each contender, and return their divergences."""
    draw = drawing(truth, np.random.default_rng(seed))
    x, segments, _, labels = draw(truth.rows)
    held_x, held_segments, p, _ = draw(HELD_OUT)
    with tempfile.TemporaryDirectory(prefix="logcal-crossed-") as name:
        folder = Path(name)
        (folder / "log").mkdir()
        pq.write_table(pa.table({"score": x, "label": labels, **segments}), folder / "log" / "part-0.parquet")
        results = []
        for number, (_, by_segment, settings) in enumerate(CONTENDERS):
            columns = tuple(segments) if by_segment else ()
            *_, q = ours(folder, f"t{number}", columns, settings, (held_x, held_segments))
            results.append(divergence(p, q))
    return results


def main(arguments: list[str]) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--truths", nargs="*", choices=TRUTHS, default=list(TRUTHS))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    print_machine()
    print(f"\n| truth | {' | '.join(name for name, *_ in CONTENDERS)} | auto, each draw |")
    print("|---" * (len(CONTENDERS) + 2) + "|")
    for name in options.truths:
        with contextlib.redirect_stderr(io.StringIO()):
            runs = [measured(TRUTHS[name], seed) for seed in range(options.seeds)]
        means = [f"{mean:.1f}" for mean in np.mean(runs, axis=0)]
        print(f"| {name} | {' | '.join(means)} | {', '.join(f'{run[0]:.1f}' for run in runs)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
