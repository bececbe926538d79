"""Several commands on one store at the same time, pruning among them: the table stays whole."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from chaos.scenarios import SEGMENTS, WINDOW, empty_place, job, tables, write_days
from chaos.tracing import started
from chaos.trials import Trial

_ALLOWED = {0, 3, 4, 75, 99}
_AT_ONCE = 6

COMMANDS = {
    "fit": job("fit", "calibrator.method=histogram"),
    "fit, window": job("fit", *WINDOW, "calibrator.method=abb"),
    "fit, window with segments": job("fit", *WINDOW, *SEGMENTS),
    "score": job("score"),
    "evaluate": job("evaluate", "evaluate.allow_in_sample=true"),
    "monitor": job("monitor", "window.column=date"),
    "follow": (*job("follow", "output.path=followed", log="arriving"), "--once"),
    "tables prune": tables("prune", "--keep", "1"),
    "tables rollback": tables("rollback"),
    "tables list": tables("list"),
    "tables page": ("tables", "page", "--store", "store", "--output", "page.html"),
}


def together(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """So many times six of the commands, each begun a moment after the last."""
    from logcal.reading import read_table
    from pipeline.table.published import PublishedTable

    random = np.random.default_rng(seed)
    for number in range(count):
        place = empty_place(folder / "together")
        write_days(place.root / "log", range(1, 4))
        write_days(place.root / "arriving", range(4, 6))
        for method in ("isotonic", "platt"):
            place.do(*job("fit", f"calibrator.method={method}"))
        running = {}
        for name in random.permutation(list(COMMANDS))[:_AT_ONCE].tolist():
            running[name] = started(place.command(*COMMANDS[name]))
            time.sleep(random.random() / 10)
        problems = {}
        codes = {}
        for name, process in running.items():
            ended = process.wait()
            codes[name] = ended.code
            if ended.code not in _ALLOWED or "Traceback" in ended.said:
                problems[name] = (f"ended with {ended.code}: {ended.said[-1500:]}",)
        table = PublishedTable(str(place.root / "store"), "ads")
        current = table.current()
        assert current is not None
        table.verify(current)
        read_table(current.lookup_path)
        left = place.litter()
        for name, code in codes.items():
            found = problems.get(name, ()) + ((f"left {left}",) if left else ())
            yield Trial(f"{_AT_ONCE} at once", f"{name}, beside others", f"round {number}", code, None, found)
