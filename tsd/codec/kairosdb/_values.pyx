# cython: language_level=3, boundscheck=False, wraparound=False
"""Compiled loop over whole numbers, see `tsd.codec.kairosdb.values`."""

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t


def decode_longs_at(bytes body, bytes starts, bytes lengths):
    """Return the whole numbers at some places of a body as an array of 64 bits, and the index of the first one that
    cannot be read, -1 if all can."""
    cdef Py_ssize_t count = PyBytes_GET_SIZE(starts) // 8, number, size = PyBytes_GET_SIZE(body)
    cdef bytearray found = bytearray(count * 8)
    cdef int64_t* numbers = <int64_t*> PyByteArray_AS_STRING(found)
    cdef const int64_t* starts_at = <const int64_t*> PyBytes_AS_STRING(starts)
    cdef const int64_t* lengths_at = <const int64_t*> PyBytes_AS_STRING(lengths)
    cdef const unsigned char* text = <const unsigned char*> PyBytes_AS_STRING(body)
    cdef uint64_t value, byte
    cdef int64_t at, end
    cdef int shift
    for number in range(count):
        at = starts_at[number]
        end = at + (lengths_at[number] if lengths_at[number] < 10 else 10)
        if at < 0 or end > size:
            return found, number
        value = 0
        shift = 0
        byte = 0x80
        while at < end:
            byte = text[at]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            at += 1
        if byte >= 0x80:
            return found, number
        numbers[number] = <int64_t> (value >> 1 ^ (~(value & 1) + 1))
    return found, -1
