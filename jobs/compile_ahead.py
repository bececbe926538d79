"""A second process that compiles, from the other end, what a job will need that nothing has been compiled for yet.

Compiling holds a lock of the whole process, so another processor can only help in another process. The job begins with
what it needs first, the helper with what it needs last, and what the helper has done is found kept by then. What jobs
need, in order, is listed in data/first_runs.json: hints, without which a job compiles all by itself.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LISTS = Path(__file__).parent / "data" / "first_runs.json"

JOBS = ("demo", "fit", "compare", "score", "evaluate")
"""Those that have a list."""

_ARRAY = re.compile(r"Array\((\w+), (\d), '(\w)', (False|True), aligned=True\)")
_TYPE = re.compile(r"(\w+)(?:\[(\d)(\w)(r?)\])?")


@contextlib.contextmanager
def helping(job: str, processors: int) -> Iterator[None]:
    """Start the helper when this process first compiles something; it ends with the block, or with this process."""
    if processors < 2 or job not in JOBS:
        yield
        return
    from numba.core import event

    helper = _Helper(job)

    class Listener(event.Listener):
        def on_start(self, event: event.Event) -> None:
            helper.start()

        def on_end(self, event: event.Event) -> None:
            pass

    listener = Listener()
    event.register("numba:compile", listener)
    try:
        yield
    finally:
        event.unregister("numba:compile", listener)
        helper.stop()


class _Helper:
    """The other process, at most one."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._begun = False

    def start(self) -> None:
        """Once; where it cannot be started, there is none."""
        with self._lock:
            if self._begun:
                return
            self._begun = True
            root = str(Path(__file__).parents[1])
            code = (
                f"import sys; sys.path.insert(0, {root!r}); from jobs import compile_ahead; "
                f"compile_ahead.compile_list({str(LISTS)!r}, {self.job!r})"
            )
            with contextlib.suppress(OSError):
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-c", code],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )

    def stop(self) -> None:
        """It is of no use any more."""
        with self._lock:
            self._begun = True
            if self.process is not None:
                self.process.kill()
                self.process.communicate()


def compile_list(lists: str, job: str) -> None:
    """What the helper does: compile a job's list from its end, until whoever started it has gone."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    compile_kernels(json.loads(Path(lists).read_text("utf-8"))[job][::-1])


def compile_kernels(listed: list[list[str]]) -> None:
    """Compile kernels, of each its name and the types of its arguments, unless the code of them is kept already."""
    from calibrators._kernels.compiled import keeps_code

    for name, text in listed:
        module, _, function = name.rpartition(".")
        # A list of another version may name what there is no more.
        with contextlib.suppress(Exception):
            kernel = getattr(importlib.import_module(module), function)
            if keeps_code(kernel):
                kernel.compile(tuple(map(_type_of, text.split())))


def _end_with_parent() -> None:
    os.read(0, 1)  # there is nothing to read until the other end is closed
    os._exit(0)


def text_of(types: Any) -> str:
    """Types of arguments, numba's, as text; '?' where one is of no kind that is known here."""
    return " ".join(map(_text_of, types))


def _text_of(one: Any) -> str:
    found = _ARRAY.fullmatch(repr(one))
    if found is None:
        return repr(one) if re.fullmatch(r"\w+", repr(one)) else "?"
    dtype, dimensions, layout, readonly = found.groups()
    return f"{dtype}[{dimensions}{layout}{'r' if readonly == 'True' else ''}]"


def _type_of(text: str) -> Any:
    from numba import types

    found = _TYPE.fullmatch(text)
    assert found is not None
    dtype, dimensions, layout, readonly = found.groups()
    scalar = types.boolean if dtype == "bool" else getattr(types, dtype)
    return (
        scalar
        if dimensions is None
        else types.Array(scalar, int(dimensions), layout, readonly=bool(readonly))
    )
