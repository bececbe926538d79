"""Commands that are forked say, do and end as those that are started."""

import subprocess
import sysconfig
import threading
from pathlib import Path

import pytest
from forked import FORKS

pytestmark = pytest.mark.system

LOGCAL = Path(sysconfig.get_path("scripts")) / "logcal"


def started(arguments, folder, environment):
    done = subprocess.run(
        [LOGCAL, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def forked(arguments, folder, environment, timeout=240):
    done = FORKS.run(arguments, folder, environment, timeout)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("config", "fit"),
        ("tables", "list", "--store", "store", "--json"),
        ("fit", "--sett", "x"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_as_if_it_were_started(place, arguments):
    assert forked(arguments, place.root, place.environment) == started(
        arguments, place.root, place.environment
    )


def test_each_has_its_own_folder_and_environment(place):
    place.write_log()
    place.job("fit", log__path="log", store__path="store").expect(0)
    assert place.versions == [place.current]
    narrow = place.environment | {"COLUMNS": "40"}
    assert forked(("--help",), place.root, narrow)[1] != forked(("--help",), place.root, place.environment)[1]


def test_what_reads_its_environment_before_is_started(place):
    assert FORKS.suits(["tables"], place.environment)
    assert not FORKS.suits(["tables"], place.environment | {"LOGCAL_CACHE": "elsewhere"})
    assert not FORKS.suits(["tables"], {k: v for k, v in place.environment.items() if k != "PATH"})
    assert not FORKS.suits(["fit"], place.environment)


def test_several_at_once_and_one_that_takes_too_long(place):
    codes = []
    ask = ("tables", "list", "--store", "nowhere")
    threads = [
        threading.Thread(
            target=lambda: codes.append(FORKS.run(ask, place.root, place.environment, 60).returncode)
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [codes[0]] * 4
    with pytest.raises(subprocess.TimeoutExpired):
        FORKS.run(ask, place.root, place.environment, 1e-4)
    assert forked(ask, place.root, place.environment)[0] == codes[0]
