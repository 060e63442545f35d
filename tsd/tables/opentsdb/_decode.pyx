# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Decode the cells of a page into arrays of points. `tsd.tables.opentsdb.decode` has the same in numpy; a property
test compares both. The loop releases the GIL.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.long cimport PyLong_AsLong
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from tsd.codec.opentsdb.cell import MS_MARK

cdef uint8_t MS = MS_MARK  # high bits of a millisecond qualifier's first byte


cdef struct Part:
    const uint8_t* qualifiers
    Py_ssize_t qualifier_bytes
    const uint8_t* value
    Py_ssize_t value_bytes


cdef inline int size_of(int flags) noexcept nogil:
    """Return the bytes of a value: 1, 2, 4 or 8 for an integer, 4 or 8 for a float, 0 for invalid flags."""
    cdef int length = (flags & 7) + 1
    if flags & 8:
        return length if length == 4 or length == 8 else 0
    return length if length == 1 or length == 2 or length == 4 or length == 8 else 0


cdef inline int64_t number(const uint8_t* at, int flags) noexcept nogil:
    """Return an integer, or the bits of a double."""
    cdef uint64_t bits = 0
    cdef int length = (flags & 7) + 1
    cdef int i
    cdef uint32_t word
    cdef float single
    cdef double wide
    cdef int64_t result
    if length == 8:
        memcpy(&bits, at, 8)
        return <int64_t> __builtin_bswap64(bits)
    for i in range(length):
        bits = bits << 8 | at[i]
    if flags & 8:
        word = <uint32_t> bits
        memcpy(&single, &word, 4)
        wide = single
        memcpy(&result, &wide, 8)
        return result
    if length == 1:
        return <signed char> bits
    if length == 2:
        return <short> bits
    return <int32_t> bits


cdef extern from *:
    uint32_t __builtin_bswap32(uint32_t) noexcept nogil
    uint64_t __builtin_bswap64(uint64_t) noexcept nogil


cdef Py_ssize_t decode_part(
    Part* part, int64_t base_ms, int64_t* last_ms, int64_t* times, int64_t* bits, uint8_t* floats, int* width_of_row
) noexcept nogil:
    """Decode the points of one cell. Return their number, or -1 if the cell is not simple."""
    cdef const uint8_t* q = part.qualifiers
    cdef Py_ssize_t count, at = 0, i
    cdef int width = 4 if q[0] >= MS else 2
    cdef int flags, size
    cdef uint32_t word
    cdef int64_t offset
    if part.qualifier_bytes % width or (width_of_row[0] and width_of_row[0] != width):
        return -1
    width_of_row[0] = width
    count = part.qualifier_bytes // width
    for i in range(count):
        if width == 2:
            word = <uint32_t> q[0] << 8 | q[1]
            offset = <int64_t> (word >> 4) * 1000
            if offset >= 3600000:
                return -1
        else:
            word = <uint32_t> q[0] << 24 | <uint32_t> q[1] << 16 | <uint32_t> q[2] << 8 | q[3]
            if word >> 28 != MS >> 4:
                return -1
            offset = (word & 0x0FFFFFC0) >> 6
        q += width
        flags = word & 0xF
        size = size_of(flags)
        if offset <= last_ms[0] or not size or at + size > part.value_bytes:
            return -1
        last_ms[0] = offset
        times[i] = base_ms + offset
        bits[i] = number(part.value + at, flags)
        floats[i] = flags >> 3
        at += size
    if at != part.value_bytes and (count == 1 or at + 1 != part.value_bytes):
        return -1
    return count


cdef inline int64_t base_before(const uint8_t* at) noexcept nogil:
    """Return the base time that ends before a place of a row key."""
    cdef uint32_t base
    memcpy(&base, at - 4, 4)
    return __builtin_bswap32(base)


def decode_cells(
    list columns, list values, Py_ssize_t skip, Py_ssize_t ahead, const int64_t[::1] row_of, const int64_t[::1] bases_ms,
    int64_t[::1] times, int64_t[::1] bits, uint8_t[::1] floats, int64_t[::1] counts, uint8_t[::1] slow,
):
    """Decode the cells of simple rows and return their number of points.

    `columns[i]` (its qualifier starts after `skip` bytes) and `values[i]` (its value starts after `ahead` bytes) are a
    cell of the row `row_of[i]`. The cells of a row are adjacent. Points are written to `times`, `bits` and `floats`,
    which have room for a point for every two bytes of qualifiers; their number in each row is written to `counts`.
    A row that is not simple is marked in `slow` and gets no points. Rows that are already marked are skipped.
    """
    cdef Py_ssize_t cells = len(columns), i, filled = 0, first, got
    cdef int64_t row, last_ms
    cdef int width = 0
    cdef bytes column, value
    cdef Part* parts = <Part*> malloc((cells + 1) * sizeof(Part))
    if parts == NULL:
        raise MemoryError
    try:
        for i in range(cells):
            column, value = columns[i], values[i]
            parts[i].qualifiers = <const uint8_t*> PyBytes_AS_STRING(column) + skip
            parts[i].qualifier_bytes = PyBytes_GET_SIZE(column) - skip
            parts[i].value = <const uint8_t*> PyBytes_AS_STRING(value) + ahead
            parts[i].value_bytes = PyBytes_GET_SIZE(value) - ahead
        with nogil:
            row = -1
            first = last_ms = 0
            for i in range(cells):
                if row_of[i] != row:
                    row, first, last_ms, width = row_of[i], filled, -1, 0
                if slow[row]:
                    continue
                got = -1
                if parts[i].qualifier_bytes > 0 and parts[i].value_bytes >= 0:
                    got = decode_part(
                        &parts[i], bases_ms[row], &last_ms, &times[filled], &bits[filled], &floats[filled], &width
                    )
                if got < 0:
                    slow[row], counts[row], filled = 1, 0, first
                else:
                    filled += got
                    counts[row] = filled - first
    finally:
        free(parts)
    return filled


cdef enum:
    UNWANTED = -1
    UNNUMBERED = -2


cdef bint has_names(
    const uint8_t* pairs, Py_ssize_t size, Py_ssize_t width, const uint8_t* names, Py_ssize_t names_size, Py_ssize_t tagk
) noexcept nogil:
    """Return whether tag pairs of `width` have all names of `tagk` bytes."""
    cdef Py_ssize_t name = 0, at
    while name < names_size:
        at = 0
        while at < size and memcmp(pairs + at, names + name, tagk):
            at += width
        if at >= size:
            return False
        name += tagk
    return True


cdef int32_t number_of(
    bytes pairs, dict numbers, list known, bytes names, Py_ssize_t tagk, Py_ssize_t width, list unnumbered
) except? UNNUMBERED:
    """Return the number of a series. Give it one where tag names tell whether it matches, else add it to a list."""
    cdef PyObject* number = PyDict_GetItem(numbers, pairs)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(pairs)
    cdef int32_t found
    if number != NULL:
        return PyLong_AsLong(<object> number)
    if not width or not size or size % width:
        unnumbered.append(pairs)
        return UNNUMBERED
    found = UNWANTED
    if has_names(
        <const uint8_t*> PyBytes_AS_STRING(pairs), size, width,
        <const uint8_t*> PyBytes_AS_STRING(names), PyBytes_GET_SIZE(names), tagk,
    ):
        found = len(known)
        known.append(pairs)
    numbers[pairs] = found
    return found


def number_series(
    list every, dict numbers, list known, bytes names, Py_ssize_t tagk, Py_ssize_t width, int32_t[::1] found
):
    """See tsd.tables.opentsdb.decode.number_series. `names`: required tag names of `tagk` bytes, joined; `width`: of
    tag pairs, 0 if names do not tell which series match."""
    cdef Py_ssize_t i
    cdef list unnumbered = []
    for i in range(len(every)):
        found[i] = number_of(every[i], numbers, known, names, tagk, width, unnumbered)
    return unnumbered


def number_rows(
    list keys, Py_ssize_t start, dict numbers, list known, bytes names, Py_ssize_t tagk, Py_ssize_t width,
    int32_t[::1] found, int64_t[::1] bases_s, uint8_t[::1] fresh,
):
    """See tsd.tables.opentsdb.decode.number_rows, and `number_series`."""
    cdef Py_ssize_t i, size
    cdef bytes key, pairs, last = b""
    cdef const uint8_t* at
    cdef list unnumbered = []
    for i in range(len(keys)):
        key = keys[i]
        fresh[i] = i == 0 or key != last
        if not fresh[i]:
            found[i], bases_s[i] = found[i - 1], bases_s[i - 1]
            continue
        last = key
        size = PyBytes_GET_SIZE(key) - start
        at = <const uint8_t*> PyBytes_AS_STRING(key) + start
        bases_s[i] = base_before(at) if size >= 0 else 0
        size = max(size, 0)
        pairs = PyBytes_FromStringAndSize(<const char*> at if size else NULL, size)
        found[i] = number_of(pairs, numbers, known, names, tagk, width, unnumbered)
    return unnumbered
