# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Texts of numbers: the compiled part of `tsd.codec.tall.values`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t

cdef extern from "Python.h":
    double PyOS_string_to_double(const char*, char**, object) except? -1.0

cdef enum:
    MOST_DIGITS = 18  # of a whole number that always fits


def parse(list values not None, int64_t[:] bits, double[:] doubles, uint8_t[:] floats):
    """Write the values of the usual form, whole numbers and digits with a point, of which `doubles` is another view of
    `bits`. Return the indexes of all others."""
    cdef Py_ssize_t at, size
    cdef const char* text
    cdef const char* end
    cdef const char* digits
    cdef char* parsed
    cdef int64_t number
    cdef bint negative
    cdef bytes value
    cdef list others = []
    for at in range(len(values)):
        value = values[at]
        text, size = PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
        end = text + size
        negative = size > 0 and text[0] == b"-"
        digits = text + negative
        number = 0
        while digits < end and b"0" <= digits[0] <= b"9" and digits - text - negative < MOST_DIGITS:
            number = number * 10 + (digits[0] - 48)
            digits += 1
        if digits == text + negative:
            others.append(at)
        elif digits == end:
            bits[at] = -number if negative else number
        elif digits[0] == b".":
            digits += 1
            while digits < end and b"0" <= digits[0] <= b"9":
                digits += 1
            if digits < end:
                others.append(at)
            else:
                doubles[at] = PyOS_string_to_double(text, &parsed, None)
                floats[at] = 1
        else:
            others.append(at)
    return others
