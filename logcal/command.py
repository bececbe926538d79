"""The command `logcal`: it and its worker processes import this project's packages, whatever is on the path.

It belongs to this package since users may have packages called `jobs`. It runs `jobs`, which lies above: the one import
upward, named in the contracts of pyproject.toml. Only `python -m logcal` imports this module.
"""

from logcal import own_packages

own_packages.install_finder()

from jobs.cli import run  # noqa: E402 - ours, from here on

__all__ = ["run"]
