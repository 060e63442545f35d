# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Cells of rows of events and days: the compiled part of `tsd.tables.tall.encode`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, strlen

cdef extern from "Python.h":
    char* PyOS_double_to_string(double, char, int, int, int*) except NULL
    int Py_DTSF_ADD_DOT_0

cdef enum:
    EVENT_DIGITS = 13
    MINUTE_MS = 60000
    LONGEST_LONG = 20


cdef inline void digits(char* to, int64_t number, int count) noexcept nogil:
    """Write a number with zeros on the left."""
    cdef int at
    for at in range(count - 1, -1, -1):
        to[at] = <char> (48 + number % 10)
        number //= 10


cdef bytes long_text(int64_t number):
    cdef char text[LONGEST_LONG]
    cdef int at = LONGEST_LONG
    cdef uint64_t left = -<uint64_t> number if number < 0 else <uint64_t> number
    while True:
        at -= 1
        text[at] = <char> (48 + left % 10)
        left //= 10
        if not left:
            break
    if number < 0:
        at -= 1
        text[at] = b"-"
    return PyBytes_FromStringAndSize(text + at, LONGEST_LONG - at)


cdef bytes double_text(double number):
    cdef char* text = PyOS_double_to_string(number, b"r", 0, Py_DTSF_ADD_DOT_0, NULL)
    try:
        return PyBytes_FromStringAndSize(text, strlen(text))
    finally:
        PyMem_Free(text)


cdef bytes day_column(bytes start, int64_t offset_ms):
    """Return the start of a column and a time of the day, see `tsd.codec.tall.times.clock_text`."""
    cdef Py_ssize_t ahead = PyBytes_GET_SIZE(start)
    cdef int64_t minutes = offset_ms // MINUTE_MS, rest = offset_ms % MINUTE_MS
    cdef Py_ssize_t size = ahead + 4 + (2 if rest else 0) + (3 if rest % 1000 else 0)
    cdef bytes made = PyBytes_FromStringAndSize(NULL, size)
    cdef char* to = PyBytes_AS_STRING(made)
    memcpy(to, PyBytes_AS_STRING(start), ahead)
    digits(to + ahead, minutes // 60, 2)
    digits(to + ahead + 2, minutes % 60, 2)
    if rest:
        digits(to + ahead + 4, rest // 1000, 2)
    if rest % 1000:
        digits(to + ahead + 6, rest % 1000, 3)
    return made


cdef bytes event_row(bytes prefix, int64_t time_ms):
    cdef Py_ssize_t ahead = PyBytes_GET_SIZE(prefix)
    cdef bytes made = PyBytes_FromStringAndSize(NULL, ahead + EVENT_DIGITS)
    memcpy(PyBytes_AS_STRING(made), PyBytes_AS_STRING(prefix), ahead)
    digits(PyBytes_AS_STRING(made) + ahead, time_ms, EVENT_DIGITS)
    return made


def encode(
    list places not None, const int64_t[:] numbers, const int64_t[:] rows, const int64_t[:] times,
    const int64_t[:] bits, const uint8_t[:] floats, day_text, put_type,
):
    """Return the cells of points, see `tsd.tables.tall.encode.encode`."""
    cdef Py_ssize_t at
    cdef int64_t number, row_ms = -1, day_ms = -1, value
    cdef int64_t last = -1  # series of the point before
    cdef bytes prefix = None, before = None, start = None, row = None, column, text, day = None
    cdef tuple labels = ()
    cdef bint is_day = False, is_new
    cdef object new = tuple.__new__
    cdef list found = []
    for at in range(numbers.shape[0]):
        number = numbers[at]
        is_new = rows[at] != row_ms
        if number != last:
            last = number
            prefix, start, is_day, labels = places[number]
            if before is not prefix and before != prefix:
                is_new = True
            before = prefix
        if is_new:
            row_ms = rows[at]
            if not is_day:
                row = event_row(prefix, row_ms)
            else:
                if row_ms != day_ms:
                    day_ms, day = row_ms, day_text(row_ms)
                row = prefix + day
            for column, text in labels:
                found.append(new(put_type, (row, column, text)))
        column = day_column(start, times[at] - row_ms) if is_day else start
        value = bits[at]
        text = double_text((<double*> &value)[0]) if floats[at] else long_text(value)
        found.append(new(put_type, (row, column, text)))
    return found
