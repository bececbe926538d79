"""The examples run: the notebook from its first cell to its last, the daily job with a `logcal` that writes down."""

import importlib.util
import json
import os
import re
import shutil
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


@pytest.fixture
def machine(tmp_path):
    """A folder with the examples, and with commands that write down how they are called."""
    for path in DAILY.iterdir():
        shutil.copy(path, tmp_path / path.name)
    commands = tmp_path / ".venv" / "bin"
    commands.mkdir(parents=True)
    for name, text in {
        "logcal": f'echo "$@" >> {tmp_path}/asked\ncode=EXIT_$1\nexit ${{!code:-0}}',
    }.items():
        (commands / name).write_text(f"#!/bin/bash\n{text}\n")
        (commands / name).chmod(0o755)

    def run(*command, **codes):
        (tmp_path / "asked").write_text("")
        environment = {
            **os.environ,
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
            **{f"EXIT_{job}": str(code) for job, code in codes.items()},
        }
        done = run_command(*command, ends=None, cwd=tmp_path, env=environment)
        return done.returncode, (tmp_path / "asked").read_text().splitlines()

    run.folder = tmp_path
    return run


RUN = ["days run --config /opt/logcal/day.yaml"]


def test_the_crontab_runs_the_days(machine):
    [line] = [line for line in (machine.folder / "crontab").read_text().splitlines() if line[0].isdigit()]
    schedule, command = re.fullmatch(r"((?:\S+ ){5})(.*)", line).groups()
    assert schedule == "30 5 * * * "
    assert machine("bash", "-c", command) == (0, RUN)
    assert machine("bash", "-c", command, days=4)[0] == 4


def test_the_cronjob_runs_the_days_and_nothing_to_do_is_no_failure(machine):
    job = yaml.safe_load((machine.folder / "cronjob.yaml").read_text())
    spec = job["spec"]["jobTemplate"]["spec"]
    [container] = spec["template"]["spec"]["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts["config"] == "/etc/logcal"
    asked = ["days run --config /etc/logcal/day.yaml"]
    found = [machine(*container["command"], days=code) for code in (0, 4, 75, 99)]
    assert found == [(0, asked), (4, asked), (75, asked), (0, asked)]
    codes = spec["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"]
    assert codes == [1, 2, 3, 4]  # 75 is tried again
    # Kubernetes before 1.34 refuses a condition without its status.
    assert spec["podFailurePolicy"]["rules"][1]["onPodConditions"][0]["status"] == "True"
    assert job["spec"]["concurrencyPolicy"] == "Forbid"


class _Task:
    def __init__(self, **facts):
        self.facts = facts


@pytest.fixture
def airflow(monkeypatch):
    """What the DAG's file imports."""
    operators = "airflow.providers.standard.operators.bash"
    for name in ("pendulum", "airflow", "airflow.sdk", operators):
        monkeypatch.setitem(sys.modules, name, MagicMock(BashOperator=_Task))
    return sys.modules["airflow.sdk"]


def test_the_dag_runs_the_days(machine, airflow):
    names = {}
    exec(compile((machine.folder / "dag.py").read_text(), "dag.py", "exec"), names)
    assert names["days"].facts["skip_on_exit_code"] == 99
    assert machine("bash", "-c", names["days"].facts["bash_command"]) == (0, RUN)
    assert airflow.DAG.call_args.kwargs["max_active_runs"] == 1


def test_the_days_configuration_is_one_of_every_job(machine):
    from jobs.config.loading import load
    from jobs.registry import JOBS

    for job in ("days", "evaluate", "monitor", "fit", "score"):
        config = load(JOBS[job].config_class(), [machine.folder / "day.yaml"])
        assert config.store.table == "ads"
