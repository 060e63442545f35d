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


HOLES = """
import os
import resource
import trio
from tsd.heap import SPARE_BYTES, SpareMemory, keep_freed_memory
def held():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
assert keep_freed_memory()
spare = SpareMemory()
blocks = [b"x" * 10_000 for _ in range(10_000)]
most = held()
blocks = blocks[::100]  # what lies between them is free, and is no heap's end
assert spare.size() > 90_000_000 > SPARE_BYTES, spare.size()
assert held() > most - 5_000_000
async def until_given_back():
    async with trio.open_nursery() as nursery:
        if {given}:
            nursery.start_soon(spare.give_back, 0.001)
        while {given} and held() > most - 80_000_000:
            await trio.sleep(0.001)
        nursery.cancel_scope.cancel()
trio.run(until_given_back)
print(most - held())
"""


def given_back(*, given: bool) -> int:
    words = [sys.executable, "-c", HOLES.replace("{given}", str(given))]
    return int(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout)


def test_what_is_free_between_blocks_in_use_is_given_back() -> None:
    assert given_back(given=True) > 80_000_000
    assert given_back(given=False) < 5_000_000


AGAIN = """
import resource
import trio
from tsd.heap import LOOKS, SpareMemory, keep_freed_memory
assert keep_freed_memory()
spare = SpareMemory()
trim, trims = spare._trim, []
def counted(pad):
    trims.append(pad)
    return trim(pad)
spare._trim = counted
looked = 0
size = spare.size
def looking():
    global looked
    looked += 1
    return size()
spare.size = looking
blocks = [b"x" * 10_000 for _ in range(10_000)][::100]
async def looks(count):
    wanted = looked + count
    while looked < wanted:
        await trio.sleep(0.001)
async def main():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(spare.give_back, 0.001)
        await looks(5 * LOOKS)
        assert len(trims) == 1, trims  # what is gone is not given back again
        used = [b"y" * 10_000 for _ in range(9_000)]
        await looks(2 * LOOKS)
        del used
        await looks(2 * LOOKS)
        assert len(trims) == 2, trims
        nursery.cancel_scope.cancel()
trio.run(main)
"""


def test_what_was_given_back_is_given_back_again_only_once_it_was_used() -> None:
    subprocess.run([sys.executable, "-c", AGAIN], check=True, timeout=60)
