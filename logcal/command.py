"""The command `logcal`: it and its worker processes import our packages, whatever lies on the path.

The command stands in this package since no other name of ours is safe from a user's; what it runs is in `jobs`, which
is above this package and is therefore named here and not imported.
"""

import importlib

from logcal import own_packages

own_packages.insist()
run = importlib.import_module("jobs.cli").run
"""See `jobs.cli.run`."""
