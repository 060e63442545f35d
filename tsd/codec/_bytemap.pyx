# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Map from bytes to bytes in two blocks of memory: like a `dict`, but without an object for each key and value."""

import os

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy

from tsd.codec._arrays cimport tsd_kept, tsd_resize_kept
from tsd.codec._siphash cimport Key, hash_of

cdef enum:
    DONE = 0
    NO_MEMORY = 4
    UNIT = 4  # alignment of records in the arena
    FEWEST = 8  # places of an empty map

cdef uint32_t EMPTY = 0xFFFFFFFF


cdef inline uint64_t size_of(uint64_t key_bytes, uint64_t value_bytes) noexcept nogil:
    """Return the size of a record in the arena, in bytes."""
    return (sizeof(Record) + key_bytes + value_bytes + UNIT - 1) // UNIT * UNIT


cdef class ByteMap:
    """Map from bytes to bytes, in insertion order."""

    def __cinit__(self):
        seed = os.urandom(16)
        memcpy(&self.key, PyBytes_AS_STRING(seed), 16)
        if self.grow_places(FEWEST) != DONE:
            raise MemoryError

    def __dealloc__(self):
        free(self.places)
        free(self.arena)

    def __len__(self):
        return self.count

    @property
    def held(self):
        """Memory in bytes."""
        return (<uint64_t> self.mask + 1) * sizeof(Place) + self.room

    cdef int64_t place_of(self, uint32_t hash, const char* key, Py_ssize_t size) noexcept nogil:
        """Return the index of a key's place, -1 if the key is missing."""
        cdef uint32_t at = hash & self.mask
        cdef Record* record
        while self.places[at].record != EMPTY:
            if self.places[at].hash == hash:
                record = <Record*> (self.arena + <uint64_t> self.places[at].record * UNIT)
                if record.key_bytes == <size_t> size and memcmp(<char*> record + sizeof(Record), key, size) == 0:
                    return at
            at = (at + 1) & self.mask
        return -1

    cdef Record* look_up(self, const char* key, Py_ssize_t size) noexcept nogil:
        """Return a key's record, NULL if the key is missing. The key's bytes and the value follow the record."""
        cdef int64_t at = self.place_of(<uint32_t> hash_of(&self.key, key, size, NULL, 0), key, size)
        return NULL if at < 0 else <Record*> (self.arena + <uint64_t> self.places[at].record * UNIT)

    cdef int add(self, const char* key, Py_ssize_t k, const char* value, Py_ssize_t v) noexcept nogil:
        """Insert a missing key."""
        cdef uint64_t size = size_of(k, v), room
        cdef uint32_t hash = <uint32_t> hash_of(&self.key, key, k, NULL, 0), at
        cdef void* moved
        cdef Record* record
        if self.used + size > self.room:
            room = max(self.room + (self.room >> 1), self.used + size, 64)
            if room > <uint64_t> EMPTY * UNIT:
                return NO_MEMORY
            moved = tsd_resize_kept(self.arena, room)
            if moved == NULL:
                return NO_MEMORY
            self.arena, self.room = <char*> moved, room
        if (<uint64_t> self.count + 1) * 5 > (<uint64_t> self.mask + 1) * 4:  # at most four fifths are used
            if self.grow_places((<uint64_t> self.mask + 1) * 2) != DONE:
                return NO_MEMORY
        record = <Record*> (self.arena + self.used)
        record.key_bytes, record.value_bytes = <uint32_t> k, <uint32_t> v
        memcpy(<char*> record + sizeof(Record), key, k)
        memcpy(<char*> record + sizeof(Record) + k, value, v)
        at = hash & self.mask
        while self.places[at].record != EMPTY:
            at = (at + 1) & self.mask
        self.places[at].hash, self.places[at].record = hash, <uint32_t> (self.used // UNIT)
        self.used += size
        self.count += 1
        return DONE

    cdef int grow_places(self, uint64_t count) noexcept nogil:
        """Allocate a table of `count` places, and rehash the existing entries into it."""
        cdef Place* places = NULL if count > <uint64_t> 1 << 31 else <Place*> tsd_kept(count * sizeof(Place))
        cdef uint64_t at
        cdef uint32_t to, mask = <uint32_t> (count - 1)
        if places == NULL:
            return NO_MEMORY
        for at in range(count):
            places[at].record = EMPTY
        if self.places != NULL:
            for at in range(<uint64_t> self.mask + 1):
                if self.places[at].record != EMPTY:
                    to = self.places[at].hash & mask
                    while places[to].record != EMPTY:
                        to = (to + 1) & mask
                    places[to] = self.places[at]
        free(self.places)
        self.places, self.mask = places, mask
        return DONE

    def get(self, bytes key not None):
        """Return the value of a key, None if it is missing."""
        cdef Record* record = self.look_up(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
        if record == NULL:
            return None
        return PyBytes_FromStringAndSize(<char*> record + sizeof(Record) + record.key_bytes, record.value_bytes)

    def put(self, bytes key not None, bytes value not None):
        """Set the value of a key. Raise MemoryError, and ValueError if key or value has 2 GiB or more."""
        cdef Py_ssize_t k = PyBytes_GET_SIZE(key), v = PyBytes_GET_SIZE(value)
        if k >= 1 << 31 or v >= 1 << 31:
            raise ValueError("too long")
        cdef Record* record = self.look_up(PyBytes_AS_STRING(key), k)
        if record != NULL and record.value_bytes == <uint32_t> v:
            memcpy(<char*> record + sizeof(Record) + k, PyBytes_AS_STRING(value), v)
        elif record != NULL:
            self.rebuild(key, value, 0)
        elif self.add(PyBytes_AS_STRING(key), k, PyBytes_AS_STRING(value), v) != DONE:
            raise MemoryError

    def number(self, bytes key not None):
        """Return the number of a key, -1 if it is missing."""
        cdef Record* record = self.look_up(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
        cdef int32_t number
        if record == NULL:
            return -1
        assert record.value_bytes == sizeof(int32_t)
        memcpy(&number, <char*> record + sizeof(Record) + record.key_bytes, sizeof(int32_t))
        return number

    def put_number(self, bytes key not None, int32_t number):
        """Set the number of a key, 0 or more."""
        self.put(key, PyBytes_FromStringAndSize(<char*> &number, sizeof(int32_t)))

    def enter(self, list keys not None, int32_t number):
        """See PlainByteMap."""
        cdef list found = []
        cdef bytes key
        cdef Py_ssize_t k
        cdef int32_t had
        cdef Record* record
        for key in keys:
            k = PyBytes_GET_SIZE(key)
            record = self.look_up(PyBytes_AS_STRING(key), k)
            if record != NULL:
                assert record.value_bytes == sizeof(int32_t)
                memcpy(&had, <char*> record + sizeof(Record) + k, sizeof(int32_t))
            elif k >= 1 << 31:
                raise ValueError("too long")
            elif self.add(PyBytes_AS_STRING(key), k, <char*> &number, sizeof(int32_t)) != DONE:
                raise MemoryError
            else:
                had = number
                number += 1
            found.append(had)
        return found, number

    def keys(self):
        """Return all keys in insertion order."""
        return [key for key, _ in self.items(0, self.count)[0]]

    def items(self, uint64_t start, uint32_t count):
        """See PlainByteMap."""
        cdef Record* record
        cdef list found = []
        while start < self.used and count:
            record = <Record*> (self.arena + start)
            found.append((
                PyBytes_FromStringAndSize(<char*> record + sizeof(Record), record.key_bytes),
                PyBytes_FromStringAndSize(<char*> record + sizeof(Record) + record.key_bytes, record.value_bytes),
            ))
            start += size_of(record.key_bytes, record.value_bytes)
            count -= 1
        return found, start

    def drop_half(self):
        """Remove the older half of the keys."""
        self.rebuild(None, None, self.count // 2)

    def clear(self):
        """Remove all keys."""
        self.rebuild(None, None, self.count)

    def keep_number(self, int32_t number):
        """Remove the keys with another number."""
        cdef ByteMap other = ByteMap.__new__(ByteMap)
        cdef uint64_t at = 0
        cdef Record* record
        cdef char* key
        while at < self.used:
            record = <Record*> (self.arena + at)
            key = <char*> record + sizeof(Record)
            assert record.value_bytes == sizeof(int32_t)
            if memcmp(key + record.key_bytes, &number, sizeof(int32_t)) == 0:
                if other.add(key, record.key_bytes, <char*> &number, sizeof(int32_t)) != DONE:
                    raise MemoryError
            at += size_of(record.key_bytes, record.value_bytes)
        self.become(other)

    def renumber(self, const int32_t[::1] numbers):
        """See PlainByteMap."""
        cdef ByteMap other = ByteMap.__new__(ByteMap)
        cdef uint64_t at = 0
        cdef int32_t number
        cdef Record* record
        cdef char* key
        while at < self.used:
            record = <Record*> (self.arena + at)
            key = <char*> record + sizeof(Record)
            assert record.value_bytes == sizeof(int32_t)
            memcpy(&number, key + record.key_bytes, sizeof(int32_t))
            assert 0 <= number < numbers.shape[0]
            number = numbers[number]
            if number >= 0 and other.add(key, record.key_bytes, <char*> &number, sizeof(int32_t)) != DONE:
                raise MemoryError
            at += size_of(record.key_bytes, record.value_bytes)
        self.become(other)

    cdef object rebuild(self, bytes changed, bytes value, uint32_t dropped):
        """Copy all entries to new memory, without the first `dropped`, and with `value` as the value of `changed`."""
        cdef ByteMap other = ByteMap.__new__(ByteMap)
        cdef uint64_t at = 0
        cdef uint32_t seen = 0
        cdef Record* record
        cdef char* key
        while at < self.used:
            record = <Record*> (self.arena + at)
            key = <char*> record + sizeof(Record)
            seen += 1
            if seen > dropped:
                if changed is not None and changed == PyBytes_FromStringAndSize(key, record.key_bytes):
                    if other.add(key, record.key_bytes, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)) != DONE:
                        raise MemoryError
                elif other.add(key, record.key_bytes, key + record.key_bytes, record.value_bytes) != DONE:
                    raise MemoryError
            at += size_of(record.key_bytes, record.value_bytes)
        self.become(other)

    cdef void become(self, ByteMap other):
        """Take over the contents of another map, which must not be used afterwards."""
        self.rebuilt += 1
        self.places, other.places = other.places, self.places
        self.arena, other.arena = other.arena, self.arena
        self.key = other.key
        self.mask, self.count, self.room, self.used = other.mask, other.count, other.room, other.used
