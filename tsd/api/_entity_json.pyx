# cython: language_level=3, boundscheck=False, wraparound=False
"""Compiled loops that write points as JSON (see tsd.api.entity_json)."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memchr, memcpy

cdef enum:
    TIME_CHARS = 20  # of the longest time
    POINT_CHARS = 24  # of a point, besides its value
    NEWEST_CHARS = 48  # besides names and value


cdef inline char* write_time(char* to, int64_t time) noexcept nogil:
    """Write a number; return the position after it."""
    cdef char digits[TIME_CHARS]
    cdef uint64_t left
    cdef int count = 0
    if time < 0:
        to[0] = b"-"
        to += 1
    left = <uint64_t> -time if time < 0 else <uint64_t> time
    while True:
        digits[count] = <char> (48 + left % 10)
        count += 1
        left //= 10
        if not left:
            break
    while count:
        count -= 1
        to[0] = digits[count]
        to += 1
    return to


cdef inline char* write(char* to, const char* text, Py_ssize_t size) noexcept nogil:
    memcpy(to, text, size)
    return to + size


cdef inline Py_ssize_t value_size(const char* at, Py_ssize_t left) noexcept nogil:
    """Return the length of a value, which ends at a comma or at the end of the list."""
    cdef const char* comma = <const char*> memchr(at, b",", left)
    return comma - at if comma != NULL else left - 1


def points_object(list points, bytes values):
    """See `points_json`. `values` is the JSON list of the values."""
    cdef Py_ssize_t size, left = PyBytes_GET_SIZE(values) - 1
    cdef const char* value = PyBytes_AS_STRING(values) + 1
    cdef char* room = <char*> PyMem_Malloc(PyBytes_GET_SIZE(values) + POINT_CHARS * len(points) + 2)
    cdef char* to = room
    cdef int64_t time
    cdef tuple point
    if room == NULL:
        raise MemoryError
    try:
        to = write(to, b"{", 1)
        for point in points:
            time = point[0]
            to = write(to, b'"', 1)
            to = write_time(to, time)
            to = write(to, b'":', 2)
            size = value_size(value, left)
            to = write(to, value, size)
            to = write(to, b",", 1)
            value += size + 1
            left -= size + 1
        to -= len(points) > 0
        to = write(to, b"}", 1)
        return PyBytes_FromStringAndSize(room, to - room)
    finally:
        PyMem_Free(room)


def newest_list(list heads, list times_ms, bytes values):
    """See `newest_json`. `values` is the JSON list of the values; there is one at least."""
    cdef Py_ssize_t size, left = PyBytes_GET_SIZE(values) - 1, at
    cdef const char* value = PyBytes_AS_STRING(values) + 1
    cdef Py_ssize_t most = PyBytes_GET_SIZE(values) + NEWEST_CHARS * len(heads) + 2
    cdef bytes head
    cdef char* room
    cdef char* to
    cdef int64_t time
    for head in heads:
        most += PyBytes_GET_SIZE(head)
    room = to = <char*> PyMem_Malloc(most)
    if room == NULL:
        raise MemoryError
    try:
        to = write(to, b"[", 1)
        for at in range(len(heads)):
            head, time = heads[at], times_ms[at]
            to = write(to, PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head))
            to = write(to, b',"timestamp":', 13)
            to = write_time(to, time)
            to = write(to, b',"value":', 9)
            size = value_size(value, left)
            to = write(to, value, size)
            to = write(to, b"},", 2)
            value += size + 1
            left -= size + 1
        to[-1] = b"]"
        return PyBytes_FromStringAndSize(room, to - room)
    finally:
        PyMem_Free(room)
