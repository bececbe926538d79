"""What the environment does to a run, and which exit code it gets; secrets in what is said of it."""

import errno
import http.server
import json
import os
import sys
import threading
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from jobs import tables
from jobs.cluster import process_memory
from logcal.errors import ConfigError, FileChangedError, TemporaryError
from pipeline.files import folders
from pipeline.files.faults import as_fault
from pipeline.files.storage import redacted, remember, without_secrets
from pipeline.log.log_files import reading


def store_error(name, text="", module="botocore.exceptions", base=Exception):
    return type(name, (base,), {"__module__": module})(text)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError("buffer of 3 bytes"), TemporaryError),
        (RuntimeError("can't start new thread"), TemporaryError),
        (OSError(errno.ENOSPC, "No space left on device"), TemporaryError),
        (OSError(errno.EIO, "Input/output error"), TemporaryError),
        (OSError(errno.ENAMETOOLONG, "File name too long"), ConfigError),
        (PermissionError(errno.EACCES, "Permission denied"), ConfigError),
        (FileNotFoundError("bucket/log"), FileChangedError),
        (FileNotFoundError("The specified bucket does not exist"), ConfigError),
        (ConnectionResetError("reset"), TemporaryError),
        (TimeoutError(), TemporaryError),
        (store_error("NoCredentialsError", "Unable to locate credentials"), ConfigError),
        (store_error("ProfileNotFound", "The config profile (x) could not be found"), ConfigError),
        (store_error("EndpointConnectionError", "Could not connect"), TemporaryError),
        (store_error("ClientError", "An error occurred (AccessDenied) when calling GetObject"), ConfigError),
        (store_error("ClientError", "An error occurred (500) when calling GetObject"), TemporaryError),
        (store_error("ClientPayloadError", "not complete", "aiohttp.client_exceptions"), TemporaryError),
        (store_error("FSTimeoutError", "", "fsspec.exceptions"), TemporaryError),
        (pa.ArrowInvalid("Couldn't deserialize thrift: std::bad_alloc"), TemporaryError),
        (ImportError("a.so: failed to map segment from shared object"), TemporaryError),
        (ModuleNotFoundError("No module named 'gcsfs'", name="gcsfs"), ConfigError),
        (ModuleNotFoundError("No module named 'jobs.x'", name="jobs.x"), None),
        (ValueError("anything else"), None),
        (KeyError("a bug"), None),
        (store_error("ClientError", "not a store's", "calibrators.x"), None),
    ],
)
def test_each_fault_has_its_kind(error, kind):
    fault = as_fault(error, "log.path")
    assert (None if fault is None else type(fault)) is kind
    if fault is not None:
        assert str(fault).startswith("log.path: ")


def test_a_file_that_is_not_read_for_want_of_memory_is_not_damaged():
    with pytest.raises(TemporaryError, match="out of memory"), reading("a.parquet"):
        raise pa.ArrowInvalid("Couldn't deserialize thrift: std::bad_alloc")


def test_a_cause_counts():
    wrapped = RuntimeError("wrapped")
    wrapped.__cause__ = store_error("ConnectTimeoutError", "slow")
    assert isinstance(as_fault(wrapped), TemporaryError)


def test_no_memory_says_how_much_was_there():
    assert " the machine has " in str(as_fault(MemoryError()))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://me:pass@word.org/log", "s3://***@word.org/log"),
        ("https://x/y?X-Amz-Signature=ab12&X-Amz-Date=1", "https://x/y?X-Amz-Signature=***&X-Amz-Date=1"),
        ("https://x/y?sv=1&sig=ab%2F12&se=2", "https://x/y?sv=1&sig=***&se=2"),
        ("log/token=5/key=7/a.parquet", "log/token=5/key=7/a.parquet"),
        ("expected 3 rows, found 4 at log/a=1/b.parquet", "expected 3 rows, found 4 at log/a=1/b.parquet"),
        ("someone@example.org wrote s3://bucket/log", "someone@example.org wrote s3://bucket/log"),
    ],
)
def test_secrets_are_hidden(text, shown):
    assert without_secrets(text) == shown


def test_known_values_are_hidden_wherever_they_stand():
    remember("open-sesame-4711")
    assert without_secrets("bad value open-sesame-4711!") == "bad value ***!"


def test_values_without_secrets():
    assert redacted({"n": [1, "s3://u:p@h", None], "m": {"key": "kept"}}) == {
        "n": [1, "s3://***@h", None],
        "m": {"key": "kept"},
    }


NO_DRIVER = "cannot open gs://bucket/x: Please install gcsfs to access Google Storage: pip install gcsfs"
NO_FILES = "found /proc, where the system shows itself"


@pytest.mark.parametrize(
    ("job", "setting", "path", "phrase"),
    [
        ("fit", "log__path", "gs://bucket/x", f"log.path: {NO_DRIVER}"),
        ("fit", "store__path", "gs://bucket/x", f"store.path: {NO_DRIVER}"),
        ("fit", "scratch", "gs://bucket/x", f"scratch: {NO_DRIVER}"),
        ("score", "output__path", "gs://bucket/x", f"output.path: {NO_DRIVER}"),
        ("evaluate", "report__path", "gs://bucket/x", f"report.path: {NO_DRIVER}"),
        ("follow", "log__path", "gs://bucket/x", f"log.path: {NO_DRIVER}"),
        ("fit", "log__path", "nosuch://x", "log.path: cannot open nosuch://x: Protocol not known"),
        ("fit", "log__path", "github://a/b", "2 required positional arguments: 'org' and 'repo'"),
        ("fit", "store__path", "/proc/nope", NO_FILES),
        ("score", "output__path", "/proc/nope", NO_FILES),
        ("follow", "output__path", "/proc/nope", NO_FILES),
    ],
)
def test_what_cannot_be_opened_is_the_configurations_fault(
    place, call, monkeypatch, job, setting, path, phrase
):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    place.write_log(files=1)
    if job != "fit":
        call("fit").expect(0)
    once = ("follow.once=true",) if job == "follow" else ()
    paths = {"output__path": place.output} if job == "follow" else {}
    call(job, *once, **(paths | {setting: path})).expect(2, phrase)


def test_a_server_without_ranges(place, call):
    pytest.importorskip("aiohttp")
    place.write_log(place.predictions(600_000), files=1)
    whole = partial(http.server.SimpleHTTPRequestHandler, directory=place.log)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), whole) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/part-0.parquet"
        call("fit", log__path=url).expect(2, "expected a server that gives parts of files (range requests)")
        call("fit", "storage.options={http: {client_kwargs: {bogus: 1}}}", log__path=url).expect(
            2,
            "ClientSession.__init__() got an unexpected keyword argument 'bogus'",
            "correct storage.options",
        )
        server.shutdown()


@pytest.mark.parametrize("options", ["{bogus: 1}", "{client_kwargs: {bogus: 1}}", "{client_kwargs: some}"])
def test_options_that_a_library_of_stores_does_not_take(place, call, options):
    pytest.importorskip("s3fs")
    place.write_log(files=1)
    for setting in ("log__path", "store__path", "scratch"):
        call("fit", f"storage.options={{s3: {options}}}", **{setting: "s3://bucket/x"}).expect(
            2, "correct storage.options for its protocol"
        )


def test_current_as_a_folder_is_refused_and_nothing_is_written(place, call):
    place.write_log(files=1)
    call("fit").expect(0)
    current = place.store / place.table / "CURRENT"
    current.unlink()
    current.mkdir()
    before = place.tree()
    for job in ("fit", "score", "evaluate"):
        settings = ("calibrator.method=platt",) if job == "fit" else ()
        call(job, *settings).expect(3, f"{current}: expected a file with the name of a version, found a")
    given = ("--store", str(place.store), "--table", place.table)
    place.run("tables", "rollback", *given).expect(3, "found a folder: remove it")
    assert place.tree() == before
    current.rmdir()
    place.run("tables", "rollback", *given).expect(0)
    call("score").expect(0)


def test_nested_without_end(place, call):
    """No JSON that a command reads ends it, however deep."""
    place.write_log({**place.predictions(), "day": np.repeat(20260101 + np.arange(3), 1000)})
    window = ("window.column=day", "window.last=3d")
    call("fit", *window).expect(0)
    call("follow", "follow.once=true", output__path=place.output).expect(0)
    files = [p for p in place.root.rglob("*") if p.suffix in (".json", ".jsonl") or p.name == "journal"]
    assert len(files) > 8
    given = ("--store", str(place.store))
    for path in files:
        content = path.read_bytes()
        path.write_bytes(b"[" * 200_000)
        for arguments in (("tables", "list", *given), ("tables", "list", *given, "--table", place.table)):
            assert place.run(*arguments).code in (0, 3), path
        for job, *settings in (("fit", *window), ("follow", "follow.once=true"), ("monitor", *window)):
            own = {"output__path": place.output} if job == "follow" else {}
            code = call(job, *settings, **own).code
            assert code in (0, 3, 75, 99), (path, job, code)
        path.write_bytes(content)


def test_too_few_addresses_are_said_before_anything_starts(place):
    place.write_log()
    before = place.tree()
    limited = ("bash", "-c", 'ulimit -v 700000; exec "$@"', "bash")
    place.job("fit", within=limited).expect(75, "ulimit -v", "716,800,000")
    assert place.tree() == before


def test_what_is_mapped_already_counts(monkeypatch):
    """A limit that a forked process has reached: threads would not start, and their starters wait for ever."""
    limit = process_memory._mapped_bytes() + (1 << 29)
    assert limit > process_memory.FEWEST_BYTES
    monkeypatch.setattr(process_memory.resource, "getrlimit", lambda _: (limit, limit))
    with pytest.raises(TemporaryError, match=r"ulimit -v.* of them in use: raise the limit"):
        process_memory.check_address_space()


NO_MORE = """
import resource, sys
if sys.argv[0].endswith("logcal"):
    import numpy
    from pipeline.log import log_files
    check, checks = log_files._check_unchanged, []

    def noticing(*arguments, **options):
        check(*arguments, **options)
        checks.append(arguments)
        if len(checks) == 3:  # the footer's two, and the first of its rows
            resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))
            numpy.empty(1 << 41, numpy.int8)

    log_files._check_unchanged = noticing
"""
"""The first rows that are read ask for more than may be mapped. (A limit on what they really need would be met by
whatever asks next: as often as an array that is the interpreter, or LLVM, which go to pieces without a page.)"""


@pytest.mark.parametrize("job", ["fit", pytest.param("evaluate", marks=pytest.mark.system)])
def test_memory_that_runs_out_is_not_the_logs_fault(place, job):
    place.write_log(files=1)
    if job == "evaluate":
        place.job("fit").expect(0)
    (place.temporary / "sitecustomize.py").write_text(NO_MORE)
    place.environment["PYTHONPATH"] = str(place.temporary)
    place.job(job).expect(75, "out of memory", "this process may map")
    assert not place.output.exists()
    assert len(list(place.store.rglob("lookup.parquet"))) == (job == "evaluate")
    assert list(place.scratch.iterdir()) == []


def test_an_infinite_loss_of_held_out_rows_is_listed(place, call):
    place.write_log(files=1)
    call("fit").expect(0)
    [path] = place.store.rglob("manifest.json")
    manifest = json.loads(path.read_text())
    del manifest["checksum"]
    manifest["gate"] = {"holdout": {"log_loss": "Infinity"}}
    path.write_text(json.dumps(manifest))
    listed = place.run("tables", "list", "--store", str(place.store), "--table", place.table)
    assert "log loss inf held out" in listed.expect(0).stdout


@pytest.mark.parametrize("unit", [1e-100, 1e100])
def test_every_command_takes_the_weights_that_are_documented(place, call, unit):
    columns = place.predictions(900)
    day = np.repeat(np.array(["2026-01-01", "2026-01-02", "2026-01-03"], "datetime64[D]"), 300)
    place.write_log({**columns, "w": np.full(900, unit), "date": day})
    window = ("window.column=date", "window.last=3d")
    call("fit", "log.weight=w").expect(0)
    call("fit", "log.weight=w", *window, "calibrator.method=platt").expect(0)
    call("evaluate", "log.weight=w", "evaluate.allow_in_sample=true").expect(0)
    # 900 rows that weigh nothing make no folds; histograms have no number of bins for those that weigh so much.
    call("compare", "log.weight=w", report__path=place.root / "compared").expect(3, "does not suit")


def test_a_number_as_holdout_says_what_is_expected(place, call):
    call("fit", "gate.holdout=20").expect(2, "such as 0.2 or 20%", "write 20% or 20d")


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, 75), (errno.EIO, 75), (errno.EROFS, 2)])
def test_a_full_disk_is_temporary_wherever_something_is_made(place, call, monkeypatch, number, code):
    def fails(*given, **options):
        raise OSError(number, "made to fail")

    place.write_log(files=1)
    call("fit").expect(0)
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.files.scratch._new", fails)
        call("fit", "calibrator.method=platt").expect(code, "scratch: ")
    call("fit", "calibrator.method=platt").expect(0)
    monkeypatch.setattr("pipeline.files.folders.write_whole", fails)
    with pytest.raises(TemporaryError if code == 75 else ConfigError, match="--report"):
        tables.diff(str(place.store), place.table, "000001", "000002", str(place.root / "page.html"))


def test_a_file_that_is_written_anew_removes_unfinished_ones_of_its_folder_after_an_hour(tmp_path):
    page = tmp_path / "page[1].html"
    names = [page.name, page.name, f"{page.name}.old", "page1.html"]
    old, young, longer, alike = (tmp_path / folders.temporary_name(name) for name in names)
    for path in (old, young, longer, alike):
        path.write_bytes(b"half")
        os.utime(path, None if path == young else (1e9, 1e9))
    for _ in range(2):
        folders.write_whole(page, b"whole")
    assert page.read_bytes() == b"whole"
    assert set(tmp_path.iterdir()) == {page, young}
