"""Estimators by name: scikit-learn's classifiers, those of packages that a configuration allows, and no others."""

from __future__ import annotations

import importlib
import inspect
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from logcal.errors import ConfigError, nearest
from pipeline.classifier.features import CATEGORY, NUMBER, Feature

PACKAGES = ("sklearn", "xgboost", "lightgbm", "catboost")
"""Packages that a configuration may let in; scikit-learn is in by default."""

CATEGORIES = ("one_hot", "none")
IMPUTATIONS = ("median", "mean", "most_frequent", "none")
SCALINGS = ("standard", "min_max", "none")
TRAININGS = ("in_memory", "partial_fit")

_CLOSED = {"conftest", "experimental", "externals", "tests"}
_THREADS = ("n_jobs", "nthread", "thread_count")
_SCORES = ("predict_proba", "decision_function")


@dataclass(frozen=True)
class Recipe:
    """Instructions for making a classifier.

    Parameters
    ----------
    path : dotted path of its class, such as sklearn.naive_bayes.GaussianNB
    params : its parameters
    packages : what the class may come from, of `PACKAGES`
    categories, imputation, scaling : preprocessing, of `CATEGORIES`, `IMPUTATIONS`, `SCALINGS`
    """

    path: str
    params: dict[str, Any] = field(default_factory=dict)
    packages: tuple[str, ...] = ("sklearn",)
    categories: str = "one_hot"
    imputation: str = "median"
    scaling: str = "none"


def load_class(path: str, packages: Sequence[str]) -> type[Any]:
    """The classifier class at a dotted path, from one of the packages.

    Nothing outside the packages is imported, and of what is inside only classes of classifiers are returned.

    Raises
    ------
    ConfigError
        The package is not on the list; there is no such class; it is no classifier.
    """
    parts = path.split(".")
    if parts[0] not in packages or len(parts) < 2:
        raise ConfigError(
            f"estimator.class: expected a class of {', '.join(packages)} (estimator.packages), found {path!r}: "
            "no other package is imported"
        )
    plain = all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", part) and part not in _CLOSED for part in parts)
    try:
        module = importlib.import_module(".".join(parts[:-1])) if plain else None
    except ImportError as error:
        if error.name == parts[0]:
            raise ConfigError(
                f"estimator.class: {parts[0]} is not installed: `pip install {parts[0]}` here and on the workers"
            ) from None
        module = None
    found = getattr(module, parts[-1], None)
    if found is None:
        raise ConfigError(
            f"estimator.class: there is no {path}{nearest(parts[-1], dir(module) if module else [])}"
        )
    if not _is_classifier_class(found, packages):
        raise ConfigError(f"estimator.class: expected a class of classifiers, found {path}, which is none")
    return found


def _is_classifier_class(found: Any, packages: Sequence[str]) -> bool:
    from sklearn.base import BaseEstimator, ClassifierMixin

    if not isinstance(found, type) or found.__module__.partition(".")[0] not in packages:
        return False
    # CatBoost's classifiers do not derive from scikit-learn's.
    return issubclass(found, (BaseEstimator, ClassifierMixin)) or hasattr(found, "get_params")


def make_classifier(recipe: Recipe, random_state: int) -> Any:
    """The classifier of a recipe, without its preprocessing.

    `random_state` is given to it unless the recipe's parameters have one; it runs on one thread.

    Raises
    ------
    ConfigError
        As `load_class`; a parameter that it does not have or that is out of range.
    """
    cls = load_class(recipe.path, recipe.packages)
    try:
        known = cls().get_params()
    except TypeError:
        raise ConfigError(
            f"estimator.class: {recipe.path} is made of other estimators, which a configuration cannot name: choose "
            "another"
        ) from None
    # LightGBM's and XGBoost's take more than they name.
    more = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(cls).parameters.values())
    unknown = [] if more else [name for name in recipe.params if name not in known]
    if unknown:
        raise ConfigError(
            f"estimator.params.{unknown[0]}: {recipe.path} has no such parameter{nearest(unknown[0], list(known))}; "
            f"it has {', '.join(sorted(known)) or 'none'}"
        )
    params = dict(recipe.params)
    if "random_state" in known:
        params.setdefault("random_state", random_state)
    if not recipe.path.startswith("sklearn."):  # whose threads `one_thread` holds
        params.update({name: 1 for name in _THREADS if name in known})
    if recipe.path.startswith("catboost."):
        params.update({"allow_writing_files": False, "thread_count": 1, "verbose": False})
    try:
        classifier = cls(**params)
        if hasattr(classifier, "_parameter_constraints"):
            classifier._validate_params()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"estimator.params: {recipe.path} refuses them: {_line(error)}") from None
    return classifier


def check_recipe(recipe: Recipe, training: str) -> None:
    """Check a recipe before any data is read.

    Raises
    ------
    ConfigError
        As `make_classifier`; it is no classifier; it gives no scores; it cannot be trained piece by piece.
    """
    from sklearn.base import is_classifier

    classifier = make_classifier(recipe, 0)
    if not any(hasattr(classifier, name) for name in _SCORES):
        raise ConfigError(
            f"estimator.class: expected a classifier with predict_proba or decision_function, found {recipe.path}"
            f"{f' with {recipe.params}' if recipe.params else ''}, which has neither and so gives no scores"
        )
    if not is_classifier(classifier):
        raise ConfigError(f"estimator.class: expected a classifier, found {recipe.path}, which is none")
    if training == "partial_fit" and not hasattr(classifier, "partial_fit"):
        raise ConfigError(
            f"generate.training=partial_fit: {recipe.path} cannot be trained piece by piece: set in_memory, or choose "
            "an estimator with partial_fit, such as sklearn.linear_model.SGDClassifier"
        )


def check_columns(recipe: Recipe, features: Sequence[Feature], with_nulls: Sequence[str]) -> None:
    """Check that the preprocessing gives the classifier what it can take.

    Parameters
    ----------
    with_nulls : names of the features of numbers that have nulls

    Raises
    ------
    ConfigError
        Categories or nulls that would reach a classifier which cannot take them.
    """
    categories = [name for name, kind in features if kind == CATEGORY]
    if categories and recipe.categories == "none":
        raise ConfigError(
            f"estimator.categories=none: expected features of numbers alone, found the categories "
            f"{', '.join(categories[:5])}: set estimator.categories=one_hot, or leave them out (data.exclude)"
        )
    if with_nulls and recipe.imputation == "none" and not _allows_nan(make_classifier(recipe, 0)):
        raise ConfigError(
            f"estimator.imputation=none: {recipe.path} takes no missing values, found nulls in "
            f"{', '.join(with_nulls[:5])}: set estimator.imputation=median, or leave them out (data.exclude)"
        )


def _allows_nan(classifier: Any) -> bool:
    from sklearn.utils import get_tags

    try:
        return bool(get_tags(classifier).input_tags.allow_nan)
    except Exception:  # noqa: BLE001 - an estimator of another package may have no tags: it will speak for itself
        return True


def make_preprocessing(recipe: Recipe, features: Sequence[Feature]) -> Any:
    """The preprocessing of a recipe as a `sklearn.compose.ColumnTransformer`, or None where there is none.

    Numbers: `SimpleImputer`, then a scaler. Categories: `OneHotEncoder`, for which a null is a category, and a category
    not seen in training is none of the known ones.
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


def make_model(recipe: Recipe, features: Sequence[Feature], random_state: int) -> Any:
    """The classifier of a recipe with its preprocessing: a `sklearn.pipeline.Pipeline`, not fitted."""
    return assemble(make_preprocessing(recipe, features), make_classifier(recipe, random_state))


def assemble(preprocessing: Any, classifier: Any) -> Any:
    """A pipeline of both, fitted if both are."""
    from sklearn.pipeline import Pipeline

    steps = [] if preprocessing is None else [("preprocessing", preprocessing)]
    return Pipeline([*steps, ("classifier", classifier)])


def score_method(model: Any) -> str:
    """Name the method that gives a model's scores: 'predict_proba' if it has that, otherwise 'decision_function'."""
    return next(name for name in _SCORES if hasattr(model, name))


def scores_of(model: Any, frame: Any) -> npt.NDArray[np.float64]:
    """A fitted model's scores: the probability of label 1, or the decision function; float64, shape (n,)."""
    method = score_method(model)
    found = np.asarray(getattr(model, method)(frame), dtype=np.float64)
    return np.ascontiguousarray(found[:, 1] if method == "predict_proba" else found.reshape(len(frame)))


class NotConvergedError(Exception):
    """An estimator said that it did not converge."""


@contextmanager
def one_thread(said: dict[str, int] | None = None) -> Iterator[None]:
    """Hold what runs inside to one thread, and take its warnings: those of convergence are errors.

    Parameters
    ----------
    said : other warnings are counted here

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
        warnings.catch_warnings(record=True) as found,
    ):
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
    for warning in found:
        if issubclass(warning.category, ConvergenceWarning):
            raise NotConvergedError(_line(warning.message))
        if said is not None:
            text = f"{warning.category.__name__}: {_line(warning.message)}"
            said[text] = said.get(text, 0) + 1


def _line(message: object) -> str:
    return " ".join(str(message).split())[:300]
