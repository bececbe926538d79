"""Bad input through the real command: the code, what the message says, and that nothing was left behind."""

import os
import shlex
import shutil
import subprocess
import sys
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chaos.mutated_parquet import with_row_groups

from pipeline.log import thrift


def refused(place, job, code, *phrases, settings=(), **paths):
    """A job fails with a code and a message, and everything is as it was; returns the message."""
    before = place.tree()
    result = place.job(job, *settings, **paths).expect(code, *phrases)
    assert result.stdout == ""
    assert place.tree() == before
    return result.stderr


# Files that are being written


@pytest.mark.parametrize("content", [b"", b"PAR1", None])
def test_a_file_without_a_footer_is_being_written_until_it_is_old(place, content):
    """None: an ordinary file without its last bytes."""
    place.write_log()
    place.job("fit").expect(0)
    path = place.log / "part-1.parquet"
    path.write_bytes(path.read_bytes()[:-100] if content is None else content)
    settled = path.stat().st_mtime - 400
    for job in ("fit", "score", "evaluate", "compare"):
        os.utime(path)
        refused(
            place,
            job,
            75,
            str(path),
            "(log.give_up), it may still be being written",
            settings=("log.give_up=5m",),
        )
        os.utime(path, (settled, settled))
        refused(place, job, 3, f"{path}: expected a Parquet file", settings=("log.give_up=5m",))
    # The clocks of machines differ; a file far in the future is not being written.
    os.utime(path, (settled + 86_400, settled + 86_400))
    refused(place, "fit", 3, "expected a Parquet file", settings=("log.give_up=5m",))


def test_a_footer_that_contradicts_itself_is_not_being_written(place):
    path = (
        place.write_log({"score": np.arange(100) / 100, "label": np.arange(100) % 2}, files=1)
        / "part-0.parquet"
    )

    def one_row_less(groups):
        groups[0][3] = (thrift.I64, thrift.integer(99))

    path.write_bytes(with_row_groups(path.read_bytes(), one_row_less))
    refused(place, "fit", 3, "add up to the 100 rows of the file, found 99", settings=("log.give_up=5m",))


def test_names_of_temporary_files_are_skipped_and_named(place):
    folder = place.write_log()
    for name in ("part-1.parquet._COPYING_", "part-2.parquet.tmp", "copy.tmp/part-3.parquet"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(folder / "part-0.parquet", folder / name)
    place.job("fit", "log.give_up=5m").expect(0)
    log = place.manifest()["log"]
    assert (len(log["files"]), log["files_skipped_names"]) == (
        3,
        ["copy.tmp/", "part-1.parquet._COPYING_", "part-2.parquet.tmp"],
    )
    followed = place.job("follow", "--once", "--json", output__path=place.output).expect(0).json
    assert (followed["files"], followed["rows"]) == (3, 3000)


# A log that cannot be used


def with_rows(**changes):
    """Writes an ordinary log with other values in some rows: column to (rows, values)."""

    def write(place):
        columns = place.predictions()
        for name, (rows, value) in changes.items():
            columns[name][rows] = value
        place.write_log(columns)

    return write


def with_column(name, *values):
    """Writes an ordinary log with a column of these values in turn."""
    return lambda place: place.write_log({**place.predictions(), name: [values[i % 2] for i in range(3000)]})


def with_file(number, change):
    """Writes an ordinary log, and one of its files anew."""

    def write(place):
        path = place.write_log() / f"part-{number}.parquet"
        pq.write_table(change(pq.read_table(path)), path)

    return write


def truncated(place):
    broken = place.write_log() / "part-1.parquet"
    broken.write_bytes(broken.read_bytes()[:-100])


def damaged_inside(place):
    broken = place.write_log() / "part-1.parquet"
    data = broken.read_bytes()
    broken.write_bytes(data[:4] + bytes(1996) + data[2000:])


def of_csv_files(place):
    place.log.mkdir()
    for name in ("a.csv", "b.csv"):
        (place.log / name).write_text("score,label\n0.5,1\n")


def with_three_problems(place):
    place.write_log({"prediction": [0.1, 0.9], "label": ["y", "n"]}, files=2)
    (place.log / "part-9.parquet").write_bytes(b"")


EVERY = slice(None)
as_text = with_file(2, lambda log: log.set_column(0, "score", log["score"].cast(pa.string())))
LOGS = {
    "none": (lambda place: None, ["log: no such file or directory"]),
    "a truncated file": (truncated, ["part-1.parquet: expected a Parquet file", "write it again"]),
    "a damaged file": (damaged_inside, ["part-1.parquet: ", "write it again"]),
    "csv files": (
        of_csv_files,
        [
            "expected files ending in .parquet",
            "2 other files (a.csv, b.csv): convert it: duckdb -c ",
            "/log/*.csv')",
        ],
    ),
    "labels of text": (with_column("label", "yes", "no"), ["(log.label): expected booleans", "string"]),
    "scores of text": (with_column("score", "0.5", "0.7"), ["(log.score): expected numbers", "string"]),
    "scores of booleans": (with_column("score", True, False), ["(log.score): expected numbers", "bool"]),
    "one class": (with_rows(label=(EVERY, 0)), ["labels of both classes", "that all have label 0"]),
    "one score": (with_rows(score=(EVERY, 0.25)), ["different scores", "that all have score 0.25"]),
    "scores that are NaN": (
        with_rows(score=([5, 1700], np.nan)),
        ["score_nan: 2 rows", "part-0.parquet row 5", "part-1.parquet row 700"],
    ),
    "a file without the label": (
        with_file(2, lambda log: log.drop_columns("label")),
        ["column 'label' (log.label) is not in 1 of 3 files (part-2.parquet)", "write these files again"],
    ),
    "files of different types": (as_text, ["expected numbers", "found string in 1 file (part-2.parquet)"]),
    "labels 1 and 2": (
        with_column("label", 1, 2),
        ["labels must be 0 or 1", "1,500 of 3,000 rows have others", "label_not_0_or_1", "label=2 at"],
    ),
    "labels that are probabilities": (
        with_column("label", 0.3, 0.8),
        [
            "3,000 of 3,000 rows have others",
            "to labels that are probabilities fit calibrators in Python",
            "docs/faq.md",
        ],
    ),
    "three problems": (with_three_problems, ["found an empty one", "column 'score'", "column 'label'"]),
}


def test_a_young_file_of_another_format_is_not_being_written(place):
    path = place.root / "rows.csv"
    path.write_text("score,label\n0.5,1\n")
    said = (
        place.job("fit", "log.give_up=5m", log__path=path)
        .expect(3, "found CSV: convert it: duckdb -c")
        .stderr
    )
    assert "being written" not in said


@pytest.mark.parametrize("kind", LOGS)
def test_a_log_that_cannot_be_used(place, kind):
    write, phrases = LOGS[kind]
    write(place)
    said = refused(place, "fit", 3, *phrases)
    assert "part-0.parquet: " not in said
    if kind == "labels 1 and 2":
        assert "quarantine" not in said
        assert said.count("label=2 at") <= 5


QUARANTINE = ("log.on_bad_rows=quarantine",)


def test_more_bad_rows_than_quarantine_allows(place):
    with_rows(score=(slice(40), np.inf))(place)
    said = ("40 of 3,000 rows", "log.max_bad_fraction = 0.01")
    refused(place, "fit", 3, *said, settings=QUARANTINE, log__quarantine_path=place.root / "bad")


def test_no_files_match_and_no_such_parameter(place):
    place.write_log()
    refused(place, "fit", 3, "day=*.parquet: no files match", log__path=place.log / "day=*.parquet")
    settings = ("calibrator.params={strictt: true}",)
    refused(place, "fit", 2, "calibrator.params.strictt", "did you mean 'strict'?", settings=settings)


# Places that cannot be used


@pytest.mark.parametrize(
    ("job", "key", "path"),
    [
        ("score", "output.path", "log/scored"),
        ("evaluate", "report.path", "."),
        ("fit", "store.path", "log/store"),
        ("fit", "log.quarantine_path", "log/bad"),
    ],
)
def test_a_place_that_is_not_apart_from_the_log(fitted, job, key, path):
    settings = QUARANTINE if "quarantine" in key else ()
    paths = {key.replace(".", "__"): fitted.root / path}
    refused(fitted, job, 2, f"{key}: expected a folder apart from the log", settings=settings, **paths)


def test_an_output_that_holds_something_else(fitted):
    fitted.output.mkdir()
    (fitted.output / "notes.txt").write_text("mine")
    for job in ("score", "evaluate"):
        refused(fitted, job, 2, "expected a folder that is new or empty", "notes.txt")


@pytest.mark.parametrize("name", ["scratch", "store.path", "output.path", "log.quarantine_path"])
def test_a_place_below_a_file(fitted, name):
    (fitted.root / "file").write_text("not a folder")
    fitted.write_log(fitted.predictions(seed=1), name="other")
    paths = {name.replace(".", "__"): fitted.root / "file" / "deep"}
    said = (f"{name}: expected a folder that can be written to", "file")
    if name == "output.path":
        refused(fitted, "score", 2, *said, **paths)
    else:
        settings = QUARANTINE if "quarantine" in name else ()
        refused(fitted, "fit", 2, *said, settings=settings, log__path=fitted.root / "other", **paths)


# Full disks

SMALL_FILES = ("bash", "-c", 'ulimit -f 1024; exec "$@"', "bash")
"""No file may grow beyond 1 MiB: as on a full disk, a write fails in the middle of the work."""


@pytest.mark.system
@pytest.mark.parametrize("kind", ["inline", "local"])
def test_scratch_that_fills_up(place, kind):
    place.write_log(place.predictions(400_000))
    settings = (f"cluster.kind={kind}", "cluster.workers=1")
    said = (f"scratch: {place.scratch}: no space left", "nothing was published")
    refused(place, "fit", 75, *said, settings=settings, within=SMALL_FILES)


def test_an_output_that_fills_up(place):
    place.write_log(place.predictions(200_000), files=1)
    place.job("fit").expect(0)
    refused(place, "score", 75, f"output.path: {place.output}: no space left", within=SMALL_FILES)


# The store


def test_current_names_a_missing_version(fitted):
    shutil.rmtree(fitted.store / "ads" / "versions" / fitted.current)
    for job in ("fit", "score", "evaluate"):
        refused(fitted, job, 3, "CURRENT names version", "logcal tables rollback")
    store = ("--store", str(fitted.store), "--table", "ads")
    listed = fitted.run("tables", "list", *store).expect(0)
    assert "CURRENT names no version that is there: use `logcal tables rollback`" in listed.stdout


def test_a_damaged_version(fitted):
    path = fitted.store / "ads" / "versions" / fitted.current / "lookup.parquet"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    for job in ("score", "evaluate"):
        refused(fitted, job, 3, "the version is damaged", "sha256")


def test_a_segment_of_megabytes_is_refused(place, call):
    names = pa.array(["a" * 65_536, "b" * 65_537, "c" * 1_000_000])
    for count, code in ((1, 0), (2, 3), (3, 3)):
        codes = pa.array(np.arange(3000) % count, pa.int32())
        shutil.rmtree(place.log, ignore_errors=True)
        columns = {**place.predictions(), "s": pa.DictionaryArray.from_arrays(codes, names[:count])}
        place.write_log(columns, files=1)
        said = ("expected text of at most 65,536 bytes", "names groups of rows") if code else ()
        call("fit", "log.segment=s").expect(code, *said)


# Logs with odd names and odd columns, through the real command


def segmented(place, values, name="log"):
    columns = place.predictions(1000)
    columns["model"] = values
    return place.write_log(columns, name=name)


IDS = np.arange(1000) % 2


@pytest.mark.parametrize(
    ("fitted", "given", "phrase"),
    [
        (IDS, IDS.astype(str), "expected whole numbers as the table's segments have (int64), found text"),
        (IDS.astype(str), IDS, "expected text as the table's segments have (string), found whole"),
        (IDS, IDS.astype(bool), "found booleans (bool)"),
    ],
)
def test_segments_of_another_kind_are_refused(place, call, fitted, given, phrase):
    segmented(place, fitted)
    call("fit", "log.segment=model").expect(0)
    segmented(place, given, "other")
    for job in ("score", "evaluate"):
        call(job, log__path=place.root / "other").expect(3, "column 'model': ", phrase)
    arriving = {"log__path": place.root / "other", "output__path": place.root / "scored"}
    call("follow", "--once", "log.give_up=0s", **arriving).expect(3, "column 'model'")


@pytest.mark.parametrize(
    ("fitted", "given"),
    [(IDS, IDS.astype(np.int16)), (pa.nulls(1000), pa.nulls(1000))],
    ids=["width", "nulls"],
)
def test_segments_of_the_same_kind_are_known(place, call, fitted, given):
    segmented(place, fitted)
    call("fit", "log.segment=model").expect(0)
    segmented(place, given, "other")
    assert call("score", "--json", log__path=place.root / "other").expect(0).json["unseen_rows"] == 0


@pytest.mark.parametrize(
    "name", ["é" * 116 + ".parquet", "x" * 240 + ".parquet", os.fsdecode(b"caf\xe9.parquet")]
)
def test_names_that_are_long_or_no_text(place, call, name):
    columns = place.predictions()
    columns["score"][3] = np.nan
    place.write_log(columns, files=1)
    (place.log / "part-0.parquet").rename(place.log / name)
    bad = ("log.on_bad_rows=quarantine", f"log.quarantine_path={place.root / 'bad'}")
    call("fit", *bad).expect(0)
    [kept] = (place.root / "bad").rglob("part-*.parquet")
    assert pq.read_table(kept).num_rows == 1
    call("score").expect(0)
    assert pq.read_metadata(place.output / name).num_rows == 3000 if name.isascii() else True
    call("evaluate", "--json", *bad[:1], output__path=place.root / "report").expect(0)


@pytest.mark.parametrize("command", ["fit", "score", "evaluate"])
def test_a_column_whose_name_is_no_text_is_the_files_fault(fitted, place, call, command):
    pq.write_table(pa.table({**place.predictions(10), "quaint": np.zeros(10)}), place.log / "part-0.parquet")
    path = place.log / "part-0.parquet"
    path.write_bytes(path.read_bytes().replace(b"quaint", b"qu\xe1int"))
    call(command, "evaluate.allow_in_sample=true" if command == "evaluate" else "cluster.kind=inline").expect(
        3, "part-0.parquet", "write it again"
    )


# Files of other formats


@pytest.mark.parametrize("kind", ["csv", "json", "pickle", "gibberish"])
@pytest.mark.parametrize("name", ["data.parquet", "its own"])
def test_the_command_that_converts_another_format_does(place, kind, name):
    """A message has the command; what it writes is fitted."""
    frame = pd.DataFrame(place.predictions())
    path = place.root / (f"log.{kind}" if name == "its own" else name)
    if kind == "gibberish":
        path.write_bytes(bytes(range(256)) * 10)
        place.job("fit", log__path=path).expect(3, "found one that cannot be read", "write it again")
        return
    write = {"csv": partial(frame.to_csv, index=False), "json": partial(frame.to_json, orient="records")}
    write.get(kind, frame.to_pickle)(path)
    said = place.job("fit", log__path=path).expect(3, "expected a Parquet file, found ", "convert it").stderr
    if kind == "pickle":
        command = said.partition("python -c ")[2].strip()
        subprocess.run(f"{sys.executable} -c {command}", shell=True, check=True)
    else:
        duckdb = pytest.importorskip("duckdb")
        [command] = shlex.split(said.partition("duckdb -c ")[2])
        duckdb.execute(command)
    place.job("fit", log__path=f"{path}.parquet").expect(0)


def test_margins_need_the_transform_that_the_message_names(place):
    place.write_log({"score": [-3.0, -1.0, 0.5, 2.0] * 500, "label": [0, 1, 0, 1] * 500})
    said = "put margins through the sigmoid first (log.score_transform=sigmoid)"
    place.job("fit", "calibrator.method=beta").expect(3, said)
    place.job("fit", "calibrator.method=beta", "log.score_transform=sigmoid").expect(0)
