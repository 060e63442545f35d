# cython: language_level=3
"""The compiled part of the writing face: series keys made without the interpreter."""

from tsd.codec._tags cimport TagList

cdef struct KeyBytes:  # valid until the next call of `compose`
    const char* head
    Py_ssize_t head_bytes
    const char* tail
    Py_ssize_t tail_bytes


cdef class KeyComposer:
    cdef int compose(self, const char* metric, Py_ssize_t m, const TagList* tags, KeyBytes* key) noexcept
