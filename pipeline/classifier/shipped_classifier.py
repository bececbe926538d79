"""The shipped classifier: a folder with a fitted model and its metadata.

    classifier.skops            the model, preprocessing included, in the skops format
    classifier.json             features, label, estimator, software
    _training_scores.parquet    the model's scores of its training rows, as a score table

The model is rebuilt from types on an allow list: nothing is unpickled, and a file with other types is refused. The
training scores give the decision threshold for any lookup table.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from calibrators.core.arrays import Array
from calibrators.core.map import CalibrationMap
from calibrators.core.passes import Points
from calibrators.measures.assessment import DecisionThreshold, best_threshold
from logcal.errors import ConfigError, InputRejectedError, examples
from logcal.schema import apply_transform, check_format
from logcal.storage import open_filesystem, parse_json
from pipeline import schema
from pipeline.classifier.estimators import one_thread, scores_of
from pipeline.classifier.features import Feature, as_frame

FOLDER = "classifier"
MODEL = "classifier.skops"
_SCHEMA = "schema.json"
"""Schema file in a skops file, which is a zip archive."""
_ZIP_TIMESTAMP = (1980, 1, 1, 0, 0, 0)
METADATA = "classifier.json"
TRAINING_SCORES = "_training_scores.parquet"

BATCH_ROWS = 4096
"""Rows scored at a time. Batches are always this large, so that results do not depend on the layout of files."""

_INTERNAL_TYPES = frozenset(
    {
        "collections.OrderedDict",
        "numpy.dtype",
        "sklearn.calibration._CalibratedClassifier",
        "sklearn.calibration._SigmoidCalibration",
        "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
        "sklearn.gaussian_process._gpc._BinaryGaussianProcessClassifierLaplace",
        "sklearn.gaussian_process.kernels.ConstantKernel",
        "sklearn.gaussian_process.kernels.Product",
        "sklearn.gaussian_process.kernels.RBF",
        "sklearn.metrics._dist_metrics.EuclideanDistance64",
        "sklearn.metrics._dist_metrics.ManhattanDistance64",
        "sklearn.metrics._dist_metrics.MinkowskiDistance64",
        "sklearn.metrics._dist_metrics.ChebyshevDistance64",
        "sklearn.neighbors._ball_tree.BallTree",
        "sklearn.neighbors._kd_tree.KDTree",
        "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
        "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
        "sklearn.tree._tree.Tree",
    }
)
"""Types in fitted classifiers and preprocessing, in addition to those that skops trusts."""


def dump_model(model: Any, packages: tuple[str, ...]) -> bytes:
    """Serialise a fitted model in the skops format; equal models give equal bytes.

    Raises
    ------
    InputRejectedError
        `load_model` would refuse the model: it contains types that are not on the allow list.
    """
    import skops.io

    content = _reproducible(skops.io.dumps(model))
    load_model(content, packages, "the shipped classifier")
    return content


def _reproducible(content: bytes) -> bytes:
    """Remove memory addresses and timestamps from a skops file."""
    buffer = io.BytesIO()
    numbers: dict[str, str] = {}
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(buffer, "w") as target:
        schema = _renumbered(parse_json(source.read(_SCHEMA)), numbers)
        parts = {_renamed(name, numbers): source.read(name) for name in source.namelist() if name != _SCHEMA}
        parts[_SCHEMA] = json.dumps(schema, indent=2).encode()
        for name in sorted(parts):
            target.writestr(zipfile.ZipInfo(name, _ZIP_TIMESTAMP), parts[name], zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _renumbered(node: Any, numbers: dict[str, str]) -> Any:
    """Renumber the objects and files of a node of a skops schema in order of appearance."""
    if isinstance(node, list):
        return [_renumbered(item, numbers) for item in node]
    if not isinstance(node, dict):
        return node
    renumbered: dict[str, Any] = {}
    for key, value in node.items():
        if key == "__id__" and isinstance(value, int):
            renumbered[key] = int(numbers.setdefault(str(value), str(len(numbers) + 1)))
        elif key == "file" and isinstance(value, str):
            numbers.setdefault(value.partition(".")[0], str(len(numbers) + 1))
            renumbered[key] = _renamed(value, numbers)
        else:
            renumbered[key] = _renumbered(value, numbers)
    return renumbered


def _renamed(name: str, numbers: dict[str, str]) -> str:
    stem, dot, suffix = name.partition(".")
    return f"{numbers.get(stem, stem)}{dot}{suffix}"


def load_model(content: bytes, packages: tuple[str, ...], name: str) -> Any:
    """Load the model of a skops file from types on the allow list.

    The list: data types of Python, numpy, scipy and scikit-learn that skops trusts, `_INTERNAL_TYPES`, and the types of
    `packages` other than scikit-learn.

    Raises
    ------
    InputRejectedError
        The file is not in the skops format, or contains other types.
    """
    import skops.io

    try:
        unknown = skops.io.get_untrusted_types(data=content)
    except Exception as error:  # noqa: BLE001 - a damaged file may raise anything
        raise InputRejectedError(f"{name}: expected a classifier in the skops format ({error})") from None
    refused = [type_name for type_name in unknown if not _allowed(type_name, packages)]
    if refused:
        raise InputRejectedError(
            f"{name}: expected types of classifiers on the allow list, found {examples(refused)}: nothing was loaded; "
            "name the package of a classifier that you trust in the list of packages"
        )
    try:
        return skops.io.loads(content, trusted=unknown)
    except Exception as error:  # noqa: BLE001 - other versions of the types may raise anything
        raise InputRejectedError(
            f"{name}: the classifier cannot be rebuilt here ({type(error).__name__}: {error}): use the versions of its "
            "software, which its metadata names"
        ) from None


def _allowed(type_name: str, packages: tuple[str, ...]) -> bool:
    return type_name in _INTERNAL_TYPES or type_name.partition(".")[0] in set(packages) - {"sklearn"}


@dataclass(frozen=True)
class ShippedClassifier:
    """Shipped classifier; its model is loaded when it scores.

    Attributes
    ----------
    path : path of its folder
    packages : packages whose types may be loaded
    metadata : content of classifier.json
    """

    path: str
    packages: tuple[str, ...]
    metadata: dict[str, Any]

    @property
    def features(self) -> tuple[Feature, ...]:
        """The features that the model was trained with."""
        return tuple(Feature(feature["name"], feature["kind"]) for feature in self.metadata["features"])

    @property
    def digest(self) -> str:
        """Digest of the model's file."""
        return str(self.metadata["sha256"])

    @property
    def run_id(self) -> str:
        """Id of the run that trained the model."""
        return str(self.metadata["run_id"])

    def model(self) -> Any:
        """Load the model, once per process."""
        return _cached_model(self.path, self.digest, self.packages)

    def scores(self, rows: pa.Table | pa.RecordBatch) -> Array:
        """Compute the scores of rows that have the features, float64."""
        model, count = self.model(), rows.num_rows
        out = np.empty(count)
        for start in range(0, count, BATCH_ROWS):
            piece = rows.slice(start, BATCH_ROWS)
            frame = as_frame(piece, self.features)
            if len(frame) < BATCH_ROWS:
                frame = frame.iloc[np.resize(np.arange(len(frame)), BATCH_ROWS)]
            try:
                with one_thread():
                    out[start : start + piece.num_rows] = scores_of(model, frame)[: piece.num_rows]
            except Exception as error:
                raise InputRejectedError(
                    f"the classifier in {self.path} cannot score the rows ({type(error).__name__}: {error}): give it "
                    "features like those that it was trained with"
                ) from error
        return out

    def threshold(self, calibration_map: CalibrationMap, transform: str = "none") -> DecisionThreshold:
        """Compute the threshold on a map's probabilities that maximises the classification rate on training rows.

        Parameters
        ----------
        calibration_map : map of a lookup table
        transform : score transform of that table
        """
        filesystem, root = open_filesystem(self.path)
        with filesystem.open(f"{root}/{TRAINING_SCORES}", "rb") as file:
            table = pq.read_table(file, schema=schema.SCORE_TABLE)
        points = Points(*(table.column(name).to_numpy() for name in schema.SCORE_TABLE.names))
        return threshold_of(points, calibration_map, transform)


def threshold_of(
    points: Points, calibration_map: CalibrationMap, transform: str = "none"
) -> DecisionThreshold:
    """Compute the decision threshold for labelled scores."""
    p = calibration_map.predict(apply_transform(points.score, transform))
    cases = np.concatenate([p, p])
    labels = np.repeat([0, 1], p.size)
    weight = np.concatenate([points.weight - points.positives, points.positives])
    occupied = weight > 0
    return best_threshold(cases[occupied], labels[occupied], weight[occupied])


def find_classifier(path: str, packages: tuple[str, ...]) -> ShippedClassifier:
    """Find the shipped classifier in a folder, or in the folder of a generated log, and check that its model loads.

    Raises
    ------
    ConfigError
        There is no classifier.
    InputRejectedError
        It has another format, its files do not belong together, or its model cannot be loaded.
    """
    filesystem, root = open_filesystem(path, "$[classifier]")
    for folder in (path.rstrip("/"), f"{path.rstrip('/')}/{FOLDER}"):
        _, root = open_filesystem(folder)
        try:
            metadata = parse_json(filesystem.cat_file(f"{root}/{METADATA}"))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            continue
        except ValueError:
            raise InputRejectedError(f"{folder}/{METADATA}: expected JSON, found something else") from None
        version = metadata.get("format_version") if isinstance(metadata, dict) else None
        check_format(f"{folder}/{METADATA}", version, "generate it again")
        # Workers may have another working directory.
        classifier = ShippedClassifier(
            root if isinstance(filesystem, LocalFileSystem) else folder, packages, metadata
        )
        classifier.model()
        return classifier
    raise ConfigError(
        f"$[classifier]: expected a folder with {METADATA}, as `logcal generate` writes it, found none in {path}"
    )


@lru_cache(maxsize=2)
def _cached_model(path: str, digest: str, packages: tuple[str, ...]) -> Any:
    filesystem, root = open_filesystem(path)
    try:
        content = filesystem.cat_file(f"{root}/{MODEL}")
    except FileNotFoundError:
        raise InputRejectedError(
            f"{path}/{MODEL}: expected the classifier's model, found no such file", missing=f"{root}/{MODEL}"
        ) from None
    if sha256(content) != digest:
        raise InputRejectedError(
            f"{path}/{MODEL}: expected the file that {METADATA} describes, found another: copy the folder again"
        )
    return load_model(content, packages, f"{path}/{MODEL}")


def sha256(content: bytes) -> str:
    """Return the SHA-256 digest in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def training_scores_bytes(points: Points) -> bytes:
    """Serialise training scores as a Parquet file."""
    buffer = io.BytesIO()
    table = pa.Table.from_arrays([pa.array(column) for column in points], schema=schema.SCORE_TABLE)
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()
