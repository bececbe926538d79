"""Copies of arrays within compiled loops.

Assigning an array to a slice brings along the code that words an error about shapes, text and all, and a copy in case
the two overlap: it takes a kernel a second longer to be compiled, and is no faster.
"""

from calibrators._kernels.compiled import kernel


@kernel
def put(target, source):
    """target[: source.size] = source, from the first on: of overlapping ones the target must begin first."""
    for i in range(source.size):
        target[i] = source[i]
