"""The shipped classifier: a fitted model in a folder of its own, and what is known of it.

    classifier.skops            the model, preprocessing included, in the skops format
    classifier.json             features, label, estimator, software
    _training_scores.parquet    its scores of the rows it was trained on, as a score table

The model is rebuilt from named types on an allow list: nothing is unpickled, and what else a file asks for is refused.
The training scores give the decision threshold for any lookup table.
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
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from calibrators.arithmetic.calibration_map import CalibrationMap
from calibrators.arithmetic.passes import Points
from calibrators.measures.assessment import Threshold, best_threshold
from logcal.errors import ConfigError, InputRejectedError, examples
from logcal.schema import apply_transform
from logcal.storage import open_filesystem, parse_json
from pipeline import schema
from pipeline.classifier.estimators import one_thread, scores_of
from pipeline.classifier.features import Feature, as_frame

FOLDER = "classifier"
MODEL = "classifier.skops"
_SCHEMA = "schema.json"
"""Schema file within a skops file, which is a zip archive."""
_LONG_AGO = (1980, 1, 1, 0, 0, 0)
METADATA = "classifier.json"
TRAINING_SCORES = "_training_scores.parquet"
FORMAT = "1"

BATCH_ROWS = 4096
"""Rows scored at a time, always this many: so that no result depends on how the rows lie in files."""

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
"""Types within fitted classifiers and their preprocessing, beyond those that skops trusts by itself."""


def dump_model(model: Any, packages: tuple[str, ...]) -> bytes:
    """A fitted model in the skops format, checked to be one that `load_model` loads. Equal models have equal bytes.

    Raises
    ------
    InputRejectedError
        The model holds types that are not on the allow list.
    """
    import skops.io

    content = _without_addresses(skops.io.dumps(model))
    load_model(content, packages, "the shipped classifier")
    return content


def _without_addresses(content: bytes) -> bytes:
    """A skops file without what only tells where objects lay in memory, and when it was written."""
    buffer = io.BytesIO()
    numbers: dict[str, str] = {}
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(buffer, "w") as target:
        schema = _numbered(parse_json(source.read(_SCHEMA)), numbers)
        parts = {_renamed(name, numbers): source.read(name) for name in source.namelist() if name != _SCHEMA}
        parts[_SCHEMA] = json.dumps(schema, indent=2).encode()
        for name in sorted(parts):
            target.writestr(zipfile.ZipInfo(name, _LONG_AGO), parts[name], zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _numbered(node: Any, numbers: dict[str, str]) -> Any:
    """A node of a skops schema, whose objects and files are named by numbers in the order in which they come."""
    if isinstance(node, list):
        return [_numbered(item, numbers) for item in node]
    if not isinstance(node, dict):
        return node
    found: dict[str, Any] = {}
    for key, value in node.items():
        if key == "__id__" and isinstance(value, int):
            found[key] = int(numbers.setdefault(str(value), str(len(numbers) + 1)))
        elif key == "file" and isinstance(value, str):
            numbers.setdefault(value.partition(".")[0], str(len(numbers) + 1))
            found[key] = _renamed(value, numbers)
        else:
            found[key] = _numbered(value, numbers)
    return found


def _renamed(name: str, numbers: dict[str, str]) -> str:
    stem, dot, kind = name.partition(".")
    return f"{numbers.get(stem, stem)}{dot}{kind}"


def load_model(content: bytes, packages: tuple[str, ...], name: str) -> Any:
    """The model in a skops file, rebuilt from types on the allow list.

    The list: what skops trusts by itself (types of Python, numpy, scipy and scikit-learn that hold data), some that
    scikit-learn's classifiers hold, and the types of `packages` other than scikit-learn.

    Raises
    ------
    InputRejectedError
        The file is none, or asks for other types.
    """
    import skops.io

    try:
        unknown = skops.io.get_untrusted_types(data=content)
    except Exception as error:  # noqa: BLE001 - whatever a damaged file does to the reader
        raise InputRejectedError(f"{name}: expected a classifier in the skops format ({error})") from None
    refused = [kind for kind in unknown if not _allowed(kind, packages)]
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


def _allowed(kind: str, packages: tuple[str, ...]) -> bool:
    return kind in _INTERNAL_TYPES or kind.partition(".")[0] in set(packages) - {"sklearn"}


@dataclass(frozen=True)
class ShippedClassifier:
    """A shipped classifier that has been found; its model is loaded when it scores.

    Attributes
    ----------
    path : of its folder
    packages : whose types may be loaded
    metadata : what classifier.json says
    """

    path: str
    packages: tuple[str, ...]
    metadata: dict[str, Any]

    @property
    def features(self) -> tuple[Feature, ...]:
        """Features that it was trained with."""
        return tuple(Feature(feature["name"], feature["kind"]) for feature in self.metadata["features"])

    @property
    def digest(self) -> str:
        """Digest of its model's file."""
        return str(self.metadata["sha256"])

    @property
    def run_id(self) -> str:
        """Id of the run that trained it."""
        return str(self.metadata["run_id"])

    def model(self) -> Any:
        """The model, loaded once a process."""
        return _cached_model(self.path, self.digest, self.packages)

    def scores(self, rows: pa.Table | pa.RecordBatch) -> npt.NDArray[np.float64]:
        """Scores of rows that have its features, float64."""
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

    def threshold(self, calibration_map: CalibrationMap, transform: str = "none") -> Threshold:
        """The threshold on a map's probabilities that maximises the classification rate on training rows.

        Parameters
        ----------
        calibration_map : of a lookup table
        transform : its score transform
        """
        filesystem, root = open_filesystem(self.path)
        with filesystem.open(f"{root}/{TRAINING_SCORES}", "rb") as file:
            table = pq.read_table(file, schema=schema.SCORE_TABLE)
        points = Points(*(table.column(name).to_numpy() for name in schema.SCORE_TABLE.names))
        return threshold_of(points, calibration_map, transform)


def threshold_of(points: Points, calibration_map: CalibrationMap, transform: str = "none") -> Threshold:
    """The decision threshold for scores whose labels are known."""
    p = calibration_map.predict(apply_transform(points.score, transform))
    cases = np.concatenate([p, p])
    labels = np.repeat([0, 1], p.size)
    weight = np.concatenate([points.weight - points.positives, points.positives])
    some = weight > 0
    return best_threshold(cases[some], labels[some], weight[some])


def find_classifier(path: str, packages: tuple[str, ...]) -> ShippedClassifier:
    """The shipped classifier in a folder, or in the folder of a generated log; its model is loaded as a check.

    Raises
    ------
    ConfigError
        There is none.
    InputRejectedError
        It was written by another version, its files do not belong together, or its model is not to be loaded.
    """
    filesystem, root = open_filesystem(path, "classifier.path")
    for folder in (path.rstrip("/"), f"{path.rstrip('/')}/{FOLDER}"):
        _, root = open_filesystem(folder)
        try:
            metadata = parse_json(filesystem.cat_file(f"{root}/{METADATA}"))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            continue
        except ValueError:
            raise InputRejectedError(f"{folder}/{METADATA}: expected JSON, found something else") from None
        if not isinstance(metadata, dict) or metadata.get("format_version") != FORMAT:
            raise InputRejectedError(
                f"{folder}/{METADATA}: expected a classifier of format {FORMAT}, found another: generate it again"
            )
        # Workers may have another working directory.
        found = ShippedClassifier(
            root if isinstance(filesystem, LocalFileSystem) else folder, packages, metadata
        )
        found.model()
        return found
    raise ConfigError(
        f"classifier.path: expected a folder with {METADATA}, as `logcal generate` writes it, found none in {path}"
    )


@lru_cache(maxsize=2)
def _cached_model(path: str, digest: str, packages: tuple[str, ...]) -> Any:
    filesystem, root = open_filesystem(path)
    try:
        content = filesystem.cat_file(f"{root}/{MODEL}")
    except FileNotFoundError:
        raise InputRejectedError(
            f"{path}/{MODEL}: expected the classifier's model, found no such file"
        ) from None
    if sha256(content) != digest:
        raise InputRejectedError(
            f"{path}/{MODEL}: expected the file that {METADATA} describes, found another: copy the folder again"
        )
    return load_model(content, packages, f"{path}/{MODEL}")


def sha256(content: bytes) -> str:
    """A digest in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def training_scores_bytes(points: Points) -> bytes:
    """Training scores as a Parquet file."""
    buffer = io.BytesIO()
    table = pa.Table.from_arrays([pa.array(column) for column in points], schema=schema.SCORE_TABLE)
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()
