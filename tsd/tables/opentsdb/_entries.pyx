# cython: language_level=3, boundscheck=False, wraparound=False
"""Compiled loops that make the index entries of new series (see `tsd.tables.opentsdb.series_index`)."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcmp, memcpy


def own_rows(dict series not None, Py_ssize_t tagk, Py_ssize_t width):
    """Return the row of each series' own entry: metric, the pair with the highest tag value UID, all tag pairs."""
    cdef bytes metric, pairs, row
    cdef list rows = [], some
    cdef const char* text
    cdef char* to
    cdef Py_ssize_t size, at, best, ahead
    for metric, some in series.items():
        ahead = PyBytes_GET_SIZE(metric)
        for pairs in some:
            text, size, best = PyBytes_AS_STRING(pairs), PyBytes_GET_SIZE(pairs), 0
            assert size >= width, pairs
            for at in range(width, size - width + 1, width):
                if memcmp(text + at + tagk, text + best + tagk, width - tagk) > 0:
                    best = at
            row = PyBytes_FromStringAndSize(NULL, ahead + width + size)
            to = PyBytes_AS_STRING(row)
            memcpy(to, PyBytes_AS_STRING(metric), ahead)
            memcpy(to + ahead, text + best, width)
            memcpy(to + ahead + width, text, size)
            rows.append(row)
    return rows


cdef int add(dict found, bytes prefix, bytes pairs) except -1:
    cdef object some = found.get(prefix)
    if some is None:
        some = found[prefix] = []
    (<list> some).append(pairs)
    return 0


def alike(list rows not None, Py_ssize_t start, Py_ssize_t width):
    """Return series by the row prefixes of their other entries: the metric without a tag, and the metric with each tag
    except that of the own entry."""
    cdef bytes row, pairs, prefix, none = bytes(width), whole = None
    cdef list same = None
    cdef dict found = {}
    cdef const char* text
    cdef Py_ssize_t size, at
    for row in rows:
        text, size = PyBytes_AS_STRING(row), PyBytes_GET_SIZE(row)
        assert size >= start + 2 * width, row
        pairs = PyBytes_FromStringAndSize(text + start + width, size - start - width)
        if whole is None or memcmp(PyBytes_AS_STRING(whole), text, start) != 0:  # a new metric
            whole = PyBytes_FromStringAndSize(text, start) + none
            same = found.setdefault(whole, [])
        same.append(pairs)
        for at in range(start + width, size - width + 1, width):
            if memcmp(text + at, text + start, width) != 0:
                prefix = PyBytes_FromStringAndSize(text, start + width)
                memcpy(PyBytes_AS_STRING(prefix) + start, text + at, width)
                add(found, prefix, pairs)
    return found
