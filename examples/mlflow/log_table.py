"""Log a published table with the measures of its report: python log_table.py STORE TABLE REPORT."""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import mlflow

import logcal


def log_table(store: str, table: str, report: str) -> str:
    """Log the live version of a table and return the model's address.

    Parameters
    ----------
    store : local folder with published tables
    table : name of the table
    report : folder written by `logcal evaluate`
    """
    version = logcal.load(store, table).version
    after = json.loads((Path(report) / "run.json").read_text())["evaluation"]["after"]["measures"]
    with tempfile.TemporaryDirectory() as folder, mlflow.start_run():
        copy = Path(folder) / table
        shutil.copytree(Path(store) / table / "versions" / version, copy / "versions" / version)
        (copy / "CURRENT").write_text(version)
        mlflow.log_params({"logcal_table": table, "logcal_version": version})
        mlflow.log_metrics({name: value for name, value in after.items() if isinstance(value, float)})
        model = mlflow.pyfunc.log_model(
            name="calibrated",
            python_model=str(Path(__file__).with_name("calibrated.py")),
            artifacts={"store": folder},
            model_config={"table": table},
            pip_requirements=["logcal"],
        )
    return model.model_uri


if __name__ == "__main__":
    print(log_table(*sys.argv[1:]))
