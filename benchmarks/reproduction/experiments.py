"""The experiments: one task a (set, classifier, run), one result file a task, written when it is done.

A result file tells in its metadata which task it is of, on which data and with which settings; a run that finds it
does not do it again.
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
"""Of the result files; a new number makes old ones obsolete."""

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
"""One row a method and fold. n_calibration, n_test: rows. The measures are those of
`calibrators.measures.predictions`, ece and mce
over equal-frequency groups, ece_label and mce_label over groups that cut ties in the order of the labels;
log_loss of clipped probabilities; infinite: test rows of which the label was given
probability 0; rate: classification rate with the tuned threshold (null where none is); chosen: what `auto` took;
converged: whether the classifier's training did."""

REAL = ("base", "isotonic", "centred", "near_isotonic", "histogram", "platt", "bbq", "bbq_authors", "enir",
        "enir_authors", "sbb", "abb", "dgg", "sklearn_isotonic", "sklearn_sigmoid", "auto")  # fmt: skip
SIMULATED = ("base", "histogram", "platt", "isotonic", "bbq", "bbq_authors", "enir", "enir_authors")
BINNING = ("base", "isotonic", "platt", "histogram", "sbb", "abb")
SIZES = (100, 300, 1000, 3000, 10000, 30000)
"""Rows to calibrate with, in the experiment on sizes."""
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
"""Large sets; each takes part in the sizes that it has rows for."""


LEAST_RUNS = {"simulated": 21, "binning": 21, "generated": 10}
"""These take little time: so many runs at least."""
ANEW = "circular_anew"
"""Points drawn as the published simulated ones seem to be: others in each run."""
LARGE = 2000
"""Sets with more rows, and the experiment on sizes, may have fewer runs."""


@dataclass(frozen=True)
class Settings:
    """What all experiments of a reproduction share.

    Parameters
    ----------
    seed : int >= 0, of all random numbers
    runs : int >= 1, repeats of each experiment; those in `LEAST_RUNS` have more
    folds : int >= 2, of the cross-validation on real data
    max_rows : larger sets are cut to so many rows; None: none is. In the experiment on sizes no set is cut, and there
        are at most ten times so many rows to calibrate with.
    large_runs : at most so many runs of what takes long: cross-validation on sets with more than `LARGE` rows, and
        the experiment on sizes; None: as many as of the others
    """

    seed: int = 0
    runs: int = 10
    folds: int = 10
    max_rows: int | None = None
    large_runs: int | None = None


@dataclass(frozen=True)
class Task:
    """One result file.

    Parameters
    ----------
    experiment : a key of `EXPERIMENTS`
    set, classifier : names
    run : int >= 0
    digest : of the data
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
        """Of the result file, relative."""
        return f"{self.experiment}/{self.set}.{self.classifier}.{self.run:03d}.parquet"

    @property
    def key(self) -> bytes:
        """Equal keys have equal results. The numbers of runs do not matter to any of them."""
        settings = {k: v for k, v in asdict(self.settings).items() if k not in ("runs", "large_runs")}
        content = {**asdict(self), "settings": settings, "format": FORMAT}
        return json.dumps(content, sort_keys=True).encode()


def plan_tasks(
    folder: Path, settings: Settings, only: Iterable[str] | None = None
) -> tuple[list[Task], list[str]]:
    """All tasks on the data that is there, run by run, and the names of the sets that are missing.

    Parameters
    ----------
    folder : of the data sets
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
    """Carry out the tasks whose results are not there yet; return how many these were."""
    left = [task for task in tasks if not done(task, results)]
    for experiment in {task.experiment for task in left}:
        (results / experiment).mkdir(parents=True, exist_ok=True)
    running = [pool.submit(run_task, task, str(data), str(results)) for task in left]
    for count, one in enumerate(as_completed(running), 1):
        one.result()
        if count % 50 == 0 or count == len(left):
            print(f"experiments: {count:,} of {len(left):,}", file=sys.stderr)
    return len(left)


def done(task: Task, results: Path) -> bool:
    """Whether the result of exactly this task is there."""
    path = results / task.path
    try:
        return bool((pq.read_schema(path).metadata or {}).get(_KEY) == task.key)
    except (FileNotFoundError, pa.ArrowInvalid):
        return False


def run_task(task: Task, data: str, results: str) -> None:
    """Carry out one task and write its result file: complete, or not at all."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        rows = list(EXPERIMENTS[task.experiment][1](task, Path(data)))
    table = pa.Table.from_pylist(rows, SCHEMA).replace_schema_metadata({_KEY: task.key})
    target = Path(results) / task.path
    with temporary_sibling(target) as partial:
        pq.write_table(table, partial, compression="zstd")
        partial.replace(target)


def read_results(tasks: list[Task], results: Path) -> pa.Table:
    """The results of tasks that are done, as one table."""
    tables = [pq.read_table(results / task.path).replace_schema_metadata() for task in tasks]
    return pa.concat_tables(tables) if tables else SCHEMA.empty_table()


Row = dict[str, Any]


def _random(task: Task, *more: int) -> np.random.Generator:
    key = text_key(f"{task.experiment}/{task.set}")
    return np.random.default_rng([task.settings.seed, task.run, key, *more])


def _rows(
    task: Task,
    fold: int,
    methods: Iterable[str],
    model: Classifier,
    calibration: tuple[Scores, Any],
    test: Any,
) -> Iterator[Row]:
    """Results of methods that calibrate with some scores, on others."""
    from benchmarks.reproduction.methods import Calibration, calibrate, measures_of

    scores, label = calibration
    test_scores, test_label = test
    for method in methods:
        probability, chosen = calibrate(method, Calibration(scores, label, test_scores))
        yield {
            **_place(task, fold, method, label.size, test_label.size, model),
            **measures_of(probability, test_label),
            "chosen": chosen or None,
        }


def _place(task: Task, fold: int, method: str, calibration: int, test: int, model: Classifier) -> Row:
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
    """Cross-validation; the classifier's training rows are the calibration rows, as in the papers."""
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
    """Training points are the calibration points. The authors' own points: runs after the first resample the test."""
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
    """The test rows; in runs after the first, as many drawn with replacement, label by label."""
    if task.run == 0:
        return test
    random = _random(task)
    drawn = [
        random.choice(rows, rows.size) for rows in (np.flatnonzero(test.label), np.flatnonzero(~test.label))
    ]
    return test.take(np.sort(np.concatenate(drawn)))


def _binning(task: Task, folder: Path) -> Iterator[Row]:
    """600 rows each to train, to calibrate and to test (Adult: 2,000 to train); SPECT: its own training and test."""
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
    """DG and DGG beside no calibration and isotonic regression on a tenth of the training rows."""
    from benchmarks.reproduction.generated import generated_rows

    data = sets.load(task.set, folder, task.settings.seed, task.run)
    order = _random(task).permutation(data.label.size)
    cut = round(0.3 * order.size)
    test, train = data.take(order[:cut]), data.take(order[cut:])
    for method, calibration, model, measured in generated_rows(task.run, train, test, _categories(data)):
        yield {**_place(task, 0, method, calibration, test.label.size, model), **measured}


def _sizes(task: Task, folder: Path) -> Iterator[Row]:
    """A classifier trained once; calibration on held-out rows, more and more of them; the same test rows."""
    settings = task.settings
    data = sets.load(task.set, folder, settings.seed, task.run)
    random = _random(task)
    order = random.permutation(data.label.size)
    tenth = order.size // 10
    train, test = data.take(order[: min(tenth * 2, 5000)]), data.take(order[tenth * 2 : tenth * 4][:20000])
    rest = data.take(order[tenth * 4 :])
    model = Classifier(task.classifier, seed=task.run).fit(train, _categories(data))
    tested = (model.scores(test), test.label)
    limit = 10 * settings.max_rows if settings.max_rows else rest.label.size
    for fold, size in enumerate(SIZES):
        if size > min(rest.label.size, limit):
            break
        some = rest.take(np.arange(size))
        if 0 < some.label.sum() < size:
            yield from _rows(task, fold, SIZES_METHODS, model, (model.scores(some), some.label), tested)


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
"""Name of an experiment to its sets with their classifiers, and what it does."""
