# cython: language_level=3, boundscheck=False, wraparound=False
"""Compiled loop over the values of an answer, see `tsd.store.cassandra.wire`."""

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.string cimport memcmp, memcpy

cdef enum:
    VALUES = 4  # of a cell: key, column, value, timestamp
    STAMP_BYTES = 8
    MS = 1000  # microseconds of a millisecond


cdef inline uint32_t word_at(const unsigned char* text) noexcept:
    return <uint32_t> text[0] << 24 | <uint32_t> text[1] << 16 | <uint32_t> text[2] << 8 | text[3]


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
        length = <int32_t> word_at(text + at)
        at += 4
        starts_at[number] = at
        lengths_at[number] = length
        if length > 0:
            at += length
    return starts, lengths, at if at <= size else -1


def take_cells(bytes body, Py_ssize_t count, bytes partition, list keys, list columns, list values, list times_ms):
    """Append the row key, column, value and write timestamp of each cell of an answer, whose values are key, column,
    value and timestamp in microseconds. Equal keys and columns that follow each other are one object. Return the bytes
    of the values; -1 if the body ends early or has a null: then some cells are appended."""
    cdef const unsigned char* text = <const unsigned char*> PyBytes_AS_STRING(body)
    cdef const char* prefix = PyBytes_AS_STRING(partition)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(body), width = PyBytes_GET_SIZE(partition), at = 0, taken = 0, number
    cdef Py_ssize_t starts[VALUES]
    cdef int32_t lengths[VALUES]
    cdef int part
    cdef const unsigned char* stamp
    cdef int64_t time_us
    cdef bytes key = None, column = None
    for number in range(count):
        for part in range(VALUES):
            if size - at < 4:
                return -1
            lengths[part] = <int32_t> word_at(text + at)
            at += 4
            starts[part] = at
            if lengths[part] < 0 or lengths[part] > size - at:
                return -1
            at += lengths[part]
        if lengths[3] != STAMP_BYTES:
            return -1
        if (
            key is None
            or PyBytes_GET_SIZE(key) != width + lengths[0]
            or memcmp(PyBytes_AS_STRING(key) + width, text + starts[0], lengths[0])
        ):
            key = PyBytes_FromStringAndSize(NULL, width + lengths[0])
            memcpy(PyBytes_AS_STRING(key), prefix, width)
            memcpy(PyBytes_AS_STRING(key) + width, text + starts[0], lengths[0])
        if (
            column is None
            or PyBytes_GET_SIZE(column) != lengths[1]
            or memcmp(PyBytes_AS_STRING(column), text + starts[1], lengths[1])
        ):
            column = PyBytes_FromStringAndSize(<const char*> text + starts[1], lengths[1])
        stamp = text + starts[3]
        time_us = <int64_t> word_at(stamp) << 32 | <int64_t> word_at(stamp + 4)
        keys.append(key)
        columns.append(column)
        values.append(PyBytes_FromStringAndSize(<const char*> text + starts[2], lengths[2]))
        times_ms.append(time_us // MS)
        taken += lengths[2]
    return taken


cdef inline char* put_value(char* at, const char* value, Py_ssize_t size) noexcept:
    """Write a value with its length. Return where it ends."""
    at[0] = <char> (size >> 24)
    at[1] = <char> (size >> 16)
    at[2] = <char> (size >> 8)
    at[3] = <char> size
    memcpy(at + 4, value, size)
    return at + 4 + size


def batches_of(
    object cells, tuple families, Py_ssize_t width, Py_ssize_t longest, bytes stamp, Py_ssize_t most_cells,
    Py_ssize_t most_bytes,
):
    """Return the batches of each partition, the first `width` bytes of a row key: lists of bound values for the put
    statement, with whole rows of up to `most_cells` cells and `most_bytes` of values, or one row. `families` are those
    of the table with their colon, `longest` is the size of a row key, `stamp` the bound write timestamp. None: a cell
    is invalid, or cells of one row do not follow each other in order of their columns."""
    cdef dict found = {}
    cdef set seen = set()
    cdef Py_ssize_t count = len(cells), first = 0, end, at, size, row_size, part_size, taken, value_bytes
    cdef bytes row = None, column, last, value, family, partition, encoded
    cdef list part, batch
    cdef char* into
    cdef const char* key
    cdef bint known
    while first < count:
        row = cells[first][0]
        row_size = PyBytes_GET_SIZE(row)
        if not 0 < row_size <= longest or row in seen:
            return None
        seen.add(row)
        part_size = min(width, row_size)
        key = PyBytes_AS_STRING(row)
        partition = PyBytes_FromStringAndSize(key, part_size)
        part = found.get(partition)
        if part is None:
            part = found[partition] = [[[], 0]]
        end, taken, last = first, 0, None
        while end < count and cells[end][0] == row:
            column, value = cells[end][1], cells[end][2]
            if last is not None and column <= last:
                return None
            known = False
            for family in families:
                known = known or column.startswith(family)
            if not known:
                return None
            taken += PyBytes_GET_SIZE(value)
            last = column
            end += 1
        batch = <list> part[len(part) - 1]
        if <list> batch[0] and (
            len(<list> batch[0]) + end - first > most_cells or <Py_ssize_t> batch[1] + taken > most_bytes
        ):
            batch = [[], 0]
            part.append(batch)
        batch[1] = <Py_ssize_t> batch[1] + taken
        for at in range(first, end):
            column, value = cells[at][1], cells[at][2]
            size = (
                PyBytes_GET_SIZE(stamp) + 16 + PyBytes_GET_SIZE(value) + row_size + PyBytes_GET_SIZE(column)
            )
            encoded = PyBytes_FromStringAndSize(NULL, size)
            into = PyBytes_AS_STRING(encoded)
            memcpy(into, PyBytes_AS_STRING(stamp), PyBytes_GET_SIZE(stamp))
            into = put_value(into + PyBytes_GET_SIZE(stamp), PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
            into = put_value(into, key, part_size)
            into = put_value(into, key + part_size, row_size - part_size)
            put_value(into, PyBytes_AS_STRING(column), PyBytes_GET_SIZE(column))
            (<list> batch[0]).append(encoded)
        first = end
    return {partition: [rows for rows, _ in part] for partition, part in found.items()}
