"""Trials: a command is disturbed once, what is there then is looked at, it is run again, and all is compared.

Whatever happens, a reader finds each file as it was before or as it will be after; the command ends with a code that
says what happened; and once it has been run again, everything is as if nothing had happened, and nothing is left over.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from chaos.scenarios import Stage
from chaos.tracing import (
    REMOVING,
    Call,
    Decision,
    Ended,
    Fail,
    Kill,
    Meanwhile,
    Send,
    forked,
    started,
    traced,
)

NOT_SUITED, TEMPORARY = 3, 75
"""The exit code of what the environment did, and may not do again."""


@dataclass(frozen=True)
class Trial:
    """What came of one disturbance.

    Attributes
    ----------
    kind, scenario, moment : what was done, to what, when
    code : how the disturbed command ended
    again : and how when it was run again; None: that was not needed
    problems : what should not be
    """

    kind: str
    scenario: str
    moment: str
    code: int
    again: int | None
    problems: tuple[str, ...] = ()


def kill_at(stage: Stage, call: Call, random: np.random.Generator) -> Iterator[Trial]:
    """SIGKILL before a call, and within it if it writes."""
    for half in (False, True) if call.size > 1 else (False,):
        stage.reset()
        ended = _traced_at(stage, call, Kill(half))
        yield judged(stage, "killed", _at(call, half), ended, (-signal.SIGKILL,))


def fail_at(stage: Stage, call: Call, random: np.random.Generator) -> Iterator[Trial]:
    """One call fails, and the next one would not."""
    for error in (errno.ENOSPC, errno.EIO):
        if call.name in REMOVING and error == errno.ENOSPC:
            continue
        stage.reset()
        ended = _traced_at(stage, call, Fail(error))
        yield judged(stage, "a write fails", f"{_at(call)} {errno.errorcode[error]}", ended, (TEMPORARY,))


def full_from(stage: Stage, call: Call, random: np.random.Generator) -> Iterator[Trial]:
    """From a call on, the file system of its folder is full."""
    where = call.paths[-1].split("/")[0]

    def decide(now: Call) -> Decision:
        here = now.paths[-1].split("/")[0] == where
        return Fail(errno.ENOSPC) if here and now.number >= call.number and now.name not in REMOVING else None

    if call.name in REMOVING:
        return
    stage.reset()
    ended = traced(stage.command, stage.place.root, decide)
    yield judged(stage, "a full disk", f"{_at(call)} on", ended, (TEMPORARY,))


def signal_at(stage: Stage, call: Call, random: np.random.Generator) -> Iterator[Trial]:
    """SIGTERM or SIGINT before a call."""
    number = (signal.SIGTERM, signal.SIGINT)[random.integers(2)]
    stage.reset()
    ended = _traced_at(stage, call, Send(number))
    yield judged(stage, "signalled", f"{_at(call)} {number.name}", ended, (128 + number,))


def run_twice(stage: Stage, call: Call, random: np.random.Generator) -> Iterator[Trial]:
    """It stands still before a call, as after SIGSTOP, while the same command is run by another process."""
    others: list[int] = []

    def impatient() -> int:
        from pipeline.files import locks

        locks.PATIENCE = 0.1
        return stage.command()

    stage.reset()
    ended = _traced_at(stage, call, Meanwhile(lambda: others.append(forked(impatient).code)))
    # Either may have done its work already; of some commands nothing is left for the other one then.
    late = (NOT_SUITED,) if stage.scenario.repeats else ()
    trial = judged(stage, "run twice", _at(call), ended, (TEMPORARY, 99, *late))
    allowed = {stage.scenario.code, *stage.scenario.again, TEMPORARY, *late}
    wrong = [f"the other run ended with {code}" for code in others if code not in allowed]
    yield Trial(trial.kind, trial.scenario, trial.moment, trial.code, trial.again, (*trial.problems, *wrong))


AT_WRITES: dict[str, Callable[[Stage, Call, np.random.Generator], Iterator[Trial]]] = {
    "killed": kill_at,
    "a write fails": fail_at,
    "a full disk": full_from,
    "signalled": signal_at,
    "run twice": run_twice,
}


def kill_somewhen(stage: Stage, random: np.random.Generator, seconds: float) -> Trial:
    """SIGKILL at any moment of a run that takes so long."""
    return _somewhen(stage, "killed at random", random, seconds, signal.SIGKILL)


def stop_somewhen(stage: Stage, random: np.random.Generator, seconds: float) -> Trial:
    """SIGSTOP at any moment, and SIGCONT."""
    return _somewhen(stage, "stopped at random", random, seconds, signal.SIGSTOP)


def limit_files(stage: Stage, random: np.random.Generator, seconds: float) -> Trial:
    """No file may become larger than some size, as where a quota is used up (RLIMIT_FSIZE)."""
    size = int(2 ** (14 * random.random()))

    def limited() -> int:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        return stage.command()

    stage.reset()
    return judged(stage, "files are limited", f"{size} bytes", forked(limited), (TEMPORARY,))


AT_RANDOM: dict[str, Callable[[Stage, np.random.Generator, float], Trial]] = {
    "killed at random": kill_somewhen,
    "stopped at random": stop_somewhen,
    "files are limited": limit_files,
}


def _somewhen(stage: Stage, kind: str, random: np.random.Generator, seconds: float, number: int) -> Trial:
    stage.reset()
    moment = float(random.random() * seconds)
    process = started(stage.command)
    time.sleep(moment)
    for one in (number, signal.SIGCONT):
        try:
            os.kill(process.pid, one)
        except ProcessLookupError:
            break
        time.sleep(0.01)
    ended = process.wait()
    return judged(stage, kind, f"{moment:.3f} s", ended, (-signal.SIGKILL,))


def _at(call: Call, half: bool = False) -> str:
    return f"{call.number}: {'half of ' if half else ''}{call.name} {' '.join(call.paths)}"


def _traced_at(stage: Stage, call: Call, what: Decision) -> Ended:
    return traced(stage.command, stage.place.root, lambda now: what if now.number == call.number else None)


def judged(stage: Stage, kind: str, moment: str, ended: Ended, codes: tuple[int, ...]) -> Trial:
    """Look, run again, compare."""
    scenario = stage.scenario
    problems = []
    if ended.code not in (scenario.code, *codes):
        problems.append(f"ended with {ended.code}: {ended.said[-2000:]}")
    if "Traceback" in ended.said:
        problems.append(f"a traceback: {ended.said[-2000:]}")
    found = stage.place.files()
    problems += seen_wrong(stage, found)
    again = None
    done = ended.code == scenario.code == 0 and not (scenario.tidies and "old versions stay" in ended.said)
    if done and found != stage.after:
        problems.append(f"ended with {ended.code}, but {_difference(found, stage.after)}")
    if not (scenario.repeats and current(found) == current(stage.after)):
        second = stage.run()
        again = second.code
        if again not in (scenario.code, *scenario.again):
            problems.append(f"run again, it ended with {again}: {second.said[-2000:]}")
        found = stage.place.files()
    if found != stage.after:
        problems.append(f"run again, {_difference(found, stage.after)}")
    left = stage.litter()
    if left:
        problems.append(f"left {left}")
    return Trial(kind, scenario.name, moment, ended.code, again, tuple(problems))


def current(files: dict[str, bytes]) -> bytes | None:
    """Which version is current."""
    return files.get("store/ads/CURRENT")


def seen_wrong(stage: Stage, found: dict[str, bytes]) -> list[str]:
    """What a reader finds that was neither so before nor will be so after."""
    wrong = []
    for path in sorted(found.keys() | stage.before.keys() | stage.after.keys()):
        allowed = (stage.before.get(path), stage.after.get(path))
        if found.get(path) in allowed or path.endswith(".jsonl"):
            continue
        wrong.append(f"a reader finds {path} {'missing' if path not in found else 'neither old nor new'}")
    for folder in stage.scenario.whole:
        names = _inside(found, folder)
        if names not in (_inside(stage.before, folder), _inside(stage.after, folder)):
            wrong.append(f"a reader finds a part of {folder}: {sorted(names)}")
    return wrong


def _inside(files: dict[str, bytes], folder: str) -> set[str]:
    return {path for path in files if path.startswith(f"{folder}/")}


def _difference(found: dict[str, Any], expected: dict[str, Any]) -> str:
    differ = [path for path in sorted(found.keys() | expected) if found.get(path) != expected.get(path)]
    said = []
    for path in differ[:5]:
        if path not in found:
            said.append(f"{path} is missing")
        elif path not in expected:
            said.append(f"{path} is too much")
        else:
            mine, other = found[path], expected[path]
            at = next((i for i, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), 0)
            said.append(
                f"{path} is {mine[max(0, at - 80) : at + 80]!r} instead of {other[max(0, at - 80) : at + 80]!r}"
            )
    return "; ".join(said)
