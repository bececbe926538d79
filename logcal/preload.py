"""First import of the fork server of worker processes: see `own_packages`."""

from logcal import own_packages

own_packages.install_finder()
