"""Sections of configurations: what all of them check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self, get_origin

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """Keys of one level. Frozen; an unknown key is an error; types are never guessed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:
        """An empty section has no keys, and null is no value for a key that must have one."""
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
        """Keys, each good by itself, that do not go together, with the reason."""
        yield from ()


def section_of(annotation: Any) -> type[Section] | None:
    """The annotation, if it is a section."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None
