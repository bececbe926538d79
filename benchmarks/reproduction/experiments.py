"""The experiments: one task per set, classifier and run, with one result file.

The metadata of a result file identify the task, its data and its settings; a task with a valid result file is not run
again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.reproduction import data as sets
from benchmarks.reproduction.classifiers import Classifier, Scores
from benchmarks.reproduction.data import Data
from pipeline.files.folders import temporary_sibling
from pipeline.generate.folds import text_key

FORMAT = 7
"""Format of the result files; a new number makes old files obsolete."""

_KEY = b"logcal.experiment"

SCHEMA = pa.schema(
    [
        ("experiment", pa.string()),
        ("set", pa.string()),
        ("classifier", pa.string()),
        ("run", pa.int32()),
        ("fold", pa.int32()),
        ("method", pa.string()),
        ("n_calibration", pa.int64()),
        ("n_test", pa.int64()),
        *(
            (name, pa.float64())
            for name in ("auc", "accuracy", "rmse", "ece", "mce", "ece_width", "mce_width")
        ),
        *((name, pa.float64()) for name in ("ece_label", "mce_label")),
        ("log_loss", pa.float64()),
        ("infinite", pa.int64()),
        ("rate", pa.float64()),
        ("chosen", pa.string()),
        ("converged", pa.bool_()),
    ]
)
"""One row per method and fold. n_calibration, n_test: numbers of rows. The measures are those of
`calibrators.measures.predictions`: ece and mce over equal-frequency groups, ece_label and mce_label over groups that
cut ties in the order of the labels; log_loss of clipped probabilities; infinite: number of test rows whose label has
probability 0; rate: classification rate with the tuned threshold, or null; chosen: the choice of `auto`; converged:
whether the classifier's training converged."""

REAL = ("base", "isotonic", "centred", "near_isotonic", "histogram", "platt", "bbq", "bbq_authors", "enir",
        "enir_authors", "sbb", "abb", "dgg", "sklearn_isotonic", "sklearn_sigmoid", "auto")  # fmt: skip
SIMULATED = ("base", "histogram", "platt", "isotonic", "bbq", "bbq_authors", "enir", "enir_authors")
BINNING = ("base", "isotonic", "platt", "histogram", "sbb", "abb")
SIZES = (100, 300, 1000, 3000, 10000, 30000)
"""Numbers of calibration rows in the experiment on sizes."""
SIZES_METHODS = tuple(name for name in REAL if name not in ("bbq_authors", "enir_authors"))
SIZES_SETS = (
    "adult",
    "cod_rna",
    "covtype",
    "ijcnn1",
    "letter_balanced",
    "pendigits",
    "satimage",
    "page_blocks",
)
"""Large sets; each is used for the sizes that it has rows for."""


LEAST_RUNS = {"simulated": 21, "binning": 21, "generated": 10}
"""Minimum numbers of runs of fast experiments."""
ANEW = "circular_anew"
"""Set of simulated points like the published ones, drawn anew in each run."""
LARGE = 2000
"""Sets with more rows, and the experiment on sizes, may have fewer runs."""


@dataclass(frozen=True)
class Settings:
    """Settings of all experiments of a reproduction.

    Parameters
    ----------
    seed : int >= 0, random seed
    runs : int >= 1, repeats of each experiment; those in `LEAST_RUNS` have more
    folds : int >= 2, folds of the cross-validation on real data
    max_rows : larger sets are cut to this size; None: no set is cut. In the experiment on sizes no set is cut, and
        there are at most ten times as many calibration rows.
    large_runs : maximum number of runs of slow experiments: cross-validation on sets with more than `LARGE` rows, and
        the experiment on sizes; None: no limit
    """

    seed: int = 0
    runs: int = 10
    folds: int = 10
    max_rows: int | None = None
    large_runs: int | None = None


@dataclass(frozen=True)
class Task:
    """Task with one result file.

    Parameters
    ----------
    experiment : a key of `EXPERIMENTS`
    set, classifier : names of the data set and the classifier
    run : int >= 0
    digest : digest of the data
    settings : Settings
    """

    experiment: str
    set: str
    classifier: str
    run: int
    digest: str
    settings: Settings

    @property
    def path(self) -> str:
        """Relative path of the result file."""
        return f"{self.experiment}/{self.set}.{self.classifier}.{self.run:03d}.parquet"

    @property
    def key(self) -> bytes:
        """Key of the result: tasks with equal keys have equal results, whatever the number of runs."""
        settings = {k: v for k, v in asdict(self.settings).items() if k not in ("runs", "large_runs")}
        content = {**asdict(self), "settings": settings, "format": FORMAT}
        return json.dumps(content, sort_keys=True).encode()


def plan_tasks(
    folder: Path, settings: Settings, only: Iterable[str] | None = None
) -> tuple[list[Task], list[str]]:
    """Plan the tasks on the available data, run by run; return them and the names of the missing sets.

    Parameters
    ----------
    folder : folder of the data sets
    settings : Settings
    only : experiments to plan; None for all
    """
    wanted = list(_designs(settings, only))
    missing = sorted({name for _, name, _, _ in wanted if not sets.available(name, folder)})
    if settings.large_runs is not None:
        large = {name for _, name, _, _ in wanted if name not in missing and sets.size(name, folder) > LARGE}
        wanted = [
            (experiment, name, classifier, run)
            for experiment, name, classifier, run in wanted
            if run < settings.large_runs
            or not (experiment == "sizes" or (experiment == "real" and name in large))
        ]
    digests = {name: sets.digest(name, folder) for _, name, _, _ in wanted if name not in missing}
    tasks = [
        Task(experiment, name, classifier, run, digests[name], settings)
        for experiment, name, classifier, run in wanted
        if name in digests
    ]
    return sorted(tasks, key=lambda task: task.run), missing


def _designs(settings: Settings, only: Iterable[str] | None) -> Iterator[tuple[str, str, str, int]]:
    for experiment in EXPERIMENTS if only is None else only:
        for name, classifiers in EXPERIMENTS[experiment][0].items():
            for classifier in classifiers:
                for run in range(max(settings.runs, LEAST_RUNS.get(experiment, 0))):
                    yield experiment, name, classifier, run


def run_tasks(tasks: list[Task], data: Path, results: Path, pool: Executor) -> int:
    """Run the tasks that have no result yet; return their number."""
    open_tasks = [task for task in tasks if not done(task, results)]
    for experiment in {task.experiment for task in open_tasks}:
        (results / experiment).mkdir(parents=True, exist_ok=True)
    futures = [pool.submit(run_task, task, str(data), str(results)) for task in open_tasks]
    for count, future in enumerate(as_completed(futures), 1):
        future.result()
        if count % 50 == 0 or count == len(futures):
            print(f"experiments: {count:,} of {len(futures):,}", file=sys.stderr)
    return len(futures)


def done(task: Task, results: Path) -> bool:
    """Tell whether the task has a valid result file."""
    path = results / task.path
    try:
        return bool((pq.read_schema(path).metadata or {}).get(_KEY) == task.key)
    except (FileNotFoundError, pa.ArrowInvalid):
        return False


def run_task(task: Task, data: str, results: str) -> None:
    """Run a task and write its result file atomically."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        rows = list(EXPERIMENTS[task.experiment][1](task, Path(data)))
    table = pa.Table.from_pylist(rows, SCHEMA).replace_schema_metadata({_KEY: task.key})
    target = Path(results) / task.path
    with temporary_sibling(target) as partial:
        pq.write_table(table, partial, compression="zstd")
        partial.replace(target)


def read_results(tasks: list[Task], results: Path) -> pa.Table:
    """Read the results of finished tasks into one table."""
    tables = [pq.read_table(results / task.path).replace_schema_metadata() for task in tasks]
    return pa.concat_tables(tables) if tables else SCHEMA.empty_table()


Row = dict[str, Any]


def _random(task: Task, *seeds: int) -> np.random.Generator:
    key = text_key(f"{task.experiment}/{task.set}")
    return np.random.default_rng([task.settings.seed, task.run, key, *seeds])


def _rows(
    task: Task,
    fold: int,
    methods: Iterable[str],
    model: Classifier,
    calibration: tuple[Scores, Any],
    test: Any,
) -> Iterator[Row]:
    """Yield the results of methods fitted to calibration scores on test scores."""
    from benchmarks.reproduction.methods import Calibration, calibrate, measures_of

    scores, label = calibration
    test_scores, test_label = test
    for method in methods:
        probability, chosen = calibrate(method, Calibration(scores, label, test_scores))
        yield {
            **_columns(task, fold, method, label.size, test_label.size, model),
            **measures_of(probability, test_label),
            "chosen": chosen or None,
        }


def _columns(task: Task, fold: int, method: str, calibration: int, test: int, model: Classifier) -> Row:
    return {
        "experiment": task.experiment,
        "set": task.set,
        "classifier": task.classifier,
        "run": task.run,
        "fold": fold,
        "method": method,
        "n_calibration": calibration,
        "n_test": test,
        "rate": None,
        "converged": not model.not_converged,
    }


def _categories(data: Data) -> Any:
    return data.codes.max(axis=0, initial=0) + 1


def _real(task: Task, folder: Path) -> Iterator[Row]:
    """Run cross-validation; the classifier's training rows are the calibration rows, as in the papers."""
    settings = task.settings
    data = sets.load(task.set, folder, settings.seed, task.run, settings.max_rows)
    fold_of = sets.folds_of(data.label, settings.folds, _random(task))
    for fold in range(int(fold_of.max()) + 1):
        train, test = data.take(fold_of != fold), data.take(fold_of == fold)
        model = Classifier(task.classifier, seed=task.run).fit(train, _categories(data))
        yield from _rows(
            task, fold, REAL, model, (model.scores(train), train.label), (model.scores(test), test.label)
        )


def _simulated(task: Task, folder: Path) -> Iterator[Row]:
    """Calibrate on the training points. With the authors' points, runs after the first resample the test points."""
    data = sets.load(task.set, folder, task.settings.seed, task.run)
    train = data.take(~data.test)
    test = data.take(data.test)
    if task.set not in sets.SIMULATED:
        test = _resampled(test, task)
    model = Classifier(task.classifier).fit(train, _categories(data))
    yield from _rows(
        task, 0, SIMULATED, model, (model.scores(train), train.label), (model.scores(test), test.label)
    )


def _resampled(test: Data, task: Task) -> Data:
    """Return the test rows; in runs after the first, a resample with replacement within each label."""
    if task.run == 0:
        return test
    random = _random(task)
    drawn = [
        random.choice(rows, rows.size) for rows in (np.flatnonzero(test.label), np.flatnonzero(~test.label))
    ]
    return test.take(np.sort(np.concatenate(drawn)))


def _binning(task: Task, folder: Path) -> Iterator[Row]:
    """Use 600 rows each for training (Adult: 2,000), calibration and test; SPECT has its own training and test rows."""
    data = sets.load(task.set, folder, task.settings.seed, task.run)
    if task.set == "spect":
        train = calibration = data.take(~data.test)
        test = _resampled(data.take(data.test), task)
    else:
        order = _random(task).permutation(data.label.size)
        first = 600 if task.set in sets.SIMULATED else 2000
        train, calibration, test = (
            data.take(order[a:b]) for a, b in ((0, first), (first, first + 600), (first + 600, first + 1200))
        )
    with_acp = task.classifier == "lr"
    model = Classifier(task.classifier, seed=task.run, intervals=with_acp).fit(train, _categories(data))
    methods = (*BINNING, "acp") if with_acp else BINNING
    yield from _rows(
        task, 0, methods, model,
        (model.scores(calibration), calibration.label), (model.scores(test), test.label),
    )  # fmt: skip


def _generated(task: Task, folder: Path) -> Iterator[Row]:
    """Compare DG and DGG with no calibration and with isotonic regression on a tenth of the training rows."""
    from benchmarks.reproduction.generated import generated_rows

    data = sets.load(task.set, folder, task.settings.seed, task.run)
    order = _random(task).permutation(data.label.size)
    cut = round(0.3 * order.size)
    test, train = data.take(order[:cut]), data.take(order[cut:])
    for method, calibration, model, measured in generated_rows(task.run, train, test, _categories(data)):
        yield {**_columns(task, 0, method, calibration, test.label.size, model), **measured}


def _sizes(task: Task, folder: Path) -> Iterator[Row]:
    """Train a classifier once, and calibrate it on growing numbers of held-out rows, with the same test rows."""
    settings = task.settings
    data = sets.load(task.set, folder, settings.seed, task.run)
    random = _random(task)
    order = random.permutation(data.label.size)
    tenth = order.size // 10
    train, test = data.take(order[: min(tenth * 2, 5000)]), data.take(order[tenth * 2 : tenth * 4][:20000])
    pool = data.take(order[tenth * 4 :])
    model = Classifier(task.classifier, seed=task.run).fit(train, _categories(data))
    tested = (model.scores(test), test.label)
    limit = 10 * settings.max_rows if settings.max_rows else pool.label.size
    for fold, size in enumerate(SIZES):
        if size > min(pool.label.size, limit):
            break
        rows = pool.take(np.arange(size))
        if 0 < rows.label.sum() < size:
            yield from _rows(task, fold, SIZES_METHODS, model, (model.scores(rows), rows.label), tested)


_THREE = ("lr", "svm", "nb")

EXPERIMENTS: dict[str, tuple[dict[str, tuple[str, ...]], Callable[[Task, Path], Iterator[Row]]]] = {
    "simulated": (dict.fromkeys(("simulated_bbq", ANEW), ("svm_linear", "svm_quadratic")), _simulated),
    "binning": (
        {
            "xor": ("lr",),
            "circular": ("lr",),
            "adult_complete": ("nb", "svm", "lr"),
            "spect": ("nb", "svm_quadratic", "lr"),
        },
        _binning,
    ),
    "generated": (dict.fromkeys(sets.DG_SETS, ("nb_plain",)), _generated),
    "real": (dict.fromkeys(sets.ENIR_SETS, _THREE), _real),
    "sizes": (dict.fromkeys(SIZES_SETS, _THREE), _sizes),
}
"""Experiments by name: the classifiers of each set, and the function that yields a task's results."""
