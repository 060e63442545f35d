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
