"""Append-only logs of records, each a dataclass: one JSON object a line, or an object each in an object store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

from logcal.errors import InputRejectedError
from logcal.storage import parse_checked, with_checksum
from pipeline.files.folders import Folder

T = TypeVar("T")


@dataclass(frozen=True)
class LineLog(Generic[T]):
    """Kind of a log.

    Attributes
    ----------
    name : of the file, without '.jsonl'
    objects : name of the folder of the objects in an object store
    kind : dataclass of a record
    texts : names of its fields that are never empty
    content, remedy : for messages: what the log holds, and what happens once a damaged record is removed
    """

    name: str
    objects: str
    kind: type[T]
    texts: tuple[str, ...]
    content: str
    remedy: str

    def exists(self, folder: Folder) -> bool:
        """Tell whether a folder has this log."""
        return bool(folder.matching(f"{self.name}.jsonl", self.objects))

    def append(self, folder: Folder, records: Sequence[T]) -> None:
        """Append records, and sync them; see `Folder.append`."""
        empty: tuple[Any, ...] = (None, "", {})
        contents = [{k: v for k, v in vars(record).items() if v not in empty} for record in records]
        lines = [f"{json.dumps(with_checksum(content))}\n".encode() for content in contents]
        folder.append(f"{self.name}.jsonl", self.objects, lines)

    def read(self, folder: Folder, *, newest_first: bool = False) -> Iterator[T]:
        """Yield the records, oldest first; a line that a killed process has not finished is left out.

        Raises
        ------
        InputRejectedError
            A record is damaged.
        """
        names = [field.name for field in fields(self.kind)]  # type: ignore[arg-type]
        lines = folder.lines(f"{self.name}.jsonl", self.objects, newest_first=newest_first)
        for place, line in lines:
            try:
                facts = parse_checked(line)
                if not all(isinstance(facts.get(text), str) for text in self.texts):
                    raise ValueError(f"expected {', '.join(self.texts)}")
                record = self.kind(**{name: facts[name] for name in names if name in facts})
            except (ValueError, AttributeError, TypeError) as error:
                raise InputRejectedError(
                    f"{folder}: expected {self.content}, found {place} damaged ({error}): restore it from a backup, or "
                    f"remove it: {self.remedy}"
                ) from None
            yield record
