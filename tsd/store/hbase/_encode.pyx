# cython: language_level=3, boundscheck=False, wraparound=False
"""Compiled encoder of put requests (see tsd.store.hbase.thrift_codec)."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from tsd.store.rules import check_column, check_row

cdef enum:
    BOOL = 2
    I64 = 10
    STRING = 11
    STRUCT = 12
    MAP = 13
    LIST = 15
    FIELD = 3  # bytes of a field's type and number
    WORD = 4
    LONGEST_HBASE_KEY = 32767
    ROW = FIELD + WORD + FIELD + 1 + WORD + 1  # bytes of a BatchMutation without its row and mutations
    CELL = 4 + FIELD + WORD + FIELD + WORD + 4 + 1  # bytes of a Mutation without its column and value


cdef inline char* put_word(char* at, Py_ssize_t number) noexcept nogil:
    at[0], at[1], at[2], at[3] = <char> (number >> 24), <char> (number >> 16), <char> (number >> 8), <char> number
    return at + WORD


cdef inline char* put_field(char* at, char kind, char number) noexcept nogil:
    at[0], at[1], at[2] = kind, 0, number
    return at + FIELD


cdef inline char* put_bool(char* at, char number, char value) noexcept nogil:
    put_field(at, BOOL, number)
    at[FIELD] = value
    return at + FIELD + 1


cdef inline char* put_text(char* at, bytes text):
    cdef Py_ssize_t size = PyBytes_GET_SIZE(text)
    memcpy(put_word(at, size), PyBytes_AS_STRING(text), size)
    return at + WORD + size


cdef inline bint same(bytes one, bytes other):
    cdef Py_ssize_t size = PyBytes_GET_SIZE(one)
    return one is other or (
        size == PyBytes_GET_SIZE(other) and memcmp(PyBytes_AS_STRING(one), PyBytes_AS_STRING(other), size) == 0
    )


cdef Py_ssize_t size_of(list cells, Py_ssize_t* rows) except -1:
    """Return the encoded size of `cells`, and set the number of rows. Raise as `check_row` and `check_column` do."""
    cdef Py_ssize_t size = 0, length
    cdef bytes row, column, value, last = b""
    for cell in cells:
        if not PyTuple_Check(cell) or PyTuple_GET_SIZE(cell) != 3:
            raise TypeError(f"a cell is a row, a column and a value, not {cell!r}")
        row, column = <object> PyTuple_GET_ITEM(cell, 0), <object> PyTuple_GET_ITEM(cell, 1)
        value = <object> PyTuple_GET_ITEM(cell, 2)
        if row is None or column is None or value is None:
            raise TypeError(f"a cell has bytes, not {cell!r}")
        length = PyBytes_GET_SIZE(row)
        if not same(row, last) or length == 0:
            if not 0 < length <= LONGEST_HBASE_KEY:
                check_row(row)
            last = row
            size += ROW + length
            rows[0] += 1
        length = PyBytes_GET_SIZE(column)
        if memchr(PyBytes_AS_STRING(column), c":", length) == NULL:
            check_column(column)
        size += CELL + length + PyBytes_GET_SIZE(value)
    return size


cdef char* put_cells(char* at, list cells):
    """Write the rows of `cells`, already checked by `size_of`; return the position after them."""
    cdef Py_ssize_t count = 0
    cdef char* counted = NULL  # place of a row's number of cells
    cdef bytes row, column, value, last = b""
    for cell in cells:
        row, column = <object> PyTuple_GET_ITEM(cell, 0), <object> PyTuple_GET_ITEM(cell, 1)
        value = <object> PyTuple_GET_ITEM(cell, 2)
        if counted == NULL or not same(row, last):
            if counted != NULL:
                put_word(counted, count)
                at[0] = 0
                at += 1
            last, count = row, 0
            at = put_field(put_text(put_field(at, STRING, 1), row), LIST, 2)
            at[0] = STRUCT
            counted = at + 1
            at = counted + WORD
        count += 1
        at = put_text(put_field(put_bool(at, 1, 0), STRING, 2), column)  # isDelete: false
        at = put_bool(put_text(put_field(at, STRING, 3), value), 4, 1)  # writeToWAL: true
        at[0] = 0
        at += 1
    if counted != NULL:
        put_word(counted, count)
        at[0] = 0
        at += 1
    return at


def mutate_rows(long number, bytes table not None, list cells not None, time_ms):
    """Return a mutateRows request, or a mutateRowsTs request if `time_ms` is not None."""
    cdef bytes name = b"mutateRows" if time_ms is None else b"mutateRowsTs", made
    cdef Py_ssize_t rows = 0, size = size_of(cells, &rows)
    cdef uint64_t stamp
    cdef char attributes = 3
    cdef char* at
    size += WORD + WORD + len(name) + WORD + FIELD + WORD + len(table) + FIELD + 1 + WORD + FIELD + 2 + WORD + 1
    if time_ms is not None:
        size += FIELD + 8
    made = PyBytes_FromStringAndSize(NULL, size)
    at = put_text(put_word(PyBytes_AS_STRING(made), <Py_ssize_t> 0x80010001), name)
    at = put_text(put_field(put_word(at, number), STRING, 1), table)
    at = put_field(at, LIST, 2)
    at[0] = STRUCT
    at = put_cells(put_word(at + 1, rows), cells)
    if time_ms is not None:
        stamp = <uint64_t> <int64_t> time_ms
        at = put_word(put_word(put_field(at, I64, 3), stamp >> 32), stamp & 0xFFFFFFFF)
        attributes = 4
    at = put_field(at, MAP, attributes)
    at[0] = at[1] = STRING
    at = put_word(at + 2, 0)
    at[0] = 0
    assert at + 1 - PyBytes_AS_STRING(made) == size
    return made
