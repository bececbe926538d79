"""Weeks of an ordinary log with bad days in it: what goes live, when the cure of a drift does, and what is refused.

    python benchmarks/operation.py judged --rows 20000 --repeats 40     # days compared with one another, no commands
    python benchmarks/operation.py live --rows 20000                    # `logcal fit` every day, as shipped

The days are those of tests/simulated_days.py: about 11 % positives, scores that are no probabilities, rows that vary by
5 %. `judged` counts days that are set aside wrongly, by the size of day effects, bad days that are caught, and when a
lasting drift of 0.7 log-odds comes in. `live` runs the command day by day on hive folders with a window of 7 days and
otherwise default settings, and reads the published manifests.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _measure import logcal, print_machine

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from simulated_days import KINDS, simulated_day

from pipeline.sort.day_profiles import Profile
from pipeline.sort.suspect_days import DayFacts, suspect_days

WINDOW, BAD, DRIFT = 7, 9, 0.7
FIRST = dt.date(2026, 3, 2)


def facts(number, kind=None, **more):
    """A day as it is compared."""
    score, label, known = simulated_day(number, kind, **more)
    profile = Profile.of(score[known], np.ones(int(known.sum())), label[known].astype(float))
    return DayFacts(number, score.size, int((~known).sum()), 0, profile)


def aside(days, last):
    """Days of the window that ends with one, that are set aside."""
    return [finding.day for finding in suspect_days(days[max(0, last - WINDOW + 1) : last + 1])]


def judged(rows: int, repeats: int) -> None:
    """Days compared with one another."""
    for day_sd, week_sd in ((0.0, 0.0), (0.1, 0.2), (0.3, 0.2)):
        wrong = count = 0
        for seed in range(repeats):
            days = [facts(n, rows=rows, day_sd=day_sd, week_sd=week_sd, seed=seed) for n in range(24)]
            for last in range(4, 24):
                wrong += last in aside(days, last)
                count += 1
        print(f"day effects {day_sd}, weekdays {week_sd}: {wrong} of {count} new days set aside wrongly")
    for day_sd, week_sd in ((0.0, 0.0), (0.1, 0.2)):
        print(f"day effects {day_sd}, weekdays {week_sd}, of {repeats}:")
        for kind in KINDS:
            caught = next_day = 0
            for seed in range(repeats):
                more = {"rows": rows, "day_sd": day_sd, "week_sd": week_sd, "seed": seed}
                days = [facts(n, kind if n == BAD else None, **more) for n in range(BAD + 2)]
                caught += BAD in aside(days, BAD)
                next_day += aside(days, BAD + 1) == [BAD]
            print(f"  {kind:18s} caught {caught:3d}, the next day used without it {next_day:3d}")
        late = []
        for seed in range(repeats):
            more = {"rows": rows, "day_sd": day_sd, "week_sd": week_sd, "seed": seed}
            days = [facts(n, drift=DRIFT * (n >= 10), **more) for n in range(16)]
            late.append(next(last for last in range(10, 16) if not {10, last} & set(aside(days, last))))
        print(
            f"  drift of {DRIFT} from day 10 is used on day {sorted(late)[len(late) // 2]} (median), {max(late)} (last)"
        )


def write_day(log: Path, number: int, kind: str | None, rows: int, drift: float = 0.0) -> None:
    """A day's file."""
    score, label, known = simulated_day(number, kind, rows=rows, day_sd=0.0, drift=drift)
    folder = log / f"date={FIRST + dt.timedelta(number)}"
    folder.mkdir(parents=True)
    pq.write_table(
        pa.table({"score": score, "label": pa.array(label.astype(np.int8), mask=~known)}),
        folder / "a.parquet",
    )


def fit(log: Path, store: Path) -> tuple[int, dict]:
    """Run the day's fit; its exit code, and the manifest of the version that is live."""
    command = logcal(
        "fit",
        f"log.path={log}",
        f"store.path={store}",
        "store.table=t",
        "window.column=date",
        f"window.last={WINDOW}d",
    )
    code = subprocess.run(command, check=False, capture_output=True, text=True).returncode
    current = (store / "t" / "CURRENT").read_text().strip()
    return code, json.loads((store / "t" / "versions" / current / "manifest.json").read_text())


def fitted_days(manifest: dict) -> set[str]:
    """Days that the live version was fitted to."""
    window = manifest["window"]
    out = {day["day"] for day in [*window.get("days_set_aside", ()), *window.get("days_excluded", ())]}
    return {day["day"] for day in window["days"]} - out


def live(rows: int) -> None:
    """Fits day by day."""
    kept_out = healthy = 0
    bad_day = str(FIRST + dt.timedelta(BAD))
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as place:
            log, store = Path(place, "log"), Path(place, "store")
            for number in range(BAD - 1):
                write_day(log, number, None, rows)
            fit(log, store)
            write_day(log, BAD - 1, None, rows)
            fit(log, store)
            write_day(log, BAD, kind, rows)
            code, manifest = fit(log, store)
            out = bad_day not in fitted_days(manifest)
            write_day(log, BAD + 1, None, rows)
            after, manifest = fit(log, store)
            used = fitted_days(manifest)
            sound = str(FIRST + dt.timedelta(BAD + 1)) in used and bad_day not in used
            kept_out += out
            healthy += sound
            print(
                f"{kind:18s} exit {code:2d} kept out {out!s:5s} next day exit {after} live without it {sound}"
            )
    print(
        f"kept out of the live table: {kept_out} of {len(KINDS)}; the next healthy day goes live: {healthy}"
    )
    with tempfile.TemporaryDirectory() as place:
        log, store = Path(place, "log"), Path(place, "store")
        for number in range(9):
            write_day(log, number, None, rows)
        for number in range(9, 16):
            write_day(log, number, None, rows, drift=DRIFT * (number >= 10))
            code, manifest = fit(log, store)
            used = sorted(fitted_days(manifest))
            print(f"drift of {DRIFT} from day 10: day {number} exit {code} live until {used[-1]}")
            if number > 10 and used[-1] == str(FIRST + dt.timedelta(number)):
                break


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["judged", "live"])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=40)
    options = parser.parse_args()
    print_machine()
    if options.what == "judged":
        judged(options.rows, options.repeats)
    else:
        live(options.rows)


if __name__ == "__main__":
    main()
