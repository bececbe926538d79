"""What the environment does to a run, and which exit code it gets; secrets in what is said of it."""

import errno

import pytest

from logcal.errors import ConfigError, FileChangedError, TemporaryError
from pipeline.files.faults import as_fault
from pipeline.files.secrets import redacted, remember, without_secrets


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


def test_too_few_addresses_are_said_before_anything_starts(place):
    place.write_log()
    before = place.tree()
    limited = ("bash", "-c", 'ulimit -v 700000; exec "$@"', "bash")
    place.job("fit", within=limited).expect(75, "ulimit -v", "716,800,000")
    assert place.tree() == before


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


@pytest.mark.parametrize("job", ["fit", "evaluate"])
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
