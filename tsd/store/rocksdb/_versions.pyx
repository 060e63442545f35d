# cython: language_level=3, boundscheck=False, wraparound=False
"""Compiled loops that read tables whose cells keep versions from RocksDB (see tsd.store.rocksdb.version_reads)."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

cdef enum:
    COUNT_BYTES = 4
    HEAD_BYTES = 8  # of a version in a chunk
    END_BYTES = 10  # after the column in a key: the mark and the time


cdef inline int64_t little(const unsigned char* at) noexcept nogil:
    return <uint32_t> at[0] | <uint32_t> at[1] << 8 | <uint32_t> at[2] << 16 | <uint32_t> at[3] << 24


cdef inline int64_t big(const unsigned char* at) noexcept nogil:
    cdef uint64_t found = 0
    cdef int i
    for i in range(8):
        found = found << 8 | at[i]
    return <int64_t> found


def chunk_part(int64_t start_ms, bytes stored, int64_t since_ms, int64_t until_ms, Py_ssize_t most):
    """See `chunk_part_python`. Return None if `stored` is not a chunk."""
    cdef const unsigned char* text = <const unsigned char*> PyBytes_AS_STRING(stored)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(stored), count, begin, at, first, last
    cdef int64_t before = 0, wanted = 0, total = 0, length
    cdef const unsigned char* offsets
    cdef const unsigned char* sizes
    cdef int64_t* times_at
    cdef int64_t* lengths_at
    if size < COUNT_BYTES:
        return None
    count = little(text)
    begin = COUNT_BYTES + HEAD_BYTES * count
    if size < begin:
        return None
    offsets, sizes = text + COUNT_BYTES, text + COUNT_BYTES + 4 * count
    first, last = 0, count
    while first < count and start_ms + little(offsets + 4 * first) < since_ms:
        first += 1
    while last > first and start_ms + little(offsets + 4 * (last - 1)) >= until_ms:
        last -= 1
    first = max(first, last - most)
    cdef bytes times = PyBytes_FromStringAndSize(NULL, 8 * (last - first))
    cdef bytes lengths = PyBytes_FromStringAndSize(NULL, 8 * (last - first))
    times_at = <int64_t*> PyBytes_AS_STRING(times)
    lengths_at = <int64_t*> PyBytes_AS_STRING(lengths)
    for at in range(count):
        length = little(sizes + 4 * at)
        total += length
        if at < first:
            before += length
        elif at < last:
            wanted += length
            times_at[at - first] = start_ms + little(offsets + 4 * at)
            lengths_at[at - first] = length
    if begin + total != size:
        return None
    return last - first, times, lengths, stored[begin + before : begin + before + wanted]


def split_newest(list entries, bytes prefix, bytes row, Py_ssize_t most, int64_t latest_ms, list places):
    """See `split_newest_python`. Return None for a key without its marks; `places` may then have some of the entries."""
    cdef Py_ssize_t taken = 0, rows = 0, size = 0, filled = 0, length, cut = PyBytes_GET_SIZE(prefix), end, column, turn = 0
    cdef Py_ssize_t count = len(entries)
    cdef const char* text
    cdef const char* zero
    cdef bytes key, value, name, next_row = None
    cdef list names = [], before = []  # columns of the row, and of the row before: most rows have the same
    cdef bytes times = PyBytes_FromStringAndSize(NULL, 8 * count)
    cdef bytes lengths = PyBytes_FromStringAndSize(NULL, 8 * count)
    cdef int64_t* times_at = <int64_t*> PyBytes_AS_STRING(times)
    cdef int64_t* lengths_at = <int64_t*> PyBytes_AS_STRING(lengths)
    cdef list values = []
    for key, value in entries:
        text, length = PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
        if length < cut or memcmp(text, PyBytes_AS_STRING(prefix), cut):
            end = 0
            while True:  # the mark that ends the row is 00 01; other zeros are followed by ff
                zero = <const char*> memchr(text + end, 0, length - end)
                if zero == NULL or zero - text + 1 >= length:
                    return None
                end = zero - text + 2
                if zero[1] == 1:
                    break
                if <unsigned char> zero[1] != 0xFF:
                    return None
            name = key[: end - 2].replace(b"\0\xff", b"\0")
            if not name:
                return None
            if rows >= most:
                next_row = name
                break
            row, prefix, cut = name, key[:end], end
            rows += 1
            before, names, turn = names, [], 0
        column = length - cut - END_BYTES
        if column < 0 or text[length - END_BYTES] != 0 or text[length - END_BYTES + 1] != 1:
            return None
        name = None
        if column and memchr(text + cut, 0, column) != NULL:
            name = key[cut : cut + column].replace(b"\0\xff", b"\0")
        elif turn < len(before):
            name = <bytes> before[turn]
            if PyBytes_GET_SIZE(name) != column or memcmp(PyBytes_AS_STRING(name), text + cut, column):
                name = None
        if name is None:
            name = PyBytes_FromStringAndSize(text + cut, column)
        names.append(name)
        turn += 1
        places.append((row, name))
        times_at[taken] = latest_ms - big(<const unsigned char*> text + length - 8)
        lengths_at[taken] = PyBytes_GET_SIZE(value)
        values.append(value)
        taken += 1
    return taken, rows, row, prefix, next_row, times[: 8 * taken], lengths[: 8 * taken], b"".join(values)
