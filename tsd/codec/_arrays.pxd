# cython: language_level=3
"""Growing C arrays, and return codes of functions that run without the interpreter's lock."""

from libc.stdint cimport uint64_t
from libc.stdlib cimport realloc

cdef extern from *:
    """
    #include <stdint.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/mman.h>
    #include <unistd.h>
    #ifdef __GLIBC__
    #include <malloc.h>
    #endif
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
    #define TSD_MAPPED_BYTES ((size_t) 256 << 10)
    #define TSD_ALWAYS_MAPPED ((size_t) 1 << 30) /* no heap has so much free memory in one piece */
    /* Memory that is kept for long. A large block gets a mapping of its own: in a heap it would lie between blocks that
       are soon freed, and each growth would leave a gap. glibc keeps blocks mapped that were mapped at first. */
    static inline void* tsd_kept(size_t size) {
    #ifdef __GLIBC__
        if (size >= TSD_MAPPED_BYTES && size < TSD_ALWAYS_MAPPED) {
            void* mapped = malloc(TSD_ALWAYS_MAPPED); /* of which no page is used */
            void* cut = mapped ? realloc(mapped, size) : NULL;
            if (cut)
                return cut;
            free(mapped);
        }
    #endif
        return malloc(size);
    }
    /* Resize memory that is kept for long. */
    static inline void* tsd_resize_kept(void* start, size_t size) {
    #ifdef __GLIBC__
        size_t had = malloc_usable_size(start); /* 0: there is none */
        if (had < TSD_MAPPED_BYTES && size >= TSD_MAPPED_BYTES) {
            void* moved = tsd_kept(size);
            if (moved && start)
                memcpy(moved, start, had);
            if (moved)
                free(start);
            return moved;
        }
    #endif
        return realloc(start, size);
    }
    """
    void* tsd_large(size_t size, size_t large) nogil
    void tsd_release(void* start, size_t size) nogil
    void* tsd_kept(size_t size) nogil
    void* tsd_resize_kept(void* start, size_t size) nogil
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


cdef inline int grow_kept(void** array, Py_ssize_t items, Py_ssize_t size) noexcept nogil:
    """Resize an array that is kept for long, as `grow` does."""
    cdef void* moved = tsd_resize_kept(array[0], items * size)
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
