# cython: language_level=3
"""Growing C arrays, and return codes of functions that run without the interpreter's lock."""

from libc.stdint cimport uint64_t
from libc.stdlib cimport realloc

cdef extern from *:
    """
    #include <stdint.h>
    #include <stdlib.h>
    #include <sys/mman.h>
    #include <unistd.h>
    #define PREFETCH(place) __builtin_prefetch(place)
    /* Memory of `size` bytes. The first `large` are filled from their start: large pages, where there are any, save a
       fault for every 4 KiB. */
    static inline void* tsd_large(size_t size, size_t large) {
        char* start = malloc(size);
    #ifdef MADV_HUGEPAGE
        uintptr_t page = (uintptr_t) 2 << 20, first = ((uintptr_t) start + page - 1) & ~(page - 1);
        uintptr_t end = ((uintptr_t) start + large) & ~(page - 1);
        if (start && first < end)
            madvise((void*) first, end - first, MADV_HUGEPAGE);
    #endif
        return start;
    }
    /* Give the whole pages of unused memory back to the kernel. Their contents are lost. */
    static inline void tsd_release(void* start, size_t size) {
    #ifdef MADV_DONTNEED
        uintptr_t page = (uintptr_t) sysconf(_SC_PAGESIZE), first = ((uintptr_t) start + page - 1) & ~(page - 1);
        uintptr_t end = ((uintptr_t) start + size) & ~(page - 1);
        if (first < end)
            madvise((void*) first, end - first, MADV_DONTNEED);
    #endif
    }
    """
    void* tsd_large(size_t size, size_t large) nogil
    void tsd_release(void* start, size_t size) nogil
    void PREFETCH(const void* place) nogil

cdef enum:
    DONE = 0
    UNKNOWN = 2  # unknown name or series
    NO_MEMORY = 4


cdef inline int grow(void** array, Py_ssize_t items, Py_ssize_t size) noexcept nogil:
    """Resize an array to `items` items of `size` bytes. Return NO_MEMORY if that fails; the contents are kept."""
    cdef void* moved = realloc(array[0], items * size)
    if moved == NULL:
        return NO_MEMORY
    array[0] = moved
    return DONE


cdef inline uint64_t larger(uint64_t room, uint64_t wanted) noexcept nogil:
    """Return the next size of an array: half as much again, and at least `wanted`."""
    return max(room + (room >> 1), max(wanted, <uint64_t> 1024))


cdef inline int must(int found) except -1:
    """Raise MemoryError for NO_MEMORY."""
    if found == NO_MEMORY:
        raise MemoryError
    assert found == DONE, found
    return found
