"""The command `logcal`: it and its worker processes import our packages, whatever lies on the path.

It stands in this package since no other name of ours is safe from a user's. What it runs is in `jobs`, above: the one
arrow upward, which the contracts in pyproject.toml name; nothing imports this module but `python -m logcal`.
"""

from logcal import own_packages

own_packages.insist()

from jobs.cli import run  # noqa: E402 - ours, from here on

__all__ = ["run"]
