"""The command `logcal`: it and its worker processes import this project's packages, whatever is on the path.

This module is part of `logcal` because users may have packages named `jobs`. It imports `jobs`, a higher layer; the
contracts in pyproject.toml allow this. Only `python -m logcal` imports this module.
"""

import sys

from logcal import own_packages
from logcal.slim import needed

own_packages.install_finder()

try:
    from jobs.cli import run
except ModuleNotFoundError as error:
    sys.stderr.write(f"logcal: {needed('the command', error)}\n")
    raise SystemExit(2) from None

__all__ = ["run"]
