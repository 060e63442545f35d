"""What malloc keeps."""

import resource
import subprocess
import sys

from tsd.heap import HEAPS

ALLOCATE = """
import resource
from tsd.heap import keep_freed_memory
if {kept}:
    assert keep_freed_memory()
for _ in range(50):
    held = [bytes(100_000) for _ in range(100)]
    del held
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


def faults(*, kept: bool) -> int:
    words = [sys.executable, "-c", ALLOCATE.format(kept=kept)]
    return int(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)


def test_memory_that_is_used_again_and_again_is_not_faulted_in_each_time() -> None:
    again = 50 * 100 * 100_000 // resource.getpagesize()
    assert faults(kept=True) < again // 4


MANY_THREADS = """
import ctypes, os, threading
from tsd.heap import keep_freed_memory
if {kept}:
    assert keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.fdopen.restype = ctypes.c_void_p, ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
together = threading.Barrier(12)
def work():
    together.wait()
    held = [libc.malloc(1000) for _ in range(1000)]
    together.wait()
    for block in held:
        libc.free(block)
threads = [threading.Thread(target=work) for _ in range(12)]
for thread in threads: thread.start()
for thread in threads: thread.join()
read, write = os.pipe()
file = ctypes.c_void_p(libc.fdopen(write, b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
print(os.read(read, 1 << 20).count(b"<heap nr="))
"""


def heaps(*, kept: bool) -> int:
    words = [sys.executable, "-c", MANY_THREADS.format(kept=kept)]
    return int(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)


def test_threads_share_few_heaps() -> None:
    assert heaps(kept=True) <= HEAPS < heaps(kept=False)
