"""The command `logcal`: it and its worker processes import this project's packages, whatever is on the path.

This module is part of `logcal` because users may have packages named `jobs`. It imports `jobs`, a higher layer; the
contracts in pyproject.toml allow this. Only `python -m logcal` imports this module.
"""

from logcal import own_packages

own_packages.install_finder()

from jobs.cli import run  # noqa: E402 - after install_finder

__all__ = ["run"]
