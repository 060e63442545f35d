# cython: language_level=3, boundscheck=False, wraparound=False
"""Compiled loop that reads rows with versions from answers of Thrift 2 (see tsd.store.hbase.results).

Structs are those of hbase.thrift: TResult = {1: row, 2: list<TColumnValue>}, TColumnValue = {1: family, 2: qualifier,
3: value, 4: timestamp}. Other fields of them are skipped.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy

from tsd.codec._arrays cimport NO_MEMORY, grow, larger

cdef enum:
    INCOMPLETE = -1  # the row continues after the received bytes
    INVALID = -2  # not a row
    NO_ROOM = -3

cdef enum:
    BOOL = 2
    BYTE = 3
    DOUBLE = 4
    I16 = 6
    I32 = 8
    I64 = 10
    STRING = 11
    STRUCT = 12
    LIST = 15

cdef struct Text:
    Py_ssize_t at
    Py_ssize_t size  # -1: missing

cdef struct Version:
    Text family
    Text qualifier
    Text value
    int64_t time_ms
    bint has_time

cdef struct Result:  # being read: reading goes on at the next field or version once there are more bytes
    Text row
    Version* versions
    Py_ssize_t count  # versions that have been read
    Py_ssize_t total  # versions of the list
    Py_ssize_t room
    Py_ssize_t at  # offset of the next field or version


cdef inline Py_ssize_t word(const unsigned char* at) noexcept nogil:
    return <Py_ssize_t> (<unsigned int> at[0] << 24 | <unsigned int> at[1] << 16 | <unsigned int> at[2] << 8 | at[3])


cdef inline int64_t long_word(const unsigned char* at) noexcept nogil:
    return <int64_t> (<uint64_t> word(at) << 32 | <uint64_t> word(at + 4))


cdef inline Py_ssize_t read_text(const unsigned char* text, Py_ssize_t at, Py_ssize_t have, Text* found) noexcept nogil:
    """Read a string; return where it ends, or INCOMPLETE."""
    if at + 4 > have:
        return INCOMPLETE
    found.at, found.size = at + 4, word(text + at)
    at = found.at + found.size
    return INCOMPLETE if at > have else at


cdef inline Py_ssize_t skip(const unsigned char* text, Py_ssize_t at, Py_ssize_t have, int kind) noexcept nogil:
    """Return where an unknown field ends, INCOMPLETE or INVALID."""
    cdef Text ignored
    if kind == STRING:
        return read_text(text, at, have, &ignored)
    if kind == BOOL or kind == BYTE:
        at += 1
    elif kind == I16:
        at += 2
    elif kind == I32:
        at += 4
    elif kind == I64 or kind == DOUBLE:
        at += 8
    else:
        return INVALID
    return INCOMPLETE if at > have else at


cdef Py_ssize_t read_version(
    const unsigned char* text, Py_ssize_t at, Py_ssize_t have, Version* version
) noexcept nogil:
    """Read a TColumnValue; return where it ends, INCOMPLETE or INVALID."""
    cdef int kind, field
    version.family.size = version.qualifier.size = version.value.size = -1
    version.has_time = False
    while True:
        if at >= have:
            return INCOMPLETE
        kind = text[at]
        if not kind:
            break
        if at + 3 > have:
            return INCOMPLETE
        field = text[at + 1] << 8 | text[at + 2]
        at += 3
        if kind == STRING and field == 1:
            at = read_text(text, at, have, &version.family)
        elif kind == STRING and field == 2:
            at = read_text(text, at, have, &version.qualifier)
        elif kind == STRING and field == 3:
            at = read_text(text, at, have, &version.value)
        elif kind == I64 and field == 4:
            if at + 8 > have:
                return INCOMPLETE
            version.time_ms, version.has_time = long_word(text + at), True
            at += 8
        else:
            at = skip(text, at, have, kind)
        if at < 0:
            return at
    if version.family.size < 0 or version.qualifier.size < 0 or version.value.size < 0 or not version.has_time:
        return INVALID
    return at + 1


cdef inline void begin(Result* found, Py_ssize_t at) noexcept nogil:
    found.row.size, found.count, found.total, found.at = -1, 0, 0, at


cdef Py_ssize_t read_result(const unsigned char* text, Py_ssize_t have, Result* found) noexcept nogil:
    """Read on in a TResult; return where it ends, INCOMPLETE, INVALID or NO_ROOM."""
    cdef int kind, field
    cdef Py_ssize_t at
    while True:
        while found.count < found.total:
            if found.count == found.room:
                if grow(<void**> &found.versions, larger(found.room, 0), sizeof(Version)) == NO_MEMORY:
                    return NO_ROOM
                found.room = larger(found.room, 0)
            at = read_version(text, found.at, have, &found.versions[found.count])
            if at < 0:
                return at
            found.count += 1
            found.at = at
        at = found.at
        if at >= have:
            return INCOMPLETE
        kind = text[at]
        if not kind:
            return at + 1
        if at + 3 > have:
            return INCOMPLETE
        field = text[at + 1] << 8 | text[at + 2]
        at += 3
        if kind == STRING and field == 1:
            at = read_text(text, at, have, &found.row)
        elif kind == LIST and field == 2:
            if at + 5 > have:
                return INCOMPLETE
            if text[at] != STRUCT or found.total:
                return INVALID
            found.total = word(text + at + 1)
            at += 5
        else:
            at = skip(text, at, have, kind)
        if at < 0:
            return at
        found.at = at


cdef inline bytes part_of(const unsigned char* text, Text place):
    return PyBytes_FromStringAndSize(<const char*> text + place.at, place.size)


cdef inline bint equal(const unsigned char* text, Text one, Text other) noexcept nogil:
    return one.size == other.size and memcmp(text + one.at, text + other.at, one.size) == 0


cdef bint add_result(const unsigned char* text, Result* found, list rows, list places, list counts, list arrays) except -1:
    """Add a row; return whether its versions are in order. Versions of each column are added the oldest first."""
    cdef Py_ssize_t first = 0, last, i, size = 0, filled = 0
    cdef Version* all_versions = found.versions
    cdef bytes row, times, lengths, values
    cdef int64_t* time_at
    cdef int64_t* length_at
    cdef char* to
    if not found.count:
        rows.append(None)
        return True
    if found.row.size < 0:
        return False
    row = part_of(text, found.row)
    rows.append(row)
    for i in range(found.count):
        size += all_versions[i].value.size
    times, lengths = PyBytes_FromStringAndSize(NULL, 8 * found.count), PyBytes_FromStringAndSize(NULL, 8 * found.count)
    values = PyBytes_FromStringAndSize(NULL, size)
    time_at, length_at = <int64_t*> PyBytes_AS_STRING(times), <int64_t*> PyBytes_AS_STRING(lengths)
    to = PyBytes_AS_STRING(values)
    while first < found.count:
        last = first + 1
        while (
            last < found.count
            and equal(text, all_versions[first].qualifier, all_versions[last].qualifier)
            and equal(text, all_versions[first].family, all_versions[last].family)
        ):
            if all_versions[last].time_ms >= all_versions[last - 1].time_ms:
                return False
            last += 1
        places.append(
            (row, part_of(text, all_versions[first].family) + b":" + part_of(text, all_versions[first].qualifier))
        )
        counts.append(last - first)
        for i in range(last - 1, first - 1, -1):
            time_at[filled] = all_versions[i].time_ms
            length_at[filled] = all_versions[i].value.size
            memcpy(to, text + all_versions[i].value.at, all_versions[i].value.size)
            to += all_versions[i].value.size
            filled += 1
        first = last
    arrays.append((times, lengths, values))
    return True


cdef class ResultParser:
    """Reads the rows of one answer, which may arrive in any number of pieces."""

    cdef Result found

    def __cinit__(self, Py_ssize_t at):
        """`at`: where the first row begins."""
        self.found.versions, self.found.room = NULL, 0
        begin(&self.found, at)

    def __dealloc__(self):
        free(self.found.versions)

    def parse(
        self, const unsigned char[::1] room, Py_ssize_t have, Py_ssize_t wanted, list rows, list places, list counts,
        list arrays,
    ):
        """Add up to `wanted` rows: keys (None: without versions), places, numbers of versions, and times, lengths (both
        int64) and values of each row. `room` has `have` received bytes of the answer. Return the number of added rows,
        where reading goes on, and whether the bytes there can be a part of a row."""
        cdef Py_ssize_t done = 0, end
        while done < wanted:
            with nogil:
                end = read_result(&room[0], have, &self.found)
            if end == NO_ROOM:
                raise MemoryError
            if end < 0:
                return done, self.found.at, end == INCOMPLETE
            if not add_result(&room[0], &self.found, rows, places, counts, arrays):
                return done, self.found.at, False
            begin(&self.found, end)
            done += 1
        return done, self.found.at, True
