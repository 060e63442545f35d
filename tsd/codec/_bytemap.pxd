# cython: language_level=3
from libc.stdint cimport int64_t, uint32_t, uint64_t

from tsd.codec._siphash cimport Key

cdef struct Record:
    uint32_t key_bytes
    uint32_t value_bytes

cdef inline const char* value_of(const Record* record) noexcept nogil:
    return <const char*> record + sizeof(Record) + record.key_bytes


cdef struct Place:
    uint32_t hash
    uint32_t record  # offset in the arena in UNITs; EMPTY: the place is free


cdef class ByteMap:
    cdef Key key
    cdef Place* places  # hash table of a power of two: open addressing with linear probing
    cdef uint32_t mask
    cdef uint32_t count
    cdef char* arena
    cdef uint64_t room, used
    cdef readonly uint64_t looked_up  # keys found by the compiled parser, which counts them itself
    cdef readonly uint64_t rebuilt  # number of rebuilds

    cdef Record* look_up(self, const char* key, Py_ssize_t size) noexcept nogil
    cdef int add(self, const char* key, Py_ssize_t k, const char* value, Py_ssize_t v) noexcept nogil
    cdef int64_t place_of(self, uint32_t hash, const char* key, Py_ssize_t size) noexcept nogil
    cdef int grow_places(self, uint64_t count) noexcept nogil
    cdef void become(self, ByteMap other)
    cdef object rebuild(self, bytes changed, bytes value, uint32_t dropped)
