# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Downsamples the points of rows, adds rows of groups, compares their tags, and writes points as JSON.
`tsd.query.downsample`, `tsd.query.merge`, `tsd.query.tag_groups` and `tsd.query.serialize` have the same in Python, and
tests compare them.

The loops over numbers release the interpreter's lock.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.math cimport fabs, isinf, signbit
from libc.stdint cimport int8_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memcpy

include "_group_rows.pxi"
include "_point_texts.pxi"
include "_tag_pairs.pxi"


cdef enum Function:
    SUM = 0
    LOW = 1
    HIGH = 2
    FIRST = 3
    LAST = 4


def downsample_rows(
    const int64_t[::1] starts, const int64_t[::1] times, const int64_t[::1] bits, const uint8_t[::1] floats,
    int64_t interval_ms, int function,
    int64_t[::1] bounds, int64_t[::1] stamps, int64_t[::1] counts, double[::1] results,
):
    """Downsample consecutive points of each row that share a bucket of `interval_ms`. Return whether all rows have the
    same buckets.

    Row `i` has the points from `starts[i]` to before `starts[i + 1]`, and the buckets from `bounds[i]` to before
    `bounds[i + 1]`. Each bucket has its first moment, the number of its values that are not NaN, and their sum, lowest
    or highest, or its first or last value. Values are read as doubles, in order. The output arrays have room for one
    bucket per point.
    """
    cdef Py_ssize_t row, at, runs = -1, first, count = starts.shape[0] - 1
    cdef int64_t stop_ms
    cdef double value
    cdef bint even = count > 0
    with nogil:
        bounds[0] = 0
        for row in range(count):
            stop_ms = -(<int64_t> 1 << 62)
            first = runs + 1
            for at in range(starts[row], starts[row + 1]):
                if floats[at]:
                    memcpy(&value, &bits[at], 8)
                else:
                    value = <double> bits[at]
                if times[at] >= stop_ms:
                    runs += 1
                    if times[at] < stop_ms + interval_ms:  # the next bucket: no division
                        stamps[runs] = stop_ms
                    else:
                        stamps[runs] = times[at] - times[at] % interval_ms
                    stop_ms = stamps[runs] + interval_ms
                    counts[runs] = 0
                    results[runs] = 0.0 if function == SUM else value
                if value == value:
                    if function == SUM:
                        results[runs] += value
                    elif not counts[runs] and function != FIRST:
                        results[runs] = value
                    elif (function == LOW and value < results[runs]) or (function == HIGH and value > results[runs]):
                        results[runs] = value
                    counts[runs] += 1
                if function == LAST:
                    results[runs] = value
            bounds[row + 1] = runs + 1
            if even and (
                bounds[row + 1] - first != bounds[1]
                or memcmp(&stamps[first], &stamps[0], bounds[1] * sizeof(int64_t))
            ):
                even = False
    return even


def are_own_sums(const int64_t[:] bits, const uint8_t[:] floats):
    """Return whether the sum of each value alone is the value: all are integers, or doubles without NaN and -0.0."""
    cdef Py_ssize_t at
    cdef double value
    for at in range(bits.shape[0]):
        if floats[at] != floats[0]:
            return False
        if floats[at]:
            memcpy(&value, &bits[at], 8)
            if value != value or bits[at] == <int64_t> 1 << 63:
                return False
    return True
