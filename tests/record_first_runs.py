"""List what jobs need compiled when they are run for the first time: python tests/record_first_runs.py.

It runs the demo and the jobs on the demo's log, and writes jobs/data/first_runs.json: of each job the kernels in the
order in which it first calls them, with the types of their arguments.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from jobs.compile_ahead import LISTS

RECORDING = """
import json, sys
from calibrators._kernels.kept_code import KeptCode
from jobs.compile_ahead import text_of
from jobs.config.loading import load
from jobs.registry import JOBS
from pipeline.execution import InlineExecutor

uses = []
ask = KeptCode.load_overload

def asking(self, types, context):
    uses.append([f"{self._py_func.__module__}.{self._py_func.__qualname__}", text_of(types)])
    return ask(self, types, context)

KeptCode.load_overload = asking
job = JOBS[sys.argv[1]]
job.load_module().prepare(load(job.config_class(), (), sys.argv[2:])).execute(InlineExecutor())
sys.stdout.write(json.dumps(uses))
"""


def uses_of(job: str, *settings: str) -> list[list[str]]:
    """Kernels and types, once the code of all of them is kept: what others call they bring along.

    settings : with {run} where runs must differ
    """
    for run in range(2):
        given = [setting.replace("{run}", str(run)) for setting in settings]
        command = [sys.executable, "-c", RECORDING, job, *given]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [use for use in json.loads(done.stdout) if "?" not in use[1]]


def record(folder: Path) -> dict[str, list[list[str]]]:
    """The lists of all jobs that have one."""
    log = f"log.path={folder}/demo/log/"
    table = f"store.path={folder}/store"
    return {
        "demo": uses_of("demo", f"output.path={folder}/demo"),
        "fit": uses_of("fit", f"{log}calibration", table, "store.table=t{run}"),
        "compare": uses_of("compare", f"{log}calibration", f"output.path={folder}/compare{{run}}"),
        "score": uses_of(
            "score", f"{log}held-out", table, "store.table=t1", f"output.path={folder}/score{{run}}"
        ),
        "evaluate": uses_of(
            "evaluate", f"{log}held-out", table, "store.table=t1", f"report.path={folder}/report{{run}}"
        ),
    }


def main() -> None:
    """Write the lists."""
    with tempfile.TemporaryDirectory() as folder:
        found = record(Path(folder))
    lines = [
        f'"{job}": [\n' + ",\n".join(f"  {json.dumps(use)}" for use in uses) + "\n]"
        for job, uses in found.items()
    ]
    LISTS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
