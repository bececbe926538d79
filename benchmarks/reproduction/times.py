"""Measured run times of the calibrators against the number of observations."""

from __future__ import annotations

import json
import time
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.files.folders import temporary_sibling

METHODS = ("platt", "histogram", "isotonic", "abb", "bbq", "enir", "sbb", "auto")
REPEATS = 5
KEYS = frozenset({"fit", "elapsed", "predict"})
"""Keys of a measured time. fit, predict: processor seconds over all threads, to fit and per score, which other load on
the machine changes little; elapsed: wall seconds to fit."""
TESTED = 100_000


def sizes(largest: int) -> list[int]:
    """Return the powers of ten from 1,000 to the largest size."""
    return [10**i for i in range(3, 9) if 10**i <= largest]


def run_times(folder: Path, largest: int, seed: int, pool: Executor) -> list[dict[str, Any]]:
    """Measure the times of all methods and sizes, with a file each; existing files are used.

    Parameters
    ----------
    folder : folder of the files
    largest : largest number of observations
    """
    folder.mkdir(parents=True, exist_ok=True)
    tasks = [(method, n, seed, str(folder)) for n in sizes(largest) for method in METHODS]
    missing = [task for task in tasks if not _measured(_path(folder, task[0], task[1]))]
    for _ in pool.map(_time, *zip(*missing, strict=True)):
        pass
    return [json.loads(_path(folder, method, n).read_text()) for method, n, *_ in tasks]


def _path(folder: Path, method: str, n: int) -> Path:
    return folder / f"{method}.{n}.json"


def _measured(path: Path) -> bool:
    try:
        return bool(json.loads(path.read_text()).keys() >= KEYS)
    except (FileNotFoundError, ValueError):
        return False


def _time(method: str, n: int, seed: int, folder: str) -> None:
    from benchmarks.reproduction.methods import CALIBRATORS

    random = np.random.default_rng([seed, n])
    scores = random.random(n)
    labels = random.random(n) < 0.15 + 0.6 * scores + 0.2 * np.sin(12 * scores)
    tested = random.random(TESTED)
    fits, predictions = [], []  # each: elapsed and processor seconds
    # The first repeat compiles and is not counted.
    for _ in range(REPEATS + 1):
        calibrator = CALIBRATORS[method]()
        start = _clocks()
        calibrator.fit(scores, labels)
        fits.append(_clocks() - start)
        start = _clocks()
        calibrator.predict(tested)
        predictions.append((_clocks() - start) / TESTED)
    elapsed, processor = np.min(fits[1:], axis=0).tolist()
    predicted = np.min(predictions[1:], axis=0)[1].item()
    times = {"method": method, "n": n, "fit": processor, "elapsed": elapsed, "predict": predicted}
    target = _path(Path(folder), method, n)
    with temporary_sibling(target) as partial:
        partial.write_text(json.dumps(times))
        partial.replace(target)


def _clocks() -> np.ndarray:
    return np.array([time.perf_counter(), time.process_time()])
