"""Files of other formats than Parquet: which one it is, and the command that converts it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

CSV, JSON, PICKLE = "CSV", "JSON", "a pickled data frame"

HEAD_BYTES = 512

_SUFFIXES = {
    **dict.fromkeys((".csv", ".tsv"), CSV),
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), JSON),
    **dict.fromkeys((".pkl", ".pickle"), PICKLE),
}
_COMPRESSED = (".gz", ".bz2", ".zst", ".xz")
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_TEXT = re.compile(rb"[\t\n\r\x20-\x7e\x80-\xff]+")


def format_of(name: str, head: bytes = b"") -> str | None:
    """Return the format of a file by its first bytes, or else by its name; None if it is none of those known."""
    if _PICKLE.match(head):
        return PICKLE
    if head and _TEXT.fullmatch(head):
        if head.lstrip()[:1] in (b"{", b"["):
            return JSON
        if re.search(rb"[,;\t]", head.partition(b"\n")[0]):
            return CSV
    base = name.lower()
    for suffix in _COMPRESSED:
        base = base.removesuffix(suffix)
    return next((format_ for suffix, format_ in _SUFFIXES.items() if base.endswith(suffix)), None)


def advice(path: str, format_: str, target: str | None = None) -> str:
    """Return what to do with a file of a format: the command that writes it as Parquet, beside it or to `target`."""
    target = target or f"{path}.parquet"
    if format_ == PICKLE:
        code = f"import pandas; pandas.read_pickle({path!r}).to_parquet({target!r})"
        return f"convert it, if you trust who wrote it: python -c {_quoted(code)}"
    reader = "read_csv" if format_ == CSV else "read_json"
    source, target = (text.replace("'", "''") for text in (path, target))
    query = f"COPY (FROM {reader}('{source}')) TO '{target}'"
    return f"convert it: duckdb -c {_quoted(query)}"


def _quoted(code: str) -> str:
    return shlex.quote(code) if re.search(r'["$`\\!]', code) else f'"{code}"'


def folder_advice(folder: str, names: Sequence[str]) -> str:
    """Return the advice for a folder whose files are of one other format, as the end of a sentence; else ''."""
    formats = {format_of(name) for name in names}
    if len(formats) != 1 or None in formats:
        return ""
    format_ = str(formats.pop())
    if len(names) > 1 and format_ != PICKLE:
        endings = {name.rpartition("/")[2].partition(".")[2] for name in names}
        if len(endings) != 1 or any("/" in name for name in names):
            return ""
        return f": {advice(f'{folder}/*.{endings.pop()}', format_, f'{folder}.parquet')}"
    return f": {advice(f'{folder}/{names[0]}', format_)}"


def found(filesystem: Any, path: str) -> str | None:
    """Return what a file that is not Parquet is, and what to do with it; None if it is none of the known formats."""
    head = bytes(filesystem.cat_file(path, start=0, end=HEAD_BYTES))
    format_ = format_of(path, head)
    return None if format_ is None else f"{format_}: {advice(path, format_)}"
