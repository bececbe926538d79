"""The demo: train a naive Bayes classifier on UCI Adult, log its predictions, and run the jobs on the log."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from jobs.config.jobs import DEMO_TABLE as TABLE
from jobs.config.jobs import JOB_CONFIGS, DemoConfig
from jobs.config.loading import Values, load_values, read_values
from jobs.outcome import Outcome, Plan, Startable
from logcal.errors import ConfigError
from pipeline.execution import Executor
from pipeline.files.folders import free_for, write_whole

MARKER = "demo.json"
ADULT = Path(__file__).parent / "data" / "adult.parquet"
METHODS = "[auto, isotonic, bbq, abb]"
"""Methods to compare."""

FILES = 4
_LEVELS = 10
"""Bins of a numeric feature for the classifier."""


def prepare(config: DemoConfig) -> Prepared:
    """Check that the output is new, empty, or an earlier demo's.

    Raises
    ------
    ConfigError
        The folder contains something else.
    """
    folder = Path(config.output.path).absolute()
    if not free_for(folder, MARKER):
        raise ConfigError(
            f"output.path: expected a folder that is new, empty, or of an earlier demo, found something else in "
            f"{folder}: choose another"
        )
    return Prepared(config, folder)


def _clear(folder: Path) -> None:
    """Remove everything but the marker, so that a demo that is killed meanwhile can be run again."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != MARKER:
            path.unlink()


@dataclass(frozen=True)
class Prepared(Startable):
    """A demo that can start."""

    config: DemoConfig
    folder: Path

    @property
    def plan(self) -> Plan:
        """Plan of the demo."""
        return Plan(
            job="demo",
            stages=(
                "train: a naive Bayes classifier on half of Adult's training rows",
                f"log: its predictions, {FILES} Parquet files to calibrate with and {FILES} held out",
                "fit: auto on the calibration log, published to a store",
                "score: the held-out log with calibrated probabilities",
                "evaluate: before and after on the held-out log, as a report",
                "compare: methods, by cross-validation on the calibration log, as a page",
            ),
            reads=("UCI Adult, which logcal ships (48,842 rows)",),
            writes=(str(self.folder),),
            facts={"table": TABLE},
        )

    def execute(self, executor: Executor) -> Outcome:
        """Write the logs and run the jobs on them."""
        folder = self.folder
        if (folder / MARKER).exists():
            _clear(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / MARKER, json.dumps({"table": TABLE}).encode())
        (folder / "data").mkdir()
        shutil.copyfile(ADULT, folder / "data" / ADULT.name)
        write_logs(folder)
        from jobs import compare, evaluate, fit, score

        done = {
            "fit": self._run(fit, executor, "calibration"),
            "score": self._run(score, executor, "held-out", f"output.path={folder / 'scored'}"),
            "evaluate": self._run(evaluate, executor, "held-out", f"report.path={folder / 'report'}"),
            "compare": self._run(compare, executor, "calibration", f"report.path={folder / 'comparison'}"),
        }
        lines = [*done["fit"].lines, *done["score"].lines]
        lines += ["", "On the held-out log, which no calibrator has seen:", "", *done["evaluate"].lines]
        lines += ["", "Methods compared by cross-validation:", "", *done["compare"].lines]
        return Outcome({name: outcome.summary for name, outcome in done.items()}, lines)

    def _run(self, job: ModuleType, executor: Executor, log: str, *settings: str) -> Outcome:
        """Run a job on a log."""
        name = job.__name__.rpartition(".")[2]
        paths = (f"log.path={self.folder / 'log' / log}", f"store.path={self.folder / 'store'}")
        all_settings = (*paths, f"store.table={TABLE}", f"compare.methods={METHODS}", *settings)
        config = load_values(JOB_CONFIGS[name], Values(read_values((), all_settings).values))
        config = config.model_copy(update={"scratch": self.config.scratch, "cluster": self.config.cluster})
        outcome: Outcome = job.prepare(config).execute(executor)
        return outcome


def write_logs(folder: Path) -> None:
    """Train on half of Adult's training rows; write the scores of the other half and of the test rows as logs."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    adult = pq.read_table(ADULT)
    train = np.array([split == "train" for split in adult.column("split").to_pylist()])
    half = np.random.default_rng(0).random(adult.num_rows) < 0.5
    scores = _naive_bayes(adult, train & half)
    logged = ["age", "education", "occupation", "sex", "hours-per-week"]
    table = pa.table(
        {
            "row_id": np.arange(adult.num_rows),
            **{name: adult.column(name) for name in logged},
            "score": scores,
            "label": adult.column("label"),
        }
    )
    for name, rows in (("calibration", train & ~half), ("held-out", ~train)):
        part = table.take(np.flatnonzero(rows))
        target = folder / "log" / name
        target.mkdir(parents=True)
        edges = np.linspace(0, part.num_rows, FILES + 1).astype(int)
        for i in range(FILES):
            pq.write_table(part.slice(edges[i], edges[i + 1] - edges[i]), target / f"part-{i:03d}.parquet")


def _naive_bayes(adult: Any, rows: Any) -> Any:
    """Return all rows' scores by a naive Bayes classifier trained on some: well ranked, but far too extreme."""
    import numpy as np
    from sklearn.naive_bayes import CategoricalNB

    codes = []
    for name in adult.column_names:
        if name in ("label", "split"):
            continue
        column = adult.column(name).combine_chunks()
        if hasattr(column, "dictionary"):
            # A missing category is a category.
            codes.append(column.indices.fill_null(len(column.dictionary)).to_numpy())
        else:
            values = column.to_numpy()
            inner = np.quantile(values[rows], np.arange(1, _LEVELS) / _LEVELS)
            codes.append(np.searchsorted(inner, values, side="right"))
    features = np.column_stack(codes)
    labels = adult.column("label").to_numpy()
    classifier = CategoricalNB(min_categories=features.max(axis=0) + 1).fit(features[rows], labels[rows])
    return classifier.predict_proba(features)[:, 1]
