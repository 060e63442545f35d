# cython: language_level=3, boundscheck=False, wraparound=False
"""Compiled loops that write points as JSON (see tsd.api.entity_json)."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memchr, memcpy

cdef enum:
    TIME_CHARS = 20  # of the longest time
    POINT_CHARS = 24  # of a point, besides its value
    SERIES_CHARS = 32  # of a series, besides its names and points


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


cdef Py_ssize_t room_of(list heads, Py_ssize_t points, bytes values):
    """Return the most bytes of some series."""
    cdef Py_ssize_t most = PyBytes_GET_SIZE(values) + POINT_CHARS * points + SERIES_CHARS * len(heads)
    cdef bytes head
    for head in heads:
        most += PyBytes_GET_SIZE(head)
    return most


def points_list(list heads, const int64_t[::1] bounds, const int64_t[::1] times_ms, bytes values):
    """See `points_json`. `values` is the JSON list of the values, `bounds` begins with 0."""
    cdef Py_ssize_t size, left = PyBytes_GET_SIZE(values) - 1, at, index
    cdef const char* value = PyBytes_AS_STRING(values) + 1
    cdef bytes head
    cdef char* room
    cdef char* to
    room = to = <char*> PyMem_Malloc(room_of(heads, len(times_ms), values))
    if room == NULL:
        raise MemoryError
    try:
        for at in range(len(heads)):
            head = heads[at]
            to = write(to, PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head))
            to = write(to, b',"dps":{', 8)
            for index in range(bounds[at], bounds[at + 1]):
                to = write(to, b'"', 1)
                to = write_time(to, times_ms[index])
                to = write(to, b'":', 2)
                size = value_size(value, left)
                to = write(to, value, size)
                to = write(to, b",", 1)
                value += size + 1
                left -= size + 1
            to -= bounds[at + 1] > bounds[at]
            to = write(to, b"}}", 2)
        return PyBytes_FromStringAndSize(room, to - room)
    finally:
        PyMem_Free(room)


def newest_list(list heads, const int64_t[::1] times_ms, bytes values):
    """See `newest_json`. `values` is the JSON list of the values."""
    cdef Py_ssize_t size, left = PyBytes_GET_SIZE(values) - 1, at
    cdef const char* value = PyBytes_AS_STRING(values) + 1
    cdef bytes head
    cdef char* room
    cdef char* to
    room = to = <char*> PyMem_Malloc(room_of(heads, len(times_ms), values))
    if room == NULL:
        raise MemoryError
    try:
        for at in range(len(heads)):
            head = heads[at]
            to = write(to, PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head))
            to = write(to, b',"timestamp":', 13)
            to = write_time(to, times_ms[at])
            to = write(to, b',"value":', 9)
            size = value_size(value, left)
            to = write(to, value, size)
            to = write(to, b"}", 1)
            value += size + 1
            left -= size + 1
        return PyBytes_FromStringAndSize(room, to - room)
    finally:
        PyMem_Free(room)
