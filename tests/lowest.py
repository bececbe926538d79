"""Make an environment with the lowest versions that pyproject.toml allows: python tests/lowest.py FOLDER.

The development tools are the newest that go with them.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]


def lowest(requirement: str) -> str:
    """A requirement that allows nothing above its lower bound: dask>=2025.5,<2027 becomes dask==2025.5."""
    found = re.fullmatch(r"\s*([\w.-]+(?:\[[\w,]+\])?)\s*>=\s*([\w.]+).*", requirement)
    if found is None:
        raise SystemExit(f"{requirement}: expected a lower bound")
    return f"{found[1]}=={found[2]}"


def main(folder: str) -> None:
    """Make the environment."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    pinned = [lowest(requirement) for requirement in project["dependencies"]]
    venv.create(folder, with_pip=True, clear=True)
    python = str(Path(folder) / "bin" / "python")
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--editable", f"{ROOT}[dev,system]", *pinned], check=True
    )
    freeze = [python, "-m", "pip", "freeze"]
    frozen = subprocess.run(freeze, capture_output=True, text=True, check=True).stdout
    names = {re.split(r"[\[=]", requirement)[0].lower() for requirement in pinned}
    sys.stdout.writelines(f"{line}\n" for line in frozen.splitlines() if line.split("==")[0].lower() in names)


if __name__ == "__main__":
    main(sys.argv[1])
