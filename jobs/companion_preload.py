"""What the process that companions are forked from does when it starts."""

from jobs.worker_process import TASKS, prepare

prepare(TASKS)
