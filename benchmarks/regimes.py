"""Which method is best with which truth, at which rate, from how many rows: excess log loss, with its standard error.

    python benchmarks/regimes.py --rates 0.001 0.01 0.3    # the table of docs/methods.md: a quarter of an hour
    python benchmarks/regimes.py --sizes 1000 --rates 0.01 --methods isotonic abb

Scores are normal; the truth is known, so that the excess of the expected log loss over the truth's is measured without
the noise of held-out labels, in 1e-6 nats, as a mean over repeated draws of the rows. All methods see the same draws.

    sigmoid   log-odds rise with the score in a straight line
    bent      they rise steeply below and hardly above
    steps     four levels
    top       nothing but the highest scores tells anything
    wave      log-odds rise and fall on the way up
"""

from __future__ import annotations

import argparse
import math
import sys
import warnings

import numpy as np
from _measure import print_machine
from scipy.optimize import brentq
from scipy.special import expit, ndtr, ndtri

from pipeline.fit.calibration import make_calibrator

METHODS = {
    "isotonic": ("isotonic", {}),
    "strict": ("isotonic", {"strict": True}),
    "enir": ("enir", {}),
    "bbq": ("bbq", {}),
    "bbq per_bin": ("bbq", {"prior": "per_bin"}),
    "abb": ("abb", {}),
    "sbb": ("sbb", {}),
    "near_isotonic": ("near_isotonic", {}),
    "dgg": ("dgg", {}),
    "histogram": ("histogram", {"smoothing": 1}),
    "platt": ("platt", {"input": "logit"}),
    "beta": ("beta", {}),
    "auto": ("auto", {}),
}
"""By the name in the table; scores are probabilities here, as those of most classifiers.

`dg` is `isotonic`, and `dgg` is seen as a method of given scores: what cross-validation generates is no matter of the
truth's shape, and is measured in docs/generate.md. `acp` needs an interval for each prediction, which these have not.
"""

SHAPES = {
    "sigmoid": lambda z: 1.3 * z,
    "bent": lambda z: np.where(z < 0, 2.2 * z, 0.3 * z),
    "steps": lambda z: np.searchsorted([-1.0, 0.0, 1.0], z) * 1.3,
    "top": lambda z: np.where(z > 2.5, 5.0, 0.0),
    "wave": lambda z: 1.3 * z + 0.9 * np.sin(3 * z),
}

GRID = 20_001


def truth_of(shape: str, rate: float):
    """The probability at a normal score, at this rate on average."""
    z = ndtri((np.arange(GRID) + 0.5) / GRID)
    f = SHAPES[shape]
    start = brentq(lambda a: expit(a + f(z)).mean() - rate, -40, 40)
    return lambda x: expit(start + f(x))


def excess(p: np.ndarray, q: np.ndarray) -> float:
    """Mean divergence from the truth, 1e-6 nats; infinite where something possible was said to be impossible."""
    with np.errstate(divide="ignore"):
        return 1e6 * float(np.mean(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))))


def repeats(rows: int) -> int:
    """How many draws: more of those that are small."""
    return int(np.clip(400_000 // rows, 4, 60))


def measure(
    shape: str, rate: float, rows: int, names: list[str], seed: int
) -> dict[str, tuple[float, float]]:
    """Mean excess of each method, and its standard error."""
    truth = truth_of(shape, rate)
    z = ndtri((np.arange(GRID) + 0.5) / GRID)
    p, at = truth(z), ndtr(z)
    found: dict[str, list[float]] = {name: [] for name in names}
    draw = 0
    for _ in range(repeats(rows)):
        while True:
            rng = np.random.default_rng([seed, draw])
            draw += 1
            x = rng.normal(0, 1, rows)
            y = rng.random(rows) < truth(x)
            if 1 < y.sum() < rows - 1:
                break
        for name in names:
            method, params = METHODS[name]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                one = make_calibrator(method, params).fit(ndtr(x), y)
            found[name].append(excess(p, one.predict(at)))
    return {
        name: (float(np.mean(v)), float(np.std(v, ddof=1)) / math.sqrt(len(v))) for name, v in found.items()
    }


def text(mean: float, error: float) -> str:
    """A number with two significant digits of its error."""
    if not math.isfinite(mean):
        return "infinite"
    return f"{mean:.0f} ± {error:.0f}" if mean >= 10 else f"{mean:.1f} ± {error:.1f}"


def main(arguments: list[str]) -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES))
    parser.add_argument("--rates", nargs="*", type=float, default=[0.01, 0.3])
    parser.add_argument("--sizes", nargs="*", type=int, default=[200, 2_000, 20_000, 200_000])
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    print_machine()
    print(
        f"| truth | rate | rows | {' | '.join(given.methods)} |\n|---|---|---|{'---|' * len(given.methods)}"
    )
    for shape in given.shapes:
        for rate in given.rates:
            for rows in given.sizes:
                if rate * rows < 10:
                    continue
                found = measure(shape, rate, rows, given.methods, given.seed)
                best = min(found, key=lambda name: found[name][0])
                cells = [f"**{text(*found[n])}**" if n == best else text(*found[n]) for n in given.methods]
                print(f"| {shape} | {rate:g} | {rows:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
