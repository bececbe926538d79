"""Section, the base class of all sections of a configuration, and the types of values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from logcal.storage import check_name


class Section(BaseModel):
    """Keys of one level. Frozen; an unknown key is an error; values are not converted between types."""

    # Validators are built on first use, since a command needs the sections of one job only.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)

    command_options: ClassVar[tuple[str, ...]] = ()
    """Keys that are options of the command: neither documented nor completed."""
    unused: ClassVar[tuple[str, ...]] = ()
    """Keys of the class above that a job does not use: they keep their defaults, and are other jobs' keys."""

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:
        """Fill in empty sections, and drop null from keys that need a value."""
        if values is None:
            return {}
        if not isinstance(values, dict):
            return values
        filled = {
            key: value for key, value in values.items() if value is not None or not cls._needs_value(key)
        }
        for name, info in cls.model_fields.items():
            if section_of(info.annotation):
                filled.setdefault(name, {})
        return filled

    @classmethod
    def _needs_value(cls, key: str) -> bool:
        info = cls.model_fields.get(key)
        if info is None:
            return False
        return info.is_required() or get_origin(info.annotation) is dict or bool(section_of(info.annotation))

    @model_validator(mode="after")
    def _agree(self) -> Self:
        conflicts = list(self.conflicts())
        if conflicts:
            raise PydanticCustomError(
                "conflicts",
                "{text}",
                {"text": "; ".join(f"{k}: {t}" for k, t in conflicts), "conflicts": conflicts},
            )
        return self

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Yield keys whose valid values do not go together, with the reason."""
        yield from ()


def section_of(annotation: Any) -> type[Section] | None:
    """Return the annotation if it is a section, otherwise None."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def accepted_by(check: Callable[[str], object]) -> AfterValidator:
    """Return a validator that keeps text unchanged. check : raises ValueError with the expected form."""

    def accept(text: str) -> str:
        check(text)
        return text

    return AfterValidator(accept)


def as_tuple(value: Any) -> Any:
    """Convert a text or a list to a tuple."""
    if isinstance(value, list):
        return tuple(value)
    return (value,) if isinstance(value, str) else value


class _IsPath:
    """Mark of keys that hold paths."""


_PATH = _IsPath()

Text = Annotated[str, Field(min_length=1)]
PathText = Annotated[Text, _PATH]
"""A path or URL. A relative path is relative to the folder of the file that sets it; see `jobs.config.paths`."""
Name = Annotated[str, accepted_by(check_name)]
Names = Annotated[tuple[Text, ...], BeforeValidator(as_tuple)]
Packages = Annotated[
    tuple[Literal["sklearn", "xgboost", "lightgbm", "catboost"], ...], BeforeValidator(as_tuple)
]
Paths = Annotated[tuple[Text, ...], BeforeValidator(as_tuple), Field(min_length=1), _PATH]


def holds_paths(info: FieldInfo) -> bool:
    """Tell whether a key holds a path, or several."""
    return _is_marked(info.annotation) or any(isinstance(mark, _IsPath) for mark in info.metadata)


def _is_marked(annotation: Any) -> bool:
    metadata = getattr(annotation, "__metadata__", ())
    return any(isinstance(mark, _IsPath) for mark in metadata) or any(map(_is_marked, get_args(annotation)))
