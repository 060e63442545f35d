# cython: language_level=3
"""Columns of points in one block of memory."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport malloc
from libc.string cimport memcpy

from tsd.codec._arrays cimport DONE, NO_MEMORY, tsd_large, tsd_release

cdef enum:
    POINT_BYTES = 21

cdef struct Columns:
    char* start  # the block
    int64_t* instants
    int64_t* bits
    int32_t* series
    uint8_t* flags


cdef inline int new_columns(Columns* columns, Py_ssize_t room, bint large_pages) noexcept nogil:
    """Allocate uninitialized memory for `room` points. Large pages are faster if most of the memory gets filled; the
    two small columns have none, because each column may leave a part of its last page unused."""
    columns.start = <char*> (tsd_large(room * POINT_BYTES, room * 16) if large_pages else malloc(room * POINT_BYTES))
    if columns.start == NULL:
        return NO_MEMORY
    columns.instants = <int64_t*> columns.start
    columns.bits = columns.instants + room
    columns.series = <int32_t*> (columns.bits + room)
    columns.flags = <uint8_t*> (columns.series + room)
    return DONE


cdef inline void copy_columns(Columns* to, Columns* columns, Py_ssize_t count) noexcept nogil:
    """Copy the first `count` points."""
    if count:
        memcpy(to.series, columns.series, count * sizeof(int32_t))
        memcpy(to.instants, columns.instants, count * sizeof(int64_t))
        memcpy(to.flags, columns.flags, count)
        memcpy(to.bits, columns.bits, count * sizeof(int64_t))


cdef inline void release_unused(Columns* columns, Py_ssize_t room, Py_ssize_t count) noexcept nogil:
    """Give the memory behind the first `count` of `room` points back to the kernel."""
    cdef Py_ssize_t unused = room - count
    tsd_release(columns.instants + count, unused * sizeof(int64_t))
    tsd_release(columns.bits + count, unused * sizeof(int64_t))
    tsd_release(columns.series + count, unused * sizeof(int32_t))
    tsd_release(columns.flags + count, unused)


cdef tuple give_away(Columns* columns, Py_ssize_t count)


cdef class Memory:
    cdef char* start
    cdef Py_ssize_t size
    cdef Py_ssize_t stride


cdef inline int64_t wide_value(uint8_t flags, int64_t bits) noexcept nogil:
    """Return the bits of a value, of a double in place of a single. `flags` are those of a point: 8 for a float, and the
    bytes of the value, minus one."""
    cdef uint32_t word
    cdef float single
    cdef double number
    cdef int64_t wide = bits
    if flags == (8 | 3):
        word = <uint32_t> bits
        memcpy(&single, &word, 4)
        number = single
        memcpy(&wide, &number, 8)
    return wide
