"""How much freed memory the process keeps for itself instead of giving it back to the kernel at once.

glibc's malloc gives back what is free at the heap's end as soon as it is 128 KiB, and maps large blocks one by one.
What reads pages of megabytes again and again then has every page of memory zeroed and faulted in anew: half the time of
a scan on the machine where this was measured.
"""

import ctypes
from contextlib import suppress

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
KEPT_BYTES = 12 << 20  # at the end of each heap
LARGEST_BYTES = 16 << 20  # of a block that comes from a heap


def keep_freed_memory() -> bool:
    """Have malloc keep some megabytes; whether it can be told so (other C libraries than glibc cannot)."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        return bool(mallopt(M_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(M_MMAP_THRESHOLD, LARGEST_BYTES))
    return False
