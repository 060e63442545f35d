# cython: language_level=3, boundscheck=False, wraparound=False
"""The compiled twin of the loop that takes apart what an engine's scan yields (see tsd.store.keyvalue)."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memchr, memcpy


def split_cells(list part, list keys, list columns, list values):
    """Append row, column and value of each (key, value) to the lists; how many bytes they are in all.

    What ends no row is a row as it is, with an empty column: its reader finds out.
    """
    cdef Py_ssize_t size = 0, length, at, filled
    cdef const char* text
    cdef const char* zero
    cdef char* row
    cdef bytes key, value, last = b"", made = b"", head = b""
    for key, value in part:
        length = PyBytes_GET_SIZE(key)
        size += length + PyBytes_GET_SIZE(value)
        text = PyBytes_AS_STRING(key)
        made = PyBytes_FromStringAndSize(NULL, length)
        row = PyBytes_AS_STRING(made)
        at = filled = 0
        while True:
            zero = <const char*> memchr(text + at, 0, length - at) if at < length else NULL
            if zero == NULL:
                memcpy(row + filled, text + at, length - at)
                filled += length - at
                at = length
                break
            memcpy(row + filled, text + at, zero - text - at)
            filled += zero - text - at
            at = zero - text + 1
            if at < length and text[at] == 1:
                at += 1
                break
            row[filled] = 0
            filled += 1
            if at < length and <unsigned char> text[at] == 0xFF:
                at += 1
        keys.append(PyBytes_FromStringAndSize(row, filled))
        columns.append(PyBytes_FromStringAndSize(text + at, length - at))
        values.append(value)
    return size


cdef inline unsigned int word(const unsigned char* at) noexcept nogil:
    return <unsigned int> at[0] << 24 | <unsigned int> at[1] << 16 | <unsigned int> at[2] << 8 | at[3]


cdef inline long long longer(const unsigned char* at) noexcept nogil:
    return <long long> (<unsigned long long> word(at) << 32 | word(at + 4))


cdef Py_ssize_t parse_row(
    const unsigned char* text, Py_ssize_t at, Py_ssize_t have, list keys, list columns, list values, list times_ms
) except -3:
    """Add one row; where it ends, -1 where it has not come whole, -2 where it is no row as Hbase.thrift has it."""
    cdef Py_ssize_t count, column, value, end, i
    cdef bytes key
    if at + 7 > have:
        return -1
    if text[at] != 11 or text[at + 1] != 0 or text[at + 2] != 1:
        return -2
    end = at + 7 + word(text + at + 3)
    if end + 9 > have:
        return -1
    key = PyBytes_FromStringAndSize(<const char*> text + at + 7, end - at - 7)
    if text[end] != 13 or text[end + 1] != 0 or text[end + 2] != 2 or text[end + 3] != 11 or text[end + 4] != 12:
        return -2
    count = word(text + end + 5)
    at = end + 9
    for i in range(count):
        if at + 4 > have:
            return -1
        column = at + 4
        at = column + word(text + at)
        if at + 7 > have:
            return -1
        if text[at] != 11 or text[at + 1] != 0 or text[at + 2] != 1:
            return -2
        value = at + 7
        end = value + word(text + at + 3)
        if end + 12 > have:
            return -1
        if text[end] != 10 or text[end + 1] != 0 or text[end + 2] != 2 or text[end + 11] != 0:
            return -2
        keys.append(key)
        columns.append(PyBytes_FromStringAndSize(<const char*> text + column, at - column))
        values.append(PyBytes_FromStringAndSize(<const char*> text + value, end - value))
        times_ms.append(longer(text + end + 3))
        at = end + 12
    if at + 1 > have:
        return -1
    return at + 1 if text[at] == 0 else -2


def parse_rows(
    const unsigned char[::1] room, Py_ssize_t at, Py_ssize_t have, Py_ssize_t wanted,
    list keys, list columns, list values, list times_ms,
):
    """Add up to `wanted` rows of an answer, of which `have` bytes have come, from a place on; how many were whole,
    where they end, and whether what follows can be a row at all."""
    cdef Py_ssize_t done = 0, end, held
    while done < wanted:
        held = len(keys)
        end = parse_row(&room[0], at, have, keys, columns, values, times_ms)
        if end < 0:
            del keys[held:]
            del columns[held:]
            del values[held:]
            del times_ms[held:]
            return done, at, end == -1
        at = end
        done += 1
    return done, at, True
