"""A container whose root is read-only, without a home, with the id of another user: every job runs there."""

import ctypes
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path

import pytest
from chaos.scenarios import SCENARIOS, Stage
from chaos.tracing import forked

pytestmark = pytest.mark.system

SOMEONE_ELSE = 65534
_RDONLY, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 32, 4096, 16384, 1 << 18
_NEWNS, _NEWUSER = 0x20000, 0x10000000

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source, target, kind=None, flags=0, options=None):
    arguments = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    if _libc.mount(*arguments, ctypes.c_ulong(flags), None if options is None else options.encode()) == -1:
        raise OSError(ctypes.get_errno(), f"mount {source} {target}")


def become_another(place):
    """Have this process see all but a place as read-only, and be someone who owns nothing else."""
    root, user, group = os.geteuid() == 0, os.geteuid(), os.getegid()
    if _libc.unshare(_NEWNS | (0 if root else _NEWUSER)) == -1:
        raise OSError(ctypes.get_errno(), "unshare")
    if not root:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{SOMEONE_ELSE} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{SOMEONE_ELSE} {group} 1")
    mount(None, "/", flags=_REC | _PRIVATE)
    mount(str(place), str(place), flags=_BIND)
    if root:
        let_python_be_found(place)
    mount(None, "/", flags=_REMOUNT | _BIND | _RDONLY)
    if root:
        os.setgroups([])
        os.setgid(SOMEONE_ELSE)
        os.setuid(SOMEONE_ELSE)
    for name in ("HOME", "USER", "LOGNAME", "XDG_CACHE_HOME", "MPLCONFIGDIR"):
        os.environ.pop(name, None)


def let_python_be_found(place):
    """Where it lies in a folder that others may not enter, such as root's home, there is nothing else in it then."""
    home = Path(sys.base_prefix).resolve()
    closed = [folder for folder in reversed(home.parents) if not folder.stat().st_mode & stat.S_IXOTH]
    if closed:
        aside = place / "temporary" / "python"
        aside.mkdir()
        mount(str(home), str(aside), flags=_BIND)
        mount("tmpfs", str(closed[0]), "tmpfs", 0, "mode=755")
        home.mkdir(parents=True)
        mount(str(aside), str(home), flags=_BIND)


@pytest.fixture(scope="module")
def folder():
    # Not below pytest's, which others may not enter.
    made = Path(tempfile.mkdtemp(prefix="logcal-container-"))
    made.chmod(0o755)
    (made / "place").mkdir()
    (made / "place" / "temporary").mkdir()
    ended = forked(lambda: become_another(made / "place") or 0, seconds=30)
    if ended.code:
        pytest.skip(f"no namespaces here: {ended.said.splitlines()[-1:]}")
    yield made
    shutil.rmtree(made)


FITS = ("fit, quarantine", "fit, window with segments")
JOBS = (*FITS, "score", "evaluate", "monitor", "generate", "follow", "tables rollback")


@pytest.mark.parametrize("name", JOBS)
def test_every_job_runs_there(folder, name):
    stage = Stage(SCENARIOS[name], folder)
    stage.warm()
    stage.reset()
    if os.geteuid() == 0:
        for path in (stage.place.root, *stage.place.root.rglob("*")):
            os.chown(path, SOMEONE_ELSE, SOMEONE_ELSE)

    def there():
        become_another(stage.place.root)
        with pytest.raises(OSError, match="Read-only file system"):
            (folder / "elsewhere").write_text("")
        assert os.geteuid() == SOMEONE_ELSE
        return stage.command()

    ended = forked(there)
    assert ended.code == stage.scenario.code, ended.said
    assert stage.place.files() == stage.after


def test_the_command_itself_runs_there(folder):
    stage = Stage(SCENARIOS["fit"], folder)
    stage.reset()
    if os.geteuid() == 0:
        for path in (stage.place.root, *stage.place.root.rglob("*")):
            os.chown(path, SOMEONE_ELSE, SOMEONE_ELSE)

    def there():
        become_another(stage.place.root)
        os.chdir(stage.place.root)
        own = {name: os.environ[name] for name in ("PATH", "LOGCAL_CACHE") if name in os.environ}
        own["TMPDIR"] = str(stage.place.root / "temporary")
        os.execve(sys.executable, [sys.executable, "-m", "logcal", *stage.scenario.arguments], own)

    ended = forked(there)
    assert ended.code == 0, ended.said
    assert stage.place.files() == stage.after
