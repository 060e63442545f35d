"""How much freed memory the process keeps for itself instead of giving it back to the kernel at once.

glibc's malloc gives back what is free at the heap's end as soon as it is 128 KiB, and maps large blocks one by one.
What reads pages of megabytes again and again then has every page of memory zeroed and faulted in anew: half the time of
a scan on the machine where this was measured.

Each heap keeps that much, and malloc makes up to eight for every core, one thread's after another's: what threads gave
back lay in seven of them by 4 to 8 MiB each after hours' worth of points on two cores. So there are few heaps. Threads
seldom meet in one: Python's hold its lock.

What is free in the middle of a heap, malloc gives back when it is told to. After a million new series that was 50 MiB,
an eighth of all that the process held; to give it back took 3 ms.
"""

import ctypes
from collections import deque
from contextlib import suppress

import trio

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # malloc.h
KEPT_BYTES = 12 << 20  # at the end of each heap
LARGEST_BYTES = 16 << 20  # of a block that comes from a heap
HEAPS = 2

EVERY_S = 2.0  # from one look at what is free to the next
LOOKS = 7  # in a row that find so much free, over more than a window: what one frees, the next ones use
SPARE_BYTES = 16 << 20  # free in all heaps: of less nothing is given back


class _Figures(ctypes.Structure):
    """malloc.h's `struct mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    )


def keep_freed_memory() -> bool:
    """Have malloc keep some megabytes, in few heaps; whether it can be told so (other C libraries than glibc cannot).

    To be called before there are threads.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        wanted = ((M_ARENA_MAX, HEAPS), (M_TRIM_THRESHOLD, KEPT_BYTES), (M_MMAP_THRESHOLD, LARGEST_BYTES))
        return all(mallopt(option, value) for option, value in wanted)
    return False


class SpareMemory:
    """What malloc holds and nobody uses. Other C libraries than glibc from 2.33 on do not tell: then there is none."""

    def __init__(self) -> None:
        self._told = None
        library = ctypes.CDLL(None)
        with suppress(AttributeError):
            self._trim, self._told = library.malloc_trim, library.mallinfo2
            self._trim.argtypes = [ctypes.c_size_t]
            self._told.restype = _Figures

    def size(self) -> int:
        """In bytes."""
        return self._told().fordblks if self._told is not None else 0

    async def give_back(self, every_s: float = EVERY_S) -> None:
        """For ever: give back to the kernel what has been free for some looks, once. It is free to malloc still, who
        does not tell it from what is there."""
        seen: deque[int] = deque(maxlen=LOOKS)
        given = 0
        while self._told is not None:
            await trio.sleep(every_s)
            seen.append(await trio.to_thread.run_sync(self.size))  # it goes through all that is free
            given = min(given, seen[-1])  # the rest is in use again
            if len(seen) == LOOKS and min(seen) > given + SPARE_BYTES:
                await trio.to_thread.run_sync(self._trim, KEPT_BYTES)
                given = seen[-1]
                seen.clear()
