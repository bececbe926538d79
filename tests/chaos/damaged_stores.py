"""Files of a store and of a stream with one byte changed: a command refuses them, or does what it does without that."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import numpy as np

from chaos.scenarios import SCENARIOS, SEGMENTS, Place, Scenario, Stage, job, write_days, write_log
from chaos.tracing import forked
from chaos.trials import NOT_SUITED, TEMPORARY, Trial

_REFUSED = (2, NOT_SUITED, TEMPORARY)


class Damage(NamedTuple):
    """A command, the files that are damaged before it, and those that say what it did."""

    scenario: Scenario
    damaged: tuple[str, ...]
    results: tuple[str, ...]


def _segmented(place: Place) -> None:
    write_log(place.root / "log")
    place.do(*job("fit", *SEGMENTS, "calibrator.method=isotonic"))


def _kept_days(place: Place) -> None:
    write_days(place.root / "log", range(1, 4))
    for more in ((), SEGMENTS):
        place.do(*job("fit", "window.column=date", "window.last=3d", *more))


def _stream(place: Place) -> None:
    SCENARIOS["follow"].prepare(place)
    place.do(*SCENARIOS["follow"].arguments)
    write_log(place.root / "arriving" / "more", 1, 200, 30)


def _gone_back(place: Place) -> None:
    write_log(place.root / "log")
    for method in ("platt", "histogram", "abb"):
        place.do(*job("fit", f"calibrator.method={method}"))
    place.do(*SCENARIOS["tables rollback"].arguments)
    place.do(*job("fit", "calibrator.method=isotonic"))


_VERSION = ("store/ads/CURRENT", "store/ads/versions/*")
_TABLES = ("store/ads/versions/*/lookup.parquet", "store/ads/versions/*/segments.parquet")
_NEW = ("window.column=date", "window.last=3d", "calibrator.method=platt")

_SPLIT = job("fit", *_NEW[:2], *SEGMENTS, "segments.min_rows=20")
_FOLLOW = SCENARIOS["follow"].arguments
_ROLLBACK = Scenario("rollback", _gone_back, SCENARIOS["tables rollback"].arguments, repeats=True)

DAMAGES = {
    one.scenario.name: one
    for one in (
        Damage(SCENARIOS["score"], _VERSION, ("scored/*",)),
        Damage(Scenario("score with segments", _segmented, job("score")), _VERSION, ("scored/*",)),
        Damage(Scenario("fit of kept days", _kept_days, job("fit", *_NEW)), ("store/ads/days/*",), _TABLES),
        Damage(
            Scenario("fit of kept days with segments", _kept_days, _SPLIT), ("store/ads/days/*",), _TABLES
        ),
        Damage(Scenario("follow", _stream, _FOLLOW), (".scored.logcal/*",), ("scored/*",)),
        Damage(_ROLLBACK, ("store/ads/journal.jsonl",), ("store/ads/CURRENT",)),
    )
}


def stores(count: int, seed: int, folder: Path, names: tuple[str, ...] = tuple(DAMAGES)) -> Iterator[Trial]:
    """So many bytes of each command's files, each changed once."""
    random = np.random.default_rng(seed)
    for name in names:
        damage = DAMAGES[name]
        stage = Stage(damage.scenario, folder)
        stage.warm()
        stage.reset()
        expected = _results(stage.after, damage.results)
        places = [
            (path, at)
            for path in sorted(stage.place.root.rglob("*"))
            if path.is_file() and _among(str(path.relative_to(stage.place.root)), damage.damaged)
            for at in range(path.stat().st_size)
        ]
        for i in sorted(random.permutation(len(places))[:count]):
            path, at = places[i]
            stage.reset()
            content = bytearray(path.read_bytes())
            content[at] ^= int(random.integers(1, 256))
            path.write_bytes(content)
            ended = forked(stage.command)
            problems = []
            if ended.code not in (damage.scenario.code, *_REFUSED) or "Traceback" in ended.said:
                problems.append(f"ended with {ended.code}: {ended.said[-1500:]}")
            elif ended.code == damage.scenario.code:
                found = _results(stage.place.files(), damage.results)
                wrong = [p for p in sorted(expected) if found.get(p) != expected[p]]
                problems += [f"other results: {wrong}"] * bool(wrong)
            moment = f"byte {at:,} of {path.relative_to(stage.place.root)}"
            what = f"{name}, its files damaged"
            yield Trial("a byte is changed", what, moment, ended.code, None, tuple(problems))


def _among(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(path, pattern) for pattern in patterns)


def _results(files: dict[str, bytes], patterns: tuple[str, ...]) -> dict[str, bytes]:
    return {path: content for path, content in files.items() if _among(path, patterns)}
