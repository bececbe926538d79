"""The examples run: the notebook from its first cell to its last."""

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest
from common import run_command

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("polars")

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
