"""Estimators by dotted path: classifiers of scikit-learn and of other packages that the configuration allows."""

from __future__ import annotations

import importlib
import inspect
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from calibrators.core.arrays import Array
from logcal.errors import ConfigError, nearest
from pipeline.classifier.features import CATEGORY, NUMBER, Feature

PACKAGES = ("sklearn", "xgboost", "lightgbm", "catboost")
"""Packages that a configuration may allow; scikit-learn is allowed by default."""

CATEGORIES = ("one_hot", "none")
IMPUTATIONS = ("median", "mean", "most_frequent", "none")
SCALINGS = ("standard", "min_max", "none")
TRAININGS = ("in_memory", "partial_fit")

_PRIVATE = {"conftest", "experimental", "externals", "tests"}
_THREADS = ("n_jobs", "nthread", "thread_count")
_SCORES = ("predict_proba", "decision_function")


@dataclass(frozen=True)
class EstimatorRecipe:
    """Instructions for making a classifier.

    Parameters
    ----------
    path : dotted path of its class, such as sklearn.naive_bayes.GaussianNB
    params : its parameters
    packages : the packages that the class may come from, a subset of `PACKAGES`
    categories, imputation, scaling : preprocessing, one each of `CATEGORIES`, `IMPUTATIONS`, `SCALINGS`
    """

    path: str
    params: dict[str, Any] = field(default_factory=dict)
    packages: tuple[str, ...] = ("sklearn",)
    categories: str = "one_hot"
    imputation: str = "median"
    scaling: str = "none"


def load_class(path: str, packages: Sequence[str]) -> type[Any]:
    """Return the classifier class at a dotted path in one of the packages; import nothing from elsewhere.

    Raises
    ------
    ConfigError
        The package is not allowed; the class does not exist; it is not a classifier.
    """
    parts = path.split(".")
    if parts[0] not in packages or len(parts) < 2:
        raise ConfigError(
            f"$[class]: expected a class of {', '.join(packages)} ($[packages]), found {path!r}: "
            "no other package is imported"
        )
    valid = all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", part) and part not in _PRIVATE for part in parts)
    try:
        module = importlib.import_module(".".join(parts[:-1])) if valid else None
    except ImportError as error:
        if error.name == parts[0]:
            raise ConfigError(
                f"$[class]: {parts[0]} is not installed: `pip install {parts[0]}` here and on the workers"
            ) from None
        module = None
    cls = getattr(module, parts[-1], None)
    if cls is None:
        raise ConfigError(f"$[class]: there is no {path}{nearest(parts[-1], dir(module) if module else [])}")
    ours = isinstance(cls, type) and cls.__module__.partition(".")[0] in packages
    if not (ours and hasattr(cls, "get_params")):
        raise ConfigError(f"$[class]: expected a classifier, found {path}, which is not one")
    return cast("type[Any]", cls)


def make_classifier(recipe: EstimatorRecipe, random_state: int) -> Any:
    """Make the classifier of a recipe, without its preprocessing; it runs on one thread.

    It gets `random_state` unless the recipe's parameters contain one.

    Raises
    ------
    ConfigError
        See `load_class`; also a parameter that the class does not have or that is out of range.
    """
    cls = load_class(recipe.path, recipe.packages)
    try:
        defaults = cls().get_params()
    except TypeError:
        raise ConfigError(
            f"$[class]: {recipe.path} is made of other estimators, which a configuration cannot give: choose "
            "another class"
        ) from None
    # Classes of LightGBM and XGBoost accept more parameters than get_params names.
    open_ended = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(cls).parameters.values())
    unknown = [] if open_ended else [name for name in recipe.params if name not in defaults]
    if unknown:
        raise ConfigError(
            f"$[params].{unknown[0]}: {recipe.path} has no such parameter{nearest(unknown[0], list(defaults))}; "
            f"it has {', '.join(sorted(defaults)) or 'none'}"
        )
    params = dict(recipe.params)
    if "random_state" in defaults:
        params.setdefault("random_state", random_state)
    if not recipe.path.startswith("sklearn."):  # `one_thread` limits scikit-learn's threads
        params.update({name: 1 for name in _THREADS if name in defaults})
    if recipe.path.startswith("catboost."):
        params.update({"allow_writing_files": False, "thread_count": 1, "verbose": False})
    try:
        classifier = cls(**params)
        if hasattr(classifier, "_parameter_constraints"):
            classifier._validate_params()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"$[params]: {recipe.path} rejects them: {_one_line(error)}") from None
    return classifier


def check_recipe(recipe: EstimatorRecipe, training: str) -> None:
    """Check a recipe before any data is read.

    Raises
    ------
    ConfigError
        See `make_classifier`; also an estimator that is not a classifier, gives no scores, or lacks the partial_fit
        that `training` needs.
    """
    from sklearn.base import is_classifier

    classifier = make_classifier(recipe, 0)
    if not any(hasattr(classifier, name) for name in _SCORES):
        raise ConfigError(
            f"$[class]: expected a classifier with predict_proba or decision_function, found {recipe.path}"
            f"{f' with {recipe.params}' if recipe.params else ''}, which has neither and so gives no scores"
        )
    if not is_classifier(classifier):
        raise ConfigError(f"$[class]: expected a classifier, found {recipe.path}, which is not one")
    if training == "partial_fit" and not hasattr(classifier, "partial_fit"):
        raise ConfigError(
            f"$[training]=partial_fit: {recipe.path} has no partial_fit: set in_memory, or choose an estimator "
            "with partial_fit, such as sklearn.linear_model.SGDClassifier"
        )


def check_columns(recipe: EstimatorRecipe, features: Sequence[Feature], with_nulls: Sequence[str]) -> None:
    """Check that the classifier supports the preprocessed features.

    Parameters
    ----------
    with_nulls : names of the numeric features that have nulls

    Raises
    ------
    ConfigError
        Categories or nulls would reach a classifier that does not support them.
    """
    categories = [name for name, kind in features if kind == CATEGORY]
    if categories and recipe.categories == "none":
        raise ConfigError(
            "$[recipe.categories]=none: expected only numeric features, found the categories "
            f"{', '.join(categories[:5])}: set $[recipe.categories]=one_hot, or leave them out ($[exclude])"
        )
    if with_nulls and recipe.imputation == "none" and not _allows_nan(make_classifier(recipe, 0)):
        raise ConfigError(
            f"$[imputation]=none: {recipe.path} takes no missing values, found nulls in "
            f"{', '.join(with_nulls[:5])}: set $[imputation]=median, or leave them out ($[exclude])"
        )


def _allows_nan(classifier: Any) -> bool:
    from sklearn.utils import get_tags

    try:
        return bool(get_tags(classifier).input_tags.allow_nan)
    except Exception:  # noqa: BLE001 - an estimator of another package may have no tags; it will raise its own error
        return True


def make_preprocessing(recipe: EstimatorRecipe, features: Sequence[Feature]) -> Any:
    """Make the preprocessing of a recipe: a `sklearn.compose.ColumnTransformer`, or None if there are no steps.

    Numbers: `SimpleImputer`, then a scaler. Categories: `OneHotEncoder`; a null is a category of its own, and a
    category that is new after training becomes zeros.
    """
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler

    numbers = [name for name, kind in features if kind == NUMBER]
    categories = [name for name, kind in features if kind == CATEGORY]
    steps: list[tuple[str, Any]] = []
    if recipe.imputation != "none":
        steps.append(("impute", SimpleImputer(strategy=recipe.imputation, keep_empty_features=True)))
    if recipe.scaling != "none":
        steps.append(("scale", StandardScaler() if recipe.scaling == "standard" else MinMaxScaler()))
    if not categories and not steps:
        return None
    blocks: list[tuple[str, Any, list[str]]] = []
    if numbers:
        blocks.append(("numbers", Pipeline(steps) if steps else "passthrough", numbers))
    if categories:
        blocks.append(("categories", OneHotEncoder(handle_unknown="ignore", sparse_output=False), categories))
    return ColumnTransformer(blocks)


def make_model(recipe: EstimatorRecipe, features: Sequence[Feature], random_state: int) -> Any:
    """Make an unfitted `sklearn.pipeline.Pipeline` of a recipe's preprocessing and classifier."""
    return assemble(make_preprocessing(recipe, features), make_classifier(recipe, random_state))


def assemble(preprocessing: Any, classifier: Any) -> Any:
    """Return a pipeline of preprocessing (or None) and classifier; it is fitted if both are."""
    from sklearn.pipeline import Pipeline

    steps = [] if preprocessing is None else [("preprocessing", preprocessing)]
    return Pipeline([*steps, ("classifier", classifier)])


def score_method(model: Any) -> str:
    """Return the name of the method that gives a model's scores: 'predict_proba', otherwise 'decision_function'."""
    return next(name for name in _SCORES if hasattr(model, name))


def scores_of(model: Any, frame: Any) -> Array:
    """Compute a fitted model's scores: probabilities of label 1, or the decision function; float64, shape (n,)."""
    method = score_method(model)
    values = np.asarray(getattr(model, method)(frame), dtype=np.float64)
    return np.ascontiguousarray(values[:, 1] if method == "predict_proba" else values.reshape(len(frame)))


class NotConvergedError(Exception):
    """An estimator reported that it did not converge."""


@contextmanager
def one_thread(counts: dict[str, int] | None = None) -> Iterator[None]:
    """Limit the body to one thread and capture its warnings; convergence warnings become errors.

    Parameters
    ----------
    counts : counts of the other warnings by text, updated

    Raises
    ------
    NotConvergedError
    """
    from joblib import parallel_config
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    with (
        threadpool_limits(1),
        parallel_config(backend="sequential"),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
    for warning in caught:
        if issubclass(warning.category, ConvergenceWarning):
            raise NotConvergedError(_one_line(warning.message))
        if counts is not None:
            text = f"{warning.category.__name__}: {_one_line(warning.message)}"
            counts[text] = counts.get(text, 0) + 1


def _one_line(message: object) -> str:
    return " ".join(str(message).split())[:300]
