"""Memory of a process that runs tasks, as the kernel tells it."""

import ctypes
import sys

import pytest
from common import python

pytestmark = pytest.mark.system

ALLOCATED = """
import ctypes, threading
from pathlib import Path
from jobs.cluster import process_memory

process_memory.begin()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
places = []
threads = [threading.Thread(target=lambda: places.append(libc.malloc(40_000_000))) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
(heap,) = (line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("[heap]"))
start, end = (int(text, 16) for text in heap.split()[0].split("-"))
print(all(start <= place < end for place in places))
"""


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc on Linux"
)
def test_buffers_of_threads_lie_in_one_heap():
    done = python(ALLOCATED)
    assert (done.stdout, done.stderr) == ("True\n", "")
