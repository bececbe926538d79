"""Imports of the fork server: the process that workers are forked from."""

from jobs.cluster import process_memory
from jobs.interrupts import ignore_interrupts, while_command_lives

ignore_interrupts()
process_memory.begin()
with while_command_lives():
    import distributed.worker  # noqa: F401
    import numpy as np

    import pipeline.score.scored_file
    import pipeline.sort.score_table  # noqa: F401
    from calibrators.core.kernels.sums import prefix_sums
    from jobs.progress import announce_compiling, log_to_stderr

    log_to_stderr()
    announce_compiling()
    # A first call makes numba load what compiled functions need.
    prefix_sums(np.ones(1), np.empty(0))
