"""What the process that workers are forked from does when it starts."""

from jobs.worker_process import ignore_interrupts, load

ignore_interrupts()
load()
