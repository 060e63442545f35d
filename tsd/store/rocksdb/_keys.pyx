# cython: language_level=3, boundscheck=False, wraparound=False
"""Compiled loops that encode cells for RocksDB (see tsd.store.rocksdb.keys)."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_SIZE
from libc.stdint cimport int32_t
from libc.string cimport memcpy

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


def put_cells(put, cells not None, bytes stamp not None, Py_ssize_t short_bytes, Py_ssize_t longest_row, put_other):
    """Call `put` with the key and the stored value of each cell, or `put_other` with the cell if its column has
    `short_bytes` or more or its row key is invalid."""
    cdef bytes row, column, value, content
    cdef Py_ssize_t ahead = PyBytes_GET_SIZE(stamp)
    for cell in cells:
        row, column, value = item(cell, 0), item(cell, 1), item(cell, 2)
        if PyBytes_GET_SIZE(column) >= short_bytes or not 0 < PyBytes_GET_SIZE(row) <= longest_row:
            put_other(cell)
            continue
        content = PyBytes_FromStringAndSize(NULL, ahead + PyBytes_GET_SIZE(value))
        memcpy(PyBytes_AS_STRING(content), PyBytes_AS_STRING(stamp), ahead)
        memcpy(PyBytes_AS_STRING(content) + ahead, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
        put(key_of(row, column), content)


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
