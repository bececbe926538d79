"""Memory of a process that runs tasks, as the kernel tells it."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ALLOCATED = """
import ctypes, resource, sys, threading
from pathlib import Path
from jobs.cluster import process_memory

if len(sys.argv) > 1:
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
process_memory.begin()
process_memory.begin()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
places = []
threads = [threading.Thread(target=lambda: places.append(libc.malloc(40_000_000))) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
mapping = ""
for line in Path("/proc/self/smaps").read_text().splitlines():
    if not line.split()[0].endswith(":"):
        mapping = line
    elif line.startswith("VmFlags:"):
        start, end = (int(text, 16) for text in mapping.split()[0].split("-"))
        for place in places:
            if start <= place + 20_000_000 < end:
                print("[heap]" in mapping, "hg" in line.split())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8_000)
"""


def told(*args):
    """What a process says of two large buffers of its threads: in the heap, of large pages; no memory used."""
    done = subprocess.run(
        [sys.executable, "-c", ALLOCATED, *args], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc on Linux"
)
def test_buffers_of_threads_lie_in_one_heap_of_large_pages():
    large = Path("/sys/kernel/mm/transparent_hugepage/enabled").exists()
    assert told() == [f"True {large}"] * 2 + ["True"]
    # Who may not map much is not asked to.
    assert told(str(1 << 30)) == ["True False"] * 2 + ["True"]
