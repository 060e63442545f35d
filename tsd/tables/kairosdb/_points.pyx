# cython: language_level=3, boundscheck=False, wraparound=False
"""Compiled loop over answers with points, see `tsd.tables.kairosdb.points`."""

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp


cdef inline uint32_t big32(const unsigned char* at) noexcept nogil:
    return <uint32_t> at[0] << 24 | <uint32_t> at[1] << 16 | <uint32_t> at[2] << 8 | at[3]


cdef inline bint varint(const unsigned char* text, int32_t length, uint64_t* value) noexcept nogil:
    """Read a whole number of at most ten bytes. Return whether it ends."""
    cdef int32_t at
    value[0] = 0
    for at in range(length if length < 10 else 10):
        value[0] |= (<uint64_t> (text[at] & 0x7F)) << 7 * at
        if text[at] < 0x80:
            value[0] = value[0] >> 1 ^ (~(value[0] & 1) + 1)
            return True
    return False


def decode_points(bytes body, Py_ssize_t rows, bint keyed, dict doubles):
    """Return columns and bits of points as arrays of 64 bits, the key and the index of the first point of each row of
    points, and the bytes of columns and values. `doubles` says of each key whether its values are doubles; without
    `keyed` the points are of its only key. Return None for an answer with anything else than such points."""
    cdef bytearray columns = bytearray(rows * 8)
    cdef bytearray bits = bytearray(rows * 8)
    cdef int64_t* columns_at = <int64_t*> PyByteArray_AS_STRING(columns)
    cdef uint64_t* bits_at = <uint64_t*> PyByteArray_AS_STRING(bits)
    cdef const unsigned char* text = <const unsigned char*> PyBytes_AS_STRING(body)
    cdef const unsigned char* key_at = NULL
    cdef Py_ssize_t size = PyBytes_GET_SIZE(body), at = 0, number, total = 0
    cdef int32_t length, key_length = -1
    cdef bint is_double = False
    cdef list keys = [], firsts = []
    if not keyed:
        [(key, is_double)] = doubles.items()
        if rows:
            keys.append(key)
            firsts.append(0)
    for number in range(rows):
        if keyed:
            if size - at < 4:
                return None
            length = <int32_t> big32(text + at)
            at += 4
            if length < 0 or size - at < length:
                return None
            if length != key_length or memcmp(text + at, key_at, length):
                key_at, key_length = text + at, length
                key = PyBytes_FromStringAndSize(<const char*> key_at, length)
                found = doubles.get(key)
                if found is None:
                    return None
                is_double = found
                keys.append(key)
                firsts.append(number)
            at += length
        if size - at < 12 or big32(text + at) != 4:
            return None
        columns_at[number] = big32(text + at + 4)
        length = <int32_t> big32(text + at + 8)
        at += 12
        if length < 0 or size - at < length:
            return None
        if is_double:
            if length < 8:
                return None
            bits_at[number] = <uint64_t> big32(text + at) << 32 | big32(text + at + 4)
        elif not varint(text + at, length, &bits_at[number]):
            return None
        at += length
        total += 4 + length
    return (columns, bits, keys, firsts, total) if at == size else None
