# cython: language_level=3, boundscheck=False, wraparound=False
"""Compiled loop over the values of an answer, see `tsd.store.cassandra.wire`."""

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint32_t


def find_each(bytes body, Py_ssize_t count):
    """Return where the first values of a body start, their lengths, both as arrays of 64 bits, and where the last one
    ends. It is -1 if the body ends before."""
    cdef bytearray starts = bytearray(count * 8)
    cdef bytearray lengths = bytearray(count * 8)
    cdef int64_t* starts_at = <int64_t*> PyByteArray_AS_STRING(starts)
    cdef int64_t* lengths_at = <int64_t*> PyByteArray_AS_STRING(lengths)
    cdef const unsigned char* text = <const unsigned char*> PyBytes_AS_STRING(body)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(body), at = 0, number
    cdef int32_t length
    for number in range(count):
        if size - at < 4:
            return starts, lengths, -1
        length = <int32_t> (
            <uint32_t> text[at] << 24 | <uint32_t> text[at + 1] << 16 | <uint32_t> text[at + 2] << 8 | text[at + 3]
        )
        at += 4
        starts_at[number] = at
        lengths_at[number] = length
        if length > 0:
            at += length
    return starts, lengths, at if at <= size else -1
