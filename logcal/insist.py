"""Imported first by processes that workers are forked from: see `own_packages`."""

from logcal import own_packages

own_packages.insist()
