"""A stream followed for long, with everything going wrong: `make soak`.

    python tests/soak.py --seconds 3600
    python tests/soak.py --seconds 600 --places s3

Files arrive all the time: whole, late, with clocks that are wrong, damaged, half-written and then whole, changed,
deleted. The follower is killed at random moments and started again; its table changes about once a minute and is
refitted from what arrived. On the S3 server some requests fail. A reader opens what it finds all the while. In the end
all must be as the batch jobs would have made it, byte for byte:

- every readable file has its scored file, with the bytes that `score` writes with the version that the file names;
- nothing else is there, and damaged files are known as refused;
- a fit from the stream's day tables is the fit of a store that has none;
- the reader never saw half a file, the follower never ended with another code than it should.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.files.locks import LEASE

sys.path.insert(0, str(Path(__file__).parent))

LOGCAL = str(Path(sys.executable).with_name("logcal"))
EXPECTED = {0, 3, 75, 99}
"""Of a follower that was not killed: done, files refused, storage does not answer, nothing new."""

S3_FAULTS = ("500", "503", "reset", "cut")


@dataclass
class Soak:
    """A stream, and what happens to it.

    Attributes
    ----------
    url : of the folder of everything. filesystem : of it, without faults
    environment : of the commands
    """

    url: str
    filesystem: Any
    environment: dict[str, str]
    seed: int
    windowed: bool
    counts: Counter[str] = field(default_factory=Counter)
    trouble: list[str] = field(default_factory=list)
    poison: set[str] = field(default_factory=set)
    stop: threading.Event = field(default_factory=threading.Event)
    arrived: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.rng = np.random.default_rng(self.seed)
        self.made = 0

    # The commands

    def command(self, job: str, *settings: str) -> list[str]:
        """A job on this stream."""
        own = ["log.path=" + self.url + "/log", "store.path=" + self.url + "/store", "store.table=t"]
        pairs = [*own, *(text for text in settings if not text.startswith("--"))]
        flags = [text for text in settings if text.startswith("--")]
        return [LOGCAL, job, *(part for text in pairs for part in ("--set", text)), *flags]

    def run(
        self, job: str, *settings: str, expected: Collection[int] = (0,)
    ) -> subprocess.CompletedProcess[str]:
        """Run a job to its end, without faults in its way."""
        done = subprocess.run(
            self.command(job, *settings),
            env={**self.environment, **self._direct()},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        if done.returncode not in expected:
            self.trouble.append(f"{job} ended with {done.returncode}: {done.stderr[-800:]}")
        return done

    def _direct(self) -> dict[str, str]:
        direct = self.environment.get("SOAK_DIRECT")
        return {} if direct is None else {"AWS_ENDPOINT_URL": direct}

    @property
    def following(self) -> list[str]:
        """The stream's own settings."""
        window = ["window.column=day", "window.last=3d"] if self.windowed else []
        return [
            f"output.path={self.url}/scored",
            "output.version_column=version",
            "follow.poll=100ms",
            "follow.give_up=2s",
            "follow.relist=2s",
            "follow.deleted=remove",
            "follow.lifetime=20s",
            "follow.max_files=50",
            "refit.every=15s",
            "gate.min_rows=1",
            "gate.min_positives=1",
            "gate.max_rows_drop=1",
            "gate.ranking=false",
            "gate.holdout=none",
            "retention.versions=1000",
            *window,
        ]

    # What happens

    def arrive(self) -> None:
        """Something lands."""
        kind = self.random.choices(
            ("whole", "late", "poison", "half", "changed", "deleted"), (70, 10, 4, 4, 8, 4)
        )[0]
        days_ago = 2 if kind == "late" else 0
        day = dt.datetime.now(dt.UTC).date() - dt.timedelta(days_ago)
        known = self._names()
        name = f"date={day}/{self.made:06d}.parquet"
        if kind in ("changed", "deleted"):
            whole = sorted(set(known) - self.poison)
            if not whole:
                return
            name = self.random.choice(whole)
        self.made += 1
        if kind == "deleted":
            self.filesystem.rm_file(f"{self.url}/log/{name}")
        elif kind == "poison":
            self.poison.add(name)
            self._put(name, b"this is no Parquet file")
        else:
            content = self._content(name)
            if kind == "half":
                self._put(name, content[: len(content) // 2])
                time.sleep(0.3)
            self._put(name, content)
        if kind in ("whole", "late") and self.random.random() < 0.2 and "://" not in self.url:
            # A clock that is wrong, by years.
            at = self.random.choice((86_400, 4_000_000_000))
            os.utime(f"{self.url}/log/{name}", (at, at))
        self.counts[kind] += 1

    def _content(self, name: str) -> bytes:
        rows = self.random.randint(1, 400)
        score = np.round(self.rng.random(rows), 3)
        day = dt.date.fromisoformat(name[5:15])
        label = (self.rng.random(rows) < score).astype(np.int8)
        columns = {"score": score, "label": label, "id": np.arange(rows), "day": [day] * rows}
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.table(columns), buffer)
        content: bytes = buffer.getvalue().to_pybytes()
        return content

    def _put(self, name: str, content: bytes) -> None:
        path = f"{self.url}/log/{name}"
        if "://" in self.url:
            self.filesystem.pipe_file(path, content)
            return
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        hidden = target.with_name(f"_{target.name}")
        hidden.write_bytes(content)
        hidden.rename(target)

    def _names(self, folder: str = "log") -> list[str]:
        self.filesystem.invalidate_cache()
        base = f"{self.url}/{folder}"
        root = self.filesystem._strip_protocol(base)
        found = self.filesystem.find(base) if self.filesystem.exists(base) else []
        names = [path[len(root) + 1 :] for path in found]
        return [name for name in names if not any(part[0] in "_." for part in name.split("/"))]

    def arrivals(self, pause: float) -> None:
        """Let things land until it is over."""
        while not self.stop.wait(self.random.random() * 2 * pause):
            self.arrive()

    def read(self) -> None:
        """Open what is there, as a reader of the output would."""
        while not self.stop.wait(0.2):
            for name in self.random.sample(found := self._names("scored"), min(20, len(found))):
                try:
                    content = self.filesystem.cat_file(f"{self.url}/scored/{name}")
                except FileNotFoundError:
                    continue
                try:
                    pq.read_table(pa.BufferReader(content))
                except (pa.ArrowException, OSError) as error:
                    self.trouble.append(f"a reader found {name} half-written: {error}")
                self.counts["read"] += 1

    def change_table(self, pause: float) -> None:
        """Make another version current, about once a minute."""
        methods = ("isotonic", "histogram", "platt", "sbb")
        while not self.stop.wait(pause):
            method = self.random.choice(methods)
            table = (
                "store.table=t",
                "gate.min_rows=1",
                "gate.max_rows_drop=1",
                "gate.ranking=false",
                "gate.holdout=none",
            )
            done = self.run(
                "fit",
                *table,
                f"calibrator.method={method}",
                "log.path=" + self.url + "/first",
                expected=(0, 4, 75, 99),
            )
            self.counts[f"table changed ({done.returncode})"] += 1

    def follow(self, seconds: float) -> None:
        """Follow, be killed, and follow again."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            process = subprocess.Popen(
                self.command("follow", *self.following),
                env=self.environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            kind = self.random.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, None))
            try:
                _, stderr = process.communicate(timeout=None if kind is None else self.random.uniform(1, 10))
            except subprocess.TimeoutExpired:
                process.send_signal(kind)
                _, stderr = process.communicate(timeout=60)
            code = process.returncode
            self.counts[f"follower ended with {code}"] += 1
            # By SIGTERM itself, 143 in a shell, where it came before the command had begun.
            if code not in EXPECTED | {-signal.SIGKILL, -signal.SIGTERM, 143}:
                self.trouble.append(f"a follower ended with {code}: {stderr[-1500:]}")

    # The end

    def settle(self) -> None:
        """Take all that is left; on an object store a follower that was killed holds its stream for a while."""
        end = time.monotonic() + LEASE.total_seconds() + 60
        while time.monotonic() < end:
            done = self.run("follow", *self.following, "--once", "refit.every=null", expected=(0, 3, 75, 99))
            if done.returncode == 99:
                return
            if done.returncode == 0:  # A busy machine takes long for what is left, and there may be more.
                end = time.monotonic() + LEASE.total_seconds() + 60
            time.sleep(1.0)
        self.trouble.append(f"runs with --once did not come to an end: {done.stderr[-800:]}")

    def compare(self) -> None:
        """Everything is as the batch jobs would have made it."""
        sources, scored = set(self._names()), set(self._names("scored"))
        missing, more = sources - self.poison - scored, scored - sources
        if missing or more:
            self.trouble.append(f"not scored: {sorted(missing)[:5]}; without a source: {sorted(more)[:5]}")
        versions: dict[str, list[str]] = {}
        for name in sorted(scored & sources):
            content = self.filesystem.cat_file(f"{self.url}/scored/{name}")
            version = pq.read_table(pa.BufferReader(content), columns=["version"])["version"][0].as_py()
            versions.setdefault(version, []).append(name)
        for version, names in versions.items():
            self._compare_with_score(version, names)
        self.counts["versions that files were scored with"] = len(versions)
        status = json.loads(self.run("follow", *self.following, "--status", "--json").stdout)
        refused = set(status["refused"])
        if refused != self.poison & sources or status["backlog"] or status["waiting"]:
            self.trouble.append(
                f"refused: {len(refused)} instead of {len(self.poison & sources)}; backlog {status['backlog']}, "
                f"waiting {status['waiting']}"
            )
        if not status["refit"] or status["refit"]["outcome"] == "rejected":
            self.trouble.append(f"the last refit: {status['refit']}")
        self._compare_fits()

    def _compare_with_score(self, version: str, names: list[str]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for name in names:
                target = Path(folder, "log", name)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(self.filesystem.cat_file(f"{self.url}/log/{name}"))
            done = self.run(
                "score",
                f"log.path={folder}/log",
                f"store.version={version}",
                f"output.path={folder}/out",
                "output.version_column=version",
            )
            if done.returncode != 0:
                return
            for name in names:
                self.counts["files compared"] += 1
                if Path(folder, "out", name).read_bytes() != self.filesystem.cat_file(
                    f"{self.url}/scored/{name}"
                ):
                    self.trouble.append(f"{name}: other bytes than score's with version {version}")

    def _compare_fits(self) -> None:
        """A window from the stream's day tables, and from the log alone."""
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder, "log")
            for name in set(self._names()) - self.poison:
                target = root / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(self.filesystem.cat_file(f"{self.url}/log/{name}"))
            rules = (
                "gate.min_rows=1",
                "gate.max_rows_drop=1",
                "gate.ranking=false",
                "gate.holdout=none",
                "store.force=true",
            )
            window = ("window.column=day", "window.last=3d") if self.windowed else ()
            for name in self.poison & set(self._names()):
                self.filesystem.rm_file(f"{self.url}/log/{name}")
            found = []
            for more in ((), (f"log.path={root}", f"store.path={folder}/store")):
                self.run("fit", *rules, *window, *more, "calibrator.method=isotonic", expected=(0, 99))
                store = f"{self.url}/store" if not more else f"{folder}/store"
                filesystem = self.filesystem if not more else fsspec.filesystem("file")
                current = filesystem.cat_file(f"{store}/t/CURRENT").decode().strip()
                manifest = json.loads(filesystem.cat_file(f"{store}/t/versions/{current}/manifest.json"))
                found.append(manifest["fingerprint"])
            self.counts["fits compared"] += 1
            if found[0] != found[1]:
                self.trouble.append("a fit from the stream's store is not the fit of the log")


def soak(place: Soak, seconds: float, pause: float) -> bool:
    """Let it all happen; whether everything is well."""
    begin = time.monotonic()
    for i in range(5):
        path = f"{place.url}/first/{i}.parquet"
        place.filesystem.makedirs(f"{place.url}/first", exist_ok=True)
        place.filesystem.pipe_file(path, place._content(f"date={dt.date(2026, 1, 1)}"))
    place.run(
        "fit",
        f"log.path={place.url}/first",
        "gate.min_rows=1",
        "gate.min_positives=1",
        "gate.ranking=false",
        "gate.holdout=none",
    )
    place.arrive()
    threads = [
        threading.Thread(target=place.arrivals, args=(pause,)),
        threading.Thread(target=place.read),
        threading.Thread(target=place.change_table, args=(min(60.0, seconds / 4),)),
    ]
    for thread in threads:
        thread.start()
    try:
        place.follow(seconds)
    finally:
        place.stop.set()
        for thread in threads:
            thread.join()
    place.settle()
    place.compare()
    print(
        f"\n{place.url.partition('://')[0] if '://' in place.url else 'folder'}: {time.monotonic() - begin:.0f} s"
    )
    for what, count in sorted(place.counts.items()):
        print(f"  {count:>7,}  {what}")
    for text in place.trouble[:20]:
        print(f"  TROUBLE  {text}")
    return not place.trouble


@contextmanager
def on_a_folder(seed: int) -> Iterator[Soak]:
    """A stream on a mounted file system."""
    with tempfile.TemporaryDirectory() as folder:
        yield Soak(folder, fsspec.filesystem("file"), dict(os.environ), seed, windowed=True)


@contextmanager
def on_s3(seed: int, share: float) -> Iterator[Soak]:
    """A stream on an S3 server that fails a share of the requests."""
    from s3 import BUCKET, environment, s3_server

    chance = random.Random(seed)
    with s3_server() as proxy:
        proxy.fault = lambda method, path: chance.choice(S3_FAULTS) if chance.random() < share else None
        direct = f"http://127.0.0.1:{proxy.behind}"
        own = {**os.environ, **environment(proxy.url), "AWS_MAX_ATTEMPTS": "3", "SOAK_DIRECT": direct}
        filesystem = fsspec.filesystem(
            "s3",
            endpoint_url=direct,
            key="someone",
            secret="very-secret-indeed",
            skip_instance_cache=True,
            use_listings_cache=False,
        )
        yield Soak(f"s3://{BUCKET}/soak", filesystem, own, seed, windowed=False)


def main() -> None:
    """Soak on a folder, and on S3."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3600.0, help="of arrivals, on all places together")
    parser.add_argument("--places", nargs="+", default=["folder", "s3"], choices=["folder", "s3"])
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between arrivals, on average")
    parser.add_argument("--faults", type=float, default=0.05, help="share of the S3 requests that fail")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    seconds = arguments.seconds / len(arguments.places)
    well = True
    for name in arguments.places:
        made = on_a_folder(arguments.seed) if name == "folder" else on_s3(arguments.seed, arguments.faults)
        with made as place:
            well = soak(place, seconds, arguments.pause) and well
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
