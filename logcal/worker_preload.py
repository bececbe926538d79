"""What the process that workers are forked from imports first; see `logcal.command`."""

import importlib

from logcal import own_packages

own_packages.insist()
importlib.import_module("jobs.cluster.worker_preload")
