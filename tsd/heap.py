"""How much freed memory the process keeps for itself instead of giving it back to the kernel at once.

glibc's malloc gives back what is free at the heap's end as soon as it is 128 KiB, and maps large blocks one by one.
What reads pages of megabytes again and again then has every page of memory zeroed and faulted in anew: half the time of
a scan on the machine where this was measured.

Each heap keeps that much, and malloc makes up to eight for every core, one thread's after another's: what threads gave
back lay in seven of them by 4 to 8 MiB each after hours' worth of points on two cores. So there are few heaps. Threads
seldom meet in one: Python's hold its lock.
"""

import ctypes
from contextlib import suppress

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # malloc.h
KEPT_BYTES = 12 << 20  # at the end of each heap
LARGEST_BYTES = 16 << 20  # of a block that comes from a heap
HEAPS = 2


def keep_freed_memory() -> bool:
    """Have malloc keep some megabytes, in few heaps; whether it can be told so (other C libraries than glibc cannot).

    To be called before there are threads.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        wanted = ((M_ARENA_MAX, HEAPS), (M_TRIM_THRESHOLD, KEPT_BYTES), (M_MMAP_THRESHOLD, LARGEST_BYTES))
        return all(mallopt(option, value) for option, value in wanted)
    return False
