# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled loop over points that are put, see `tsd.tables.kairosdb.encode`."""

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.math cimport INFINITY
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from tsd.codec.kairosdb.keys import DOUBLE, LONG
from tsd.tables.kairosdb.points import POINT_BYTES

cdef enum:
    TIME_BYTES = 8  # of a row key
    TTL_BYTES = 4
    DOUBLE_BYTES = 8
    FIXED_BYTES = 36  # of a bound point without key and value: five lengths, column, time to live, write timestamp

cdef bytes LONG_MARK = b"\0%c%b" % (len(LONG), LONG.encode())  # begins the second half of a row key
cdef bytes DOUBLE_MARK = b"\0%c%b" % (len(DOUBLE), DOUBLE.encode())
cdef Py_ssize_t COUNTED_BYTES = POINT_BYTES


cdef inline char* put32(char* at, uint32_t word) noexcept:
    at[0], at[1], at[2], at[3] = <char> (word >> 24), <char> (word >> 16), <char> (word >> 8), <char> word
    return at + 4


cdef inline char* put64(char* at, uint64_t word) noexcept:
    return put32(put32(at, <uint32_t> (word >> 32)), <uint32_t> word)


cdef inline int32_t varint(int64_t number, unsigned char* to) noexcept:
    """Write a whole number: zig-zag, then groups of seven bits, low ones first. Return its bytes, ten at most."""
    cdef uint64_t rest = <uint64_t> number << 1 ^ (~(<uint64_t> number >> 63) + 1)
    cdef int32_t size = 0
    while rest >= 0x80:
        to[size] = <unsigned char> (rest & 0x7F | 0x80)
        rest >>= 7
        size += 1
    to[size] = <unsigned char> rest
    return size + 1


cdef inline uint32_t ttl_at(const char* at) noexcept:
    cdef const unsigned char* text = <const unsigned char*> at
    return <uint32_t> text[0] << 24 | <uint32_t> text[1] << 16 | <uint32_t> text[2] << 8 | text[3]


cdef class Batches:
    """Makes batches of bound points: many of one row, or some of several rows."""

    cdef readonly list made  # tuples of bound points and their row's key, None for several rows
    cdef list _mixed
    cdef Py_ssize_t _most, _most_bytes, _rows, _bytes
    cdef object _key

    def __init__(self, Py_ssize_t most, Py_ssize_t most_bytes):
        """`most` and `most_bytes` are the limits of a batch of several rows."""
        self.made = []
        self._mixed = []
        self._most, self._most_bytes = most, most_bytes
        self._rows = self._bytes = 0

    cdef int add(self, list points, object key, Py_ssize_t size) except -1:
        """Add points of one row of `size` bytes."""
        cdef Py_ssize_t count = len(points)
        if count > self._most // 2 or size > self._most_bytes:
            self.made.append((points, key))
            return 0
        if self._rows and (len(self._mixed) + count > self._most or self._bytes + size > self._most_bytes):
            self.end()
        self._mixed += points
        self._rows += 1
        self._bytes += size
        self._key = key
        return 0

    cdef int end(self) except -1:
        """End the batch of several rows."""
        if self._rows:
            self.made.append((self._mixed, self._key if self._rows == 1 else None))
        self._mixed = []
        self._rows = self._bytes = 0
        return 0


cdef int need(dict index, bytes place, bytes series, uint32_t ttl_s) except -1:
    """Note that an index row must live as long as a point, 0: forever."""
    lives = index.get(place)
    if lives is None:
        lives = index[place] = {}
    found = lives.get(series)
    if found is None or (found and (ttl_s == 0 or <uint32_t> found < ttl_s)):
        lives[series] = ttl_s
    return 0


def first_rows(bytes joined, const int64_t[::1] bounds):
    """Return for each key of a series the first one that has the same rows, in an array of 64 bits: whose head and tail
    differ in the time to live alone. None: each has rows of its own."""
    cdef Py_ssize_t count = bounds.shape[0] // 2, number, start, middle, end
    cdef const char* keys = PyBytes_AS_STRING(joined)
    cdef bytearray found = bytearray(8 * count)
    cdef int64_t* firsts = <int64_t*> PyByteArray_AS_STRING(found)
    cdef dict seen = {}
    cdef bytes row
    cdef char* to
    for number in range(count):
        start, middle, end = bounds[2 * number], bounds[2 * number + 1], bounds[2 * number + 2]
        row = PyBytes_FromStringAndSize(NULL, end - start - TTL_BYTES + 1)
        to = PyBytes_AS_STRING(row)
        memcpy(to, keys + start, middle - start)
        to += middle - start
        to[0] = 0
        memcpy(to + 1, keys + middle + TTL_BYTES, end - middle - TTL_BYTES)
        firsts[number] = seen.setdefault(row, number)
    return found if len(seen) < count else None


def encode_rows(
    bytes joined,
    const int64_t[::1] bounds,
    const int64_t[::1] numbers,
    const int64_t[::1] row_times,
    const uint32_t[::1] columns,
    const uint8_t[::1] floats,
    const int64_t[::1] bits,
    const int64_t[::1] stamps,
    dict known,
    double now_s,
    int64_t most_ttl_s,
    object limits,
):
    """Return batches of bound points, the index rows that they need and `known` lacks, and the places of all.

    `joined` and `bounds` are the keys of series, `numbers` those of the points. `known` says until when an index row
    lives, by place and series. `limits` are the points of a batch of one row, then points and bytes of one of several
    rows."""
    cdef const char* keys = PyBytes_AS_STRING(joined)
    cdef Py_ssize_t count = numbers.shape[0], at = 0, end, first, last, point, most = limits[0]
    cdef Py_ssize_t head_at, head_size, tags_at, tags_size, key_size, size
    cdef int64_t number, row_ms
    cdef uint32_t ttl_s, put_ttl_s
    cdef int32_t value_size
    cdef unsigned char value[16]
    cdef bytes place, series, mark, bound
    cdef char* to
    cdef list points
    cdef dict index = {}
    cdef set places = set()
    cdef Batches batches = Batches(limits[1], limits[2])
    while at < count:
        number, row_ms = numbers[at], row_times[at]
        end = at + 1
        while end < count and numbers[end] == number and row_times[end] == row_ms and floats[end] == floats[at]:
            end += 1
        head_at = bounds[2 * number]
        head_size = bounds[2 * number + 1] - head_at
        tags_at = head_at + head_size + TTL_BYTES
        tags_size = bounds[2 * number + 2] - tags_at
        ttl_s = ttl_at(keys + head_at + head_size)
        mark = DOUBLE_MARK if floats[at] else LONG_MARK
        place = PyBytes_FromStringAndSize(NULL, head_size + 1 + TIME_BYTES)
        to = PyBytes_AS_STRING(place)
        memcpy(to, keys + head_at, head_size)
        to[head_size] = 0
        put64(to + head_size + 1, <uint64_t> row_ms)
        series = PyBytes_FromStringAndSize(NULL, PyBytes_GET_SIZE(mark) + tags_size)
        to = PyBytes_AS_STRING(series)
        memcpy(to, PyBytes_AS_STRING(mark), PyBytes_GET_SIZE(mark))
        memcpy(to + PyBytes_GET_SIZE(mark), keys + tags_at, tags_size)
        places.add(place)
        lives = known.get(place)
        until = None if lives is None else (<dict> lives).get(series)
        if until is None or <double> until < (now_s + ttl_s if ttl_s else INFINITY):
            need(index, place, series, ttl_s)
        put_ttl_s = <uint32_t> min(<int64_t> ttl_s, most_ttl_s)
        key_size = PyBytes_GET_SIZE(place) + PyBytes_GET_SIZE(series)
        first = at
        while first < end:
            last = min(first + most, end)
            points = []
            size = 0
            for point in range(first, last):
                if floats[point]:
                    put64(<char*> value, <uint64_t> bits[point])
                    value_size = DOUBLE_BYTES
                else:
                    value_size = varint(bits[point], value)
                bound = PyBytes_FromStringAndSize(NULL, FIXED_BYTES + key_size + value_size)
                to = put32(PyBytes_AS_STRING(bound), <uint32_t> key_size)
                memcpy(to, PyBytes_AS_STRING(place), PyBytes_GET_SIZE(place))
                to += PyBytes_GET_SIZE(place)
                memcpy(to, PyBytes_AS_STRING(series), PyBytes_GET_SIZE(series))
                to = put32(put32(to + PyBytes_GET_SIZE(series), 4), columns[point])
                to = put32(to, value_size)
                memcpy(to, value, value_size)
                to = put32(put32(to + value_size, 4), put_ttl_s)
                put64(put32(to, 8), <uint64_t> stamps[point])
                points.append(bound)
                size += value_size + COUNTED_BYTES
            batches.add(points, place + series, size)
            first = last
        at = end
    batches.end()
    return batches.made, index, places
