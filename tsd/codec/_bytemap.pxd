# cython: language_level=3
from libc.stdint cimport int64_t, uint32_t, uint64_t

from tsd.ingest._words cimport Key

cdef struct Record:
    uint32_t key_bytes
    uint32_t value_bytes

cdef struct Place:
    uint32_t hash
    uint32_t record  # where it stands, counted in UNITs; EMPTY: nowhere


cdef class ByteMap:
    cdef Key key
    cdef Place* places  # open addressing, a power of two; a record stands at its hash or behind it, with no gap between
    cdef uint32_t mask
    cdef uint32_t count
    cdef char* arena
    cdef uint64_t room, used
    cdef readonly uint64_t looked_up  # how often keys were found by the compiled way in
    cdef readonly uint64_t rebuilt  # how often

    cdef Record* look_up(self, const char* key, Py_ssize_t size) noexcept nogil
    cdef int add(self, const char* key, Py_ssize_t k, const char* value, Py_ssize_t v) noexcept nogil
    cdef int64_t place_of(self, uint32_t hash, const char* key, Py_ssize_t size) noexcept nogil
    cdef int grow_places(self, uint64_t count) noexcept nogil
    cdef void become(self, ByteMap other)
    cdef object rebuild(self, bytes changed, bytes value, uint32_t dropped)
