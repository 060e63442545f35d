# cython: language_level=3, boundscheck=False, wraparound=False
"""Compiled loops that read rows of the tables of entities (see tsd.tables.entity_decode)."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

cdef enum:
    FLOAT = 8  # of the flags of a point: its type, and the length of its number - 1
    LENGTH = 7


cdef inline uint64_t bits_of(const unsigned char* at, Py_ssize_t size) noexcept nogil:
    cdef uint64_t found = 0
    cdef Py_ssize_t i
    for i in range(size):
        found = found << 8 | at[i]
    return found


cdef inline object number(const unsigned char* at, Py_ssize_t size):
    """Return the number of a point's cell, None if it is not one."""
    cdef Py_ssize_t width = size - 1
    cdef uint64_t bits
    cdef uint32_t small
    cdef float single
    cdef double double_value
    if size < 2 or at[0] & ~(FLOAT | LENGTH) or (at[0] & LENGTH) != width - 1:
        return None
    bits = bits_of(at + 1, width)
    if at[0] & FLOAT:
        if width == 4:
            small = <uint32_t> bits
            memcpy(&single, &small, 4)
            return <double> single
        if width == 8:
            memcpy(&double_value, &bits, 8)
            return double_value
        return None
    if width == 1:
        return <int8_t> bits
    if width == 2:
        return <int16_t> bits
    if width == 4:
        return <int32_t> bits
    if width == 8:
        return <int64_t> bits
    return None


def numbers(const int64_t[::1] ends, bytes values):
    """See `numbers_of`. Return None for a value that is not one of a point."""
    cdef const unsigned char* text = <const unsigned char*> PyBytes_AS_STRING(values)
    cdef Py_ssize_t index
    cdef int64_t begin = 0
    cdef list found = []
    for index in range(len(ends)):
        shown = number(text + begin, ends[index] - begin)
        if shown is None:
            return None
        found.append(shown)
        begin = ends[index]
    return found


def decode_rows(
    object places, const int64_t[::1] bounds, const int64_t[::1] times_ms, const int64_t[::1] ends, bytes values,
    object series_of,
):
    """See `decode_rows_python`. Return None for a value that is not one of a point."""
    cdef const unsigned char* text = <const unsigned char*> PyBytes_AS_STRING(values)
    cdef Py_ssize_t at = 0, index, first, last
    cdef int64_t begin, end
    cdef bytes row, column, name = None
    cdef dict metadata = None, series = None
    cdef list found = [], points
    for row, column in places:
        if name is None or row != name:
            name, metadata, series = row, {}, {}
            found.append((row, metadata, series))
        first, last = bounds[at], bounds[at + 1]
        at += 1
        begin = ends[first - 1] if first else 0
        if PyBytes_GET_SIZE(column) > 1 and memcmp(PyBytes_AS_STRING(column), b"m:", 2) == 0:
            if last > first:
                begin = ends[last - 2] if last > 1 else 0
                key = column[2:].decode("latin-1")
                metadata[key] = values[begin : ends[last - 1]].decode("utf-8", "replace")
            continue
        points = []
        for index in range(first, last):
            end = ends[index]
            shown = number(text + begin, end - begin)
            if shown is None:
                return None
            points.append((times_ms[index], shown))
            begin = end
        series[series_of(column)] = points
    return found
