# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Compiled loops that take put lines apart and join them again (see `tsd.ingest.journal.line_columns`)."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcpy

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #ifdef __SSE2__
    #include <emmintrin.h>
    #endif
    /* Return a bit for each of the next 64 bytes, the lowest one for the first: whether it is a space. */
    static inline uint64_t tsd_spaces(const char* at) {
        uint64_t found = 0;
        int i;
    #ifdef __SSE2__
        for (i = 0; i < 4; i++) {
            __m128i part = _mm_loadu_si128((const __m128i*) (at + 16 * i));
            found |= (uint64_t) (uint32_t) _mm_movemask_epi8(_mm_cmpeq_epi8(part, _mm_set1_epi8(' '))) << (16 * i);
        }
    #else
        for (i = 0; i < 64; i++)
            found |= (uint64_t) (at[i] == ' ') << i;
    #endif
        return found;
    }
    static inline int tsd_first(uint64_t bits) { return __builtin_ctzll(bits); }
    """
    uint64_t tsd_spaces(const char* at) noexcept nogil
    int tsd_first(uint64_t bits) noexcept nogil

cdef enum:
    WIDE = 64  # bytes that are searched at once
    SPACES = 4  # of a line, at least

cdef struct Parts:
    char* names
    char* times
    char* values


cdef inline bint find_spaces(const char* at, const char* end, const char** after) noexcept nogil:
    """Write the places after the first spaces before `end`. Return False if there are fewer than SPACES."""
    cdef uint64_t found
    cdef int count = 0
    if end - at >= WIDE:
        found = tsd_spaces(at)
        while found and count < SPACES:
            after[count] = at + tsd_first(found) + 1
            found &= found - 1
            count += 1
        at += WIDE
    while count < SPACES:
        at = <const char*> memchr(at, 32, end - at) if at < end else NULL
        if at == NULL:
            return False
        at += 1
        after[count] = at
        count += 1
    return True


cdef inline char* copied(char* to, const char* start, const char* end) noexcept nogil:
    memcpy(to, start, end - start)
    return to + (end - start)


def apart(bytes text not None):
    """Return names, times and values of lines; None if one of them lacks spaces or its end. Raise MemoryError."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(text)
    cdef const char* at = PyBytes_AS_STRING(text)
    cdef const char* end = at + size
    cdef const char* after[SPACES]
    cdef const char* line_end
    cdef Parts to
    cdef bint is_split = True
    cdef char* room = <char*> malloc(3 * size + 1)
    if room == NULL:
        raise MemoryError
    to.names, to.times, to.values = room, room + size, room + 2 * size
    with nogil:
        while at < end:
            line_end = <const char*> memchr(at, 10, end - at)
            if line_end == NULL or not find_spaces(at, line_end, after):
                is_split = False
                break
            line_end += 1
            to.names = copied(copied(to.names, at, after[1]), after[3], line_end)
            to.times = copied(to.times, after[1], after[2])
            to.values = copied(to.values, after[2], after[3])
            at = line_end
    try:
        if not is_split:
            return None
        return room[: to.names - room], room[size : to.times - room], room[2 * size : to.values - room]
    finally:
        free(room)


def together(bytes names not None, bytes times not None, bytes values not None):
    """Return the lines that were taken apart. Raise ValueError if these are not their parts."""
    cdef const char* at = PyBytes_AS_STRING(names)
    cdef const char* end = at + PyBytes_GET_SIZE(names)
    cdef const char* time = PyBytes_AS_STRING(times)
    cdef const char* times_end = time + PyBytes_GET_SIZE(times)
    cdef const char* value = PyBytes_AS_STRING(values)
    cdef const char* values_end = value + PyBytes_GET_SIZE(values)
    cdef const char* line_end
    cdef const char* name_end
    cdef const char* time_end
    cdef const char* value_end
    cdef bytes lines = PyBytes_FromStringAndSize(NULL, PyBytes_GET_SIZE(names) + len(times) + len(values))
    cdef char* to = PyBytes_AS_STRING(lines)
    cdef bint is_whole = True
    with nogil:
        while at < end:
            line_end = <const char*> memchr(at, 10, end - at)
            time_end = <const char*> memchr(time, 32, times_end - time) if time < times_end else NULL
            value_end = <const char*> memchr(value, 32, values_end - value) if value < values_end else NULL
            name_end = <const char*> memchr(at, 32, line_end - at) if line_end != NULL else NULL
            if name_end != NULL:
                name_end = <const char*> memchr(name_end + 1, 32, line_end - name_end - 1)
            if name_end == NULL or time_end == NULL or value_end == NULL:
                is_whole = False
                break
            to = copied(to, at, name_end + 1)
            to = copied(to, time, time_end + 1)
            to = copied(to, value, value_end + 1)
            to = copied(to, name_end + 1, line_end + 1)
            at, time, value = line_end + 1, time_end + 1, value_end + 1
    if not is_whole or time != times_end or value != values_end:
        raise ValueError("names, times and values do not fit together")
    return lines
