"""Bad input through the real command: the code, what the message says, and that nothing was left behind."""

import json
import shutil
import subprocess
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest


def refused(place, result, code, *phrases, before):
    """The command failed with a code and a message, and everything is as it was."""
    result.expect(code, *phrases)
    assert result.stdout == ""
    assert place.tree() == before


@pytest.fixture(scope="session")
def template(make_place, tmp_path_factory):
    """A place with a log and a published table, to be copied."""
    place = make_place(tmp_path_factory.mktemp("template"))
    place.write_log()
    place.job("fit").expect(0)
    return place


@pytest.fixture
def published(place, template):
    """A place with a log and a published table."""
    for name in ("log", "store"):
        shutil.copytree(template.root / name, place.root / name)
    return place


# A log that cannot be used


def test_no_such_path(place):
    before = place.tree()
    refused(place, place.job("fit"), 3, f"{place.log}: no such file or directory", before=before)


def test_no_files_match(place):
    place.write_log()
    before = place.tree()
    result = place.job("fit", log__path=place.log / "day=*.parquet")
    refused(place, result, 3, "day=*.parquet: no files match", before=before)


def test_a_truncated_file_among_good_ones_is_named(place):
    place.write_log()
    broken = place.log / "part-1.parquet"
    broken.write_bytes(broken.read_bytes()[:-100])
    before = place.tree()
    result = place.job("fit")
    refused(place, result, 3, f"{broken}: expected a Parquet file", "write it again", before=before)
    assert "part-0" not in result.stderr
    assert "part-2" not in result.stderr


def test_a_file_damaged_inside_is_named(place):
    place.write_log()
    broken = place.log / "part-1.parquet"
    data = bytearray(broken.read_bytes())
    data[4:2000] = bytes(1996)
    broken.write_bytes(data)
    before = place.tree()
    refused(place, place.job("fit"), 3, f"{broken}: ", "write it again", before=before)


def test_a_directory_of_csv_files(place):
    place.log.mkdir()
    for name in ("a.csv", "b.csv"):
        (place.log / name).write_text("score,label\n0.5,1\n")
    before = place.tree()
    result = place.job("fit")
    refused(
        place, result, 3, "expected files ending in .parquet", "2 other files (a.csv, b.csv)", before=before
    )


@pytest.mark.parametrize(
    ("column", "values", "phrases"),
    [
        (
            "label",
            ["yes", "no"],
            ("column 'label' (log.label): expected booleans, or numbers 0 and 1", "string"),
        ),
        ("score", ["0.5", "0.7"], ("column 'score' (log.score): expected numbers", "string", "convert")),
        ("score", [Decimal("0.50"), Decimal("0.75")], ("column 'score' (log.score)", "decimal128(2, 2)")),
    ],
)
def test_a_column_of_the_wrong_type(place, column, values, phrases):
    columns = place.predictions()
    columns[column] = [values[i % 2] for i in range(3000)]
    place.write_log(columns)
    before = place.tree()
    refused(place, place.job("fit"), 3, *phrases, before=before)


def test_labels_1_and_2(place):
    columns = place.predictions()
    columns["label"] = columns["label"] + 1
    place.write_log(columns)
    twos = int((columns["label"] == 2).sum())
    before = place.tree()
    result = place.job("fit")
    phrases = (
        "logcal calibrates binary outcomes: labels must be 0 or 1",
        f"{twos:,} of 3,000 rows have others",
        "label_not_0_or_1",
        "label=2 at",
        "row",
    )
    refused(place, result, 3, *phrases, before=before)
    assert "quarantine" not in result.stderr
    assert result.stderr.count("label=2 at") <= 5


def test_labels_of_one_class(place):
    columns = place.predictions()
    columns["label"][:] = 0
    place.write_log(columns)
    before = place.tree()
    refused(
        place,
        place.job("fit"),
        3,
        "labels of both classes",
        "3,000 rows that all have label 0",
        before=before,
    )


def test_one_score_only(place):
    columns = place.predictions()
    columns["score"][:] = 0.25
    place.write_log(columns)
    before = place.tree()
    refused(place, place.job("fit"), 3, "different scores", "that all have score 0.25", before=before)


def test_scores_with_nan(place):
    columns = place.predictions()
    columns["score"][[5, 1700]] = np.nan
    place.write_log(columns)
    before = place.tree()
    phrases = ("2 of 3,000 rows", "score_nan: 2 rows", "part-0.parquet row 5", "part-1.parquet row 700")
    refused(place, place.job("fit"), 3, *phrases, before=before)


def test_more_bad_rows_than_quarantine_allows(place):
    columns = place.predictions()
    columns["score"][:40] = np.inf
    place.write_log(columns)
    before = place.tree()
    result = place.job("fit", "log.on_bad_rows=quarantine", log__quarantine_path=place.root / "bad")
    refused(place, result, 3, "40 of 3,000 rows", "log.max_bad_fraction = 0.01", before=before)


def test_one_file_lacks_the_label(place):
    place.write_log()
    lacking = place.log / "part-2.parquet"
    pq.write_table(pq.read_table(lacking).drop_columns("label"), lacking)
    before = place.tree()
    phrases = ("column 'label' (log.label) is not in 1 of 3 files (part-2.parquet)", "set log.label")
    refused(place, place.job("fit"), 3, *phrases, before=before)


def test_files_of_different_types(place):
    place.write_log()
    other = place.log / "part-2.parquet"
    table = pq.read_table(other)
    pq.write_table(table.set_column(0, "score", table["score"].cast(pa.float32())), other)
    before = place.tree()
    refused(place, place.job("fit"), 3, "expected one type in all files", "float in 1 file", before=before)


def test_all_problems_of_a_log_are_said_at_once(place):
    place.write_log({"prediction": [0.1, 0.9], "clicked": ["y", "n"]}, files=2)
    (place.log / "part-9.parquet").write_bytes(b"")
    before = place.tree()
    phrases = (
        "part-9.parquet: expected a Parquet file, found an empty one",
        "column 'score'",
        "column 'clicked'",
    )
    refused(place, place.job("fit", "log.label=clicked"), 3, *phrases, before=before)


# A configuration that cannot be used


@pytest.mark.parametrize(
    ("setting", "phrases"),
    [
        ("log.lable=clicked", ("log.lable", "unknown key; did you mean log.label?")),
        ("log.label", ("--set log.label: expected KEY.PATH=VALUE", "found no '='")),
        ("calibrator.params={strictt: true}", ("calibrator.params.strictt", "did you mean 'strict'?")),
        ("cluster.memory=2", ("cluster.memory", "a size with its unit, such as 2GiB")),
    ],
)
def test_a_wrong_setting(place, setting, phrases):
    place.write_log()
    before = place.tree()
    refused(place, place.job("fit", setting), 2, *phrases, before=before)


# Places that cannot be used


def test_the_output_inside_the_log(published):
    before = published.tree()
    result = published.job("score", output__path=published.log / "scored")
    refused(
        published,
        result,
        2,
        "output.path: expected a folder apart from the log",
        "choose another",
        before=before,
    )


def test_the_log_inside_the_output(published):
    before = published.tree()
    result = published.job("evaluate", output__path=published.root)
    refused(published, result, 2, "report.path: expected a folder apart from the log", before=before)


def test_the_store_inside_the_log(place):
    place.write_log()
    before = place.tree()
    result = place.job("fit", store__path=place.log / "store")
    refused(place, result, 2, "store.path: expected a folder apart from the log", before=before)


def test_the_quarantine_inside_the_log(place):
    place.write_log()
    before = place.tree()
    result = place.job("fit", "log.on_bad_rows=quarantine", log__quarantine_path=place.log / "bad")
    refused(place, result, 2, "log.quarantine_path: expected a folder apart from the log", before=before)


def test_an_output_that_holds_something_else(published):
    published.output.mkdir()
    (published.output / "notes.txt").write_text("mine")
    before = published.tree()
    for job in ("score", "evaluate"):
        refused(
            published,
            published.job(job),
            2,
            "expected a folder that is new or empty",
            "notes.txt",
            before=before,
        )


@pytest.mark.parametrize("name", ["scratch", "store.path", "output.path", "log.quarantine_path"])
def test_a_place_below_a_file(published, name):
    (published.root / "file").write_text("not a folder")
    published.write_log(published.predictions(seed=1), name="other")
    before = published.tree()
    job = {"output.path": "score"}.get(name, "fit")
    settings = ["log.on_bad_rows=quarantine"] if "quarantine" in name else []
    paths = {"log__path": published.root / "other", name.replace(".", "__"): published.root / "file" / "deep"}
    if job == "score":
        del paths["log__path"]
    result = published.job(job, *settings, **paths)
    refused(published, result, 2, f"{name}: expected a folder that can be written to", "file", before=before)


def test_scratch_that_the_system_refuses(place):
    # No one, not even root, makes folders in /proc.
    place.write_log()
    before = place.tree()
    refused(
        place, place.job("fit", scratch="/proc/logcal"), 2, "scratch: ", "can be written to", before=before
    )


# Full disks

SMALL_FILES = ("bash", "-c", 'ulimit -f 1024; exec "$@"', "bash")
"""No file may grow beyond 1 MiB: as on a full disk, a write fails in the middle of the work."""

SMALL_DISK = ("unshare", "--user", "--map-root-user", "--mount", "bash", "-c")


@pytest.mark.system
@pytest.mark.parametrize("kind", ["inline", "local"])
def test_scratch_that_fills_up(place, kind):
    place.write_log(place.predictions(400_000))
    before = place.tree()
    result = place.job("fit", f"cluster.kind={kind}", "cluster.workers=1", within=SMALL_FILES)
    result.expect(75, f"scratch: no space left in {place.scratch}", "nothing was published")
    assert place.tree() == before


def test_an_output_that_fills_up(place):
    place.write_log(place.predictions(200_000), files=1)
    place.job("fit").expect(0)
    before = place.tree()
    result = place.job("score", within=SMALL_FILES)
    refused(place, result, 75, f"output.path: nothing was written to {place.output}", before=before)


@pytest.mark.system
def test_too_little_space(published):
    mount = f'mount -t tmpfs -o size=64k tmpfs {published.scratch} && exec "$@"'
    small_disk = (*SMALL_DISK, mount, "bash")
    if subprocess.run([*small_disk, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no permission to mount a small file system")
    published.write_log(published.predictions(20_000), name="more")
    before = published.tree()
    paths = {"log__path": published.root / "more"}
    result = published.job("fit", within=small_disk, **paths)
    phrases = ("scratch: expected about 207.0 kB of free space, found 65.5 kB", "a place with more")
    refused(published, result, 75, *phrases, before=before)
    paths["output__path"] = published.scratch / "output"
    result = published.job("score", within=small_disk, **paths)
    refused(published, result, 75, "output.path: expected about", "found 65.5 kB in", before=before)


# The store


def test_current_names_a_missing_version(published):
    shutil.rmtree(published.store / "ads" / "versions" / published.current)
    before = published.tree()
    for job in ("fit", "score", "evaluate"):
        refused(
            published, published.job(job), 3, "CURRENT names version", "logcal tables rollback", before=before
        )
    store = ("--store", str(published.store), "--table", "ads")
    refused(published, published.run("tables", "show", *store), 3, "CURRENT names version", before=before)
    refused(published, published.run("tables", "rollback", *store), 3, "nothing to go back to", before=before)
    listed = published.run("tables", "list", *store).expect(0)
    assert f"CURRENT names {published.current}, which is not there" in listed.stdout


def test_no_table_yet(place):
    place.write_log()
    before = place.tree()
    for job in ("score", "evaluate"):
        refused(place, place.job(job), 3, "expected a published table 'ads'", "logcal fit", before=before)


def test_a_version_that_is_not_there(published):
    before = published.tree()
    for job in ("score", "evaluate"):
        result = published.job(job, "store.version=000009-abc")
        refused(published, result, 3, "no version '000009-abc'", published.current, before=before)


def test_a_damaged_version(published):
    path = published.store / "ads" / "versions" / published.current / "lookup.parquet"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    before = published.tree()
    for job in ("score", "evaluate"):
        refused(published, published.job(job), 3, "the version is damaged", "sha256", before=before)


def test_json_of_an_error_is_one_object(place):
    result = place.job("fit", "--json")
    assert result.code == 3
    assert result.json["exit_code"] == 3
    assert result.json["error"] in result.stderr
    assert list(json.loads(result.stdout)) == ["error", "exit_code"]


def test_a_segment_of_megabytes_is_refused(place, call):
    names = pa.array(["a" * 65_536, "b" * 65_537, "c" * 1_000_000])
    for count, code in ((1, 0), (2, 3), (3, 3)):
        codes = pa.array(np.arange(3000) % count, pa.int32())
        shutil.rmtree(place.log, ignore_errors=True)
        columns = {**place.predictions(), "s": pa.DictionaryArray.from_arrays(codes, names[:count])}
        place.write_log(columns, files=1)
        said = ("expected text of at most 65,536 bytes", "names groups of rows") if code else ()
        call("fit", "log.segment=s").expect(code, *said)
