"""The examples run: the notebook from its first cell to its last, the daily job with a `logcal` that writes down."""

import importlib.util
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import yaml
from common import run_command

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

EXAMPLES = Path(__file__).parents[1] / "examples"

# In a process of its own, whose sockets end with it; with this interpreter as kernel, whatever the user has.
EXECUTE = """
import sys, jupyter_client, nbclient, nbformat
manager = jupyter_client.AsyncKernelManager()
manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, km=manager, timeout=300).execute()
nbformat.write(notebook, sys.argv[2])
"""


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_something(path, tmp_path):
    for name in ("nbclient", "ipykernel", "polars"):
        pytest.importorskip(name)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }
    kernel = (sys.executable, "-W", "ignore", "-c", EXECUTE)
    run_command(*kernel, path, "done.ipynb", cwd=tmp_path, env=environment)
    cells = json.loads((tmp_path / "done.ipynb").read_text())["cells"]
    shown = [output for cell in cells for output in cell.get("outputs", ())]
    assert sum("image/png" in output.get("data", {}) for output in shown) == 2
    assert any("published income version" in "".join(output.get("text", "")) for output in shown)


def test_the_daily_job_is_that_of_its_page():
    path = EXAMPLES.parent / "docs" / "examples.py"
    spec = importlib.util.spec_from_file_location("examples_of_the_page", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, text in module.contents().items():
        assert (EXAMPLES / "daily" / name).read_text() == text, "run `python docs/examples.py`"


# The files of the daily job do what their page says, with a `logcal` that writes down what it is asked

DAILY = EXAMPLES / "daily"
DAY = ["evaluate", "monitor", "fit", "score"]
SCRIPTED = ["day.sh", "day.slurm"]


@pytest.fixture
def machine(tmp_path):
    """A folder with the examples, and with commands that write down how they are called."""
    for path in DAILY.iterdir():
        shutil.copy(path, tmp_path / path.name)
    script = (tmp_path / "day.sh").read_text()
    (tmp_path / "day.sh").write_text(script.replace("/data/store", f"{tmp_path}/store"))
    (tmp_path / "day.sh").chmod(0o755)
    commands = tmp_path / ".venv" / "bin"
    commands.mkdir(parents=True)
    for name, text in {
        "logcal": f'echo "$@" >> {tmp_path}/asked\ncode=EXIT_$1\nexit ${{!code:-0}}',
        "srun": 'exec "$@"',
    }.items():
        (commands / name).write_text(f"#!/bin/bash\n{text}\n")
        (commands / name).chmod(0o755)

    def run(*command, **codes):
        (tmp_path / "asked").write_text("")
        environment = {
            **os.environ,
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
            "SLURM_TMPDIR": "/scratch/1",
            **{f"EXIT_{job}": str(code) for job, code in codes.items()},
        }
        done = run_command(*command, ends=None, cwd=tmp_path, env=environment)
        return done.returncode, (tmp_path / "asked").read_text().splitlines()

    run.folder = tmp_path
    return run


def of(asked):
    """The jobs."""
    return [line.split()[0] for line in asked]


@pytest.mark.parametrize("script", SCRIPTED)
def test_scripts_go_through_the_day_and_say_what_failed(machine, script):
    shell = ("bash", str(machine.folder / script))
    code, asked = machine(*shell)
    assert (code, of(asked)) == (0, DAY)
    assert all("--config day.yaml" in line for line in asked)
    # Nothing to do is no failure; a table that is refused does not keep rows from being scored.
    assert machine(*shell, evaluate=99, fit=99, score=99)[0] == 0
    code, asked = machine(*shell, fit=4)
    assert (code, of(asked)) == (4, DAY)
    assert machine(*shell, evaluate=4)[0] == 4
    assert machine(*shell, score=75)[0] == 75
    # A backfill's day reaches all four.
    _, asked = machine(*shell, "--set", "window.until=2026-01-15")
    assert [line.endswith("--set window.until=2026-01-15") for line in asked] == [True] * 4


def test_the_crontab_keeps_two_days_apart(machine):
    [line] = [line for line in (machine.folder / "crontab").read_text().splitlines() if line[0].isdigit()]
    schedule, command = re.fullmatch(r"((?:\S+ ){5})(.*)", line).groups()
    assert schedule == "30 5 * * * "
    lock = machine.folder / "store/.day.lock"
    command = command.replace("/opt/logcal", str(machine.folder))
    if shutil.which("flock") is None:
        pytest.skip("flock is not installed")
    code, asked = machine("bash", "-c", command)
    assert (code, of(asked)) == (0, DAY)
    held = subprocess.Popen(["flock", str(lock), "sleep", "60"])
    try:
        while subprocess.run(["flock", "-n", str(lock), "true"], check=False).returncode == 0:
            pass
        assert machine("bash", "-c", command) == (75, [])
    finally:
        held.kill()
        held.wait()


def test_the_cronjob_runs_the_same_script(machine):
    job = yaml.safe_load((machine.folder / "cronjob.yaml").read_text())
    spec = job["spec"]["jobTemplate"]["spec"]
    [container] = spec["template"]["spec"]["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts["config"] == "/etc/logcal"
    command = [part.replace("/etc/logcal", str(machine.folder)) for part in container["command"]]
    code, asked = machine(*command, fit=4)
    assert (code, of(asked)) == (4, DAY)
    codes = spec["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"]
    assert codes == [1, 2, 3, 4]  # 75 is tried again
    # Kubernetes before 1.34 refuses a condition without its status.
    assert spec["podFailurePolicy"]["rules"][1]["onPodConditions"][0]["status"] == "True"
    assert job["spec"]["concurrencyPolicy"] == "Forbid"


class _Task:
    def __init__(self, **facts):
        self.facts, self.before = facts, []

    def __rshift__(self, other):
        other.before.append(self)
        return other


@pytest.fixture
def airflow(monkeypatch):
    """What the DAG's file imports."""
    operators = "airflow.providers.standard.operators.bash"
    for name in ("pendulum", "airflow", "airflow.sdk", operators):
        monkeypatch.setitem(sys.modules, name, MagicMock(BashOperator=_Task))
    return sys.modules["airflow.sdk"]


def test_the_dag_is_the_day_in_its_order(machine, airflow):
    names = {}
    exec(compile((machine.folder / "dag.py").read_text(), "dag.py", "exec"), names)
    tasks = [names[job] for job in DAY]
    assert [task.before for task in tasks] == [[], tasks[:1], tasks[1:2], tasks[2:3]]
    assert all(task.facts["skip_on_exit_code"] == 99 for task in tasks)
    assert all(
        task.facts["trigger_rule"] == "all_done" for task in tasks
    )  # the fit is the cure of what they find
    for task, job in zip(tasks, DAY, strict=True):
        assert machine("bash", "-c", task.facts["bash_command"])[1] == [
            f"{job} --config /opt/logcal/day.yaml"
        ]
    assert airflow.DAG.call_args.kwargs["max_active_runs"] == 1


def test_the_days_configuration_is_one_of_every_job(machine):
    from jobs.config.loading import load
    from jobs.registry import JOBS

    for job in DAY:
        config = load(JOBS[job].config_class(), [machine.folder / "day.yaml"])
        assert config.store.table == "ads"
    assert stat.S_IMODE((DAILY / "day.sh").stat().st_mode) & 0o444
