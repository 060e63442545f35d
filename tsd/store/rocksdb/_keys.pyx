# cython: language_level=3, boundscheck=False, wraparound=False
"""Compiled loops that encode cells for RocksDB (see tsd.store.rocksdb.keys)."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_SIZE
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcmp, memcpy

cdef extern from "Python.h":
    PyObject* PyTuple_GET_ITEM(object, Py_ssize_t)


cdef inline bytes item(object cell, Py_ssize_t at):
    """Return one field of a tuple. Raise TypeError if the field is missing or not bytes."""
    if not PyTuple_Check(cell) or PyTuple_GET_SIZE(cell) <= at:
        raise TypeError(f"not a cell: {cell!r}")
    return <bytes?> <object> PyTuple_GET_ITEM(cell, at)


cdef Py_ssize_t zeros(const char* text, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t found = 0, at
    for at in range(size):
        found += text[at] == 0
    return found


cdef char* escape(char* to, const char* text, Py_ssize_t size) noexcept nogil:
    """Write a row, escaped and with its end mark, as the start of a key; return the position after it."""
    cdef Py_ssize_t at
    for at in range(size):
        to[0] = text[at]
        to += 1
        if text[at] == 0:
            to[0] = <char> 0xFF
            to += 1
    to[0], to[1] = 0, 1
    return to + 2


cdef bytes key_of(bytes row, bytes column):
    cdef const char* text = PyBytes_AS_STRING(row)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(row), more = PyBytes_GET_SIZE(column)
    cdef bytes made = PyBytes_FromStringAndSize(NULL, size + zeros(text, size) + 2 + more)
    memcpy(escape(PyBytes_AS_STRING(made), text, size), PyBytes_AS_STRING(column), more)
    return made


cdef inline bytes joined(bytes first, bytes second):
    cdef Py_ssize_t ahead = PyBytes_GET_SIZE(first), more = PyBytes_GET_SIZE(second)
    cdef bytes made = PyBytes_FromStringAndSize(NULL, ahead + more)
    memcpy(PyBytes_AS_STRING(made), PyBytes_AS_STRING(first), ahead)
    memcpy(PyBytes_AS_STRING(made) + ahead, PyBytes_AS_STRING(second), more)
    return made


def put_cells(
    put,
    cells not None,
    bytes stamp not None,
    Py_ssize_t short_bytes,
    Py_ssize_t long_bytes,
    Py_ssize_t longest_row,
    digest_of,
    pack,
    put_other,
):
    """Call `put` with the key and the stored value of each cell. `digest_of` and `pack` give the digest and the packed
    form of columns with `long_bytes` or more. `put_other` is called with a cell that has no packed form which is
    shorter, with other columns of `short_bytes` or more, and with an invalid row key."""
    cdef bytes row, column, value, packed
    cdef Py_ssize_t size
    for cell in cells:
        row, column, value = item(cell, 0), item(cell, 1), item(cell, 2)
        size = PyBytes_GET_SIZE(column)
        if not 0 < PyBytes_GET_SIZE(row) <= longest_row:
            put_other(cell)
        elif size < short_bytes:
            put(key_of(row, column), joined(stamp, value))
        elif size < long_bytes:
            put_other(cell)
        else:
            packed = pack(column, value)
            if packed is not None and PyBytes_GET_SIZE(packed) < size + PyBytes_GET_SIZE(value):
                put(key_of(row, digest_of(column)), joined(stamp, packed))
            else:
                put_other(cell)


cdef inline bint begins(bytes text, bytes start):
    cdef Py_ssize_t size = PyBytes_GET_SIZE(start)
    return PyBytes_GET_SIZE(text) >= size and not memcmp(PyBytes_AS_STRING(text), PyBytes_AS_STRING(start), size)


cdef inline int64_t time_of(bytes value) except -1:
    cdef const unsigned char* at = <const unsigned char*> PyBytes_AS_STRING(value)
    cdef int64_t time = 0
    cdef int place
    if PyBytes_GET_SIZE(value) < 8:
        raise ValueError(f"not a stored value: {value.hex()}")
    for place in range(8):
        time = time << 8 | at[place]
    return time


def row_cells(
    at, bytes row not None, Py_ssize_t most, bint is_after_row, Py_ssize_t digest_bytes, unsigned char mark, decode
):
    """Read the cells of a row, in order of their keys, with an iterator, which is behind the row then. Return their
    keys, the column, the value and the timestamp of each, and the bytes of columns and values; None if there are more
    than `most`. `is_after_row`: the iterator is behind the cells of some row, often the one before. `decode` gives
    column and stored value of a cell that has a digest in its key."""
    cdef bytes prefix = key_of(row, b""), key, column, value
    cdef Py_ssize_t cut = PyBytes_GET_SIZE(prefix), size = 0
    cdef list keys = [], cells = []
    if not is_after_row or not at.valid() or not begins(at.key(), prefix):
        at.seek(prefix)
    while at.valid():
        key = at.key()
        if not begins(key, prefix):
            break
        if len(keys) == most:
            return None
        column, value = key[cut:], at.value()
        if PyBytes_GET_SIZE(column) == digest_bytes and <unsigned char> PyBytes_AS_STRING(column)[digest_bytes - 1] == mark:
            column, value = decode(column, value)
        size += PyBytes_GET_SIZE(column) + PyBytes_GET_SIZE(value)
        cells.append((column, value[8:], time_of(value)))
        keys.append(key)
        at.next()
    return keys, cells, size


def keys_of(places not None, Py_ssize_t short_bytes, list others not None):
    """Return the key of each row and column, and append to `others` the indexes of columns with `short_bytes` or
    more."""
    cdef bytes column
    cdef list keys = []
    for place in places:
        column = item(place, 1)
        if PyBytes_GET_SIZE(column) >= short_bytes:
            others.append(len(keys))
        keys.append(key_of(item(place, 0), column))
    return keys


def find_digests(list columns not None, Py_ssize_t since, Py_ssize_t size, unsigned char mark):
    """Return the indexes, from `since` on, of columns that have `size` bytes and end with `mark`."""
    cdef Py_ssize_t at
    cdef bytes column
    cdef list found = []
    for at in range(since, len(columns)):
        column = columns[at]
        if PyBytes_GET_SIZE(column) == size and <unsigned char> PyBytes_AS_STRING(column)[size - 1] == mark:
            found.append(at)
    return found


def slices(bytes text not None, const int32_t[::1] ends, Py_ssize_t first, Py_ssize_t last):
    """See tsd.store.rocksdb.keys.slices."""
    cdef const char* start = PyBytes_AS_STRING(text)
    cdef Py_ssize_t at
    cdef list found = []
    for at in range(first, last):
        found.append(PyBytes_FromStringAndSize(start + ends[at], ends[at + 1] - ends[at]))
    return found
