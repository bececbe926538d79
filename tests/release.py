"""Check and build a release: `make release`, or python tests/release.py FOLDER, for the environments.

The tree is clean, the changelog has the version with a date, and a tag of that name, if there is one, is this commit.
The checks of `make everything` pass, but for those that take long or change the machine; CHECKED=1 leaves them out
where they have just passed. Then the source distribution and the wheel are built into dist/ and checked with twine. The
wheel is installed with the locked versions into an environment that knows nothing of this tree; there `pip check` and
README's commands pass.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import everything

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
CHECKS = [target for target in everything.CHECKS if target not in ("slurm", "chaos", "matrix")]


def output(*command: str) -> str:
    """Return what a command prints."""
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def problems(version: str, changelog: str, status: str, tagged: str | None, head: str) -> list[str]:
    """Return what must be done before this version is released.

    tagged : commit of the version's tag; None without one
    """
    found = []
    if status:
        found.append(f"expected a clean tree: commit or remove\n{status}")
    if not re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d{{2}}-\d{{2}}\)$", changelog, re.MULTILINE):
        found.append(f"CHANGELOG.md: expected a heading '## {version} (YYYY-MM-DD)'")
    if tagged not in (None, head):
        found.append(
            f"tag v{version}: expected this commit, {head[:12]}; found {tagged[:12]}: raise logcal/version.py"
        )
    return found


def main(folder: Path) -> None:
    """Check, build, install, try."""
    version = runpy.run_path(str(ROOT / "logcal" / "version.py"))["__version__"]
    tag = output("git", "tag", "--list", f"v{version}")
    found = problems(
        version,
        (ROOT / "CHANGELOG.md").read_text("utf-8"),
        output("git", "status", "--porcelain"),
        output("git", "rev-list", "-n", "1", tag) if tag else None,
        output("git", "rev-parse", "HEAD"),
    )
    if found:
        raise SystemExit("\n".join(found))
    if not os.environ.get("CHECKED") and everything.main(CHECKS):
        raise SystemExit("expected checks that pass: see the lines above")
    tools, user = (Path(folder) / name / "bin" / "python" for name in ("tools", "user"))
    for python in (tools, user):
        venv.create(python.parents[1], with_pip=True, clear=True)
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    subprocess.run([tools, *pip, "build", "twine"], check=True)
    shutil.rmtree(DIST, ignore_errors=True)
    subprocess.run([tools, "-m", "build", "--outdir", DIST, ROOT], check=True, stdout=subprocess.DEVNULL)
    built = sorted(DIST.iterdir())
    subprocess.run([tools, "-m", "twine", "check", "--strict", *built], check=True)
    subprocess.run([user, *pip, "--require-hashes", "-r", ROOT / "requirements" / "run.txt"], check=True)
    subprocess.run([user, *pip, "--no-deps", *DIST.glob("*.whl")], check=True)
    subprocess.run([user, "-m", "pip", "check"], check=True)
    readme = (ROOT / "README.md").read_text("utf-8")
    commands = "".join(re.findall(r"^```sh\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE))
    with tempfile.TemporaryDirectory(prefix="logcal-release-") as empty:
        path = f"{user.parent}:{os.environ['PATH']}"
        subprocess.run(["bash", "-euc", commands], cwd=empty, env={**os.environ, "PATH": path}, check=True)
    sys.stdout.write("".join(f"{file.relative_to(ROOT)}\n" for file in built))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
