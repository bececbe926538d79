"""What the process that workers are forked from does when it starts."""

from jobs.worker_process import WORKER_TASKS, prepare

prepare(WORKER_TASKS)
