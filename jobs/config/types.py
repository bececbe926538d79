"""The types of values in configurations."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field


def _check_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(
            f"expected a plain name of letters, digits, '-', '_' and '.' that begins with a letter or digit, "
            f"found {name!r}"
        )
    return name


def as_tuple(value: Any) -> Any:
    """One value or a list of values as a tuple."""
    if isinstance(value, list):
        return tuple(value)
    return (value,) if isinstance(value, str) else value


Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, AfterValidator(_check_name)]
Names = Annotated[tuple[Text, ...], BeforeValidator(as_tuple)]
Packages = Annotated[
    tuple[Literal["sklearn", "xgboost", "lightgbm", "catboost"], ...], BeforeValidator(as_tuple)
]
Paths = Annotated[tuple[Text, ...], BeforeValidator(as_tuple), Field(min_length=1)]
