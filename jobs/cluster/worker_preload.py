"""What the process that workers are forked from does when it starts."""

from jobs.cluster import process_memory
from jobs.cluster.worker_process import ignore_interrupts, load, while_command_lives

ignore_interrupts()
process_memory.begin()
with while_command_lives():
    load()
