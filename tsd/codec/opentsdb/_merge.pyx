# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Compiled merge of simple cells (see tsd.codec.opentsdb.merge). It keeps the GIL: a row takes microseconds."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from tsd.codec.opentsdb.cell import MS_MARK, VALUE_SIZES

cdef uint8_t ms_mark = MS_MARK
cdef uint8_t[256] sizes  # length of a value by its qualifier's last byte; 0 for invalid flags
for low in range(256):
    sizes[low] = VALUE_SIZES[low]


cdef struct Entry:
    uint32_t moment  # time bits of the qualifier
    uint8_t size  # of the value
    const uint8_t* qualifier
    const uint8_t* value


cdef Py_ssize_t run_end(const Entry* entries, Py_ssize_t start, Py_ssize_t count) noexcept nogil:
    """Return the end of the ascending run that begins at `start`."""
    cdef Py_ssize_t at = start + 1
    while at < count and entries[at - 1].moment < entries[at].moment:
        at += 1
    return at if at < count else count


cdef bint merge_two(const Entry* left, const Entry* right, Py_ssize_t first, Py_ssize_t second, Entry* to) noexcept nogil:
    """Merge `first` and `second` entries, which ascend, into `to`. Return False if two have equal times."""
    cdef const Entry* left_end = left + first
    cdef const Entry* right_end = right + second
    while left < left_end and right < right_end:
        if left.moment == right.moment:
            return False
        if left.moment < right.moment:
            to[0] = left[0]
            left += 1
        else:
            to[0] = right[0]
            right += 1
        to += 1
    if left < left_end:
        memcpy(to, left, (left_end - left) * sizeof(Entry))
    else:
        memcpy(to, right, (right_end - right) * sizeof(Entry))
    return True


cdef Entry* merged_runs(Entry* entries, Entry* spare, Py_ssize_t count) noexcept nogil:
    """Sort entries by merging their runs in pairs: cells ascend, so there are few. Return the array with the result,
    which is one of the two; NULL if two entries have equal times."""
    cdef Py_ssize_t start, middle, end
    cdef Entry* before
    while run_end(entries, 0, count) < count:
        start = 0
        while start < count:
            middle = run_end(entries, start, count)
            end = run_end(entries, middle, count) if middle < count else count
            if not merge_two(entries + start, entries + middle, middle - start, end - middle, spare + start):
                return NULL
            start = end
        before, entries, spare = entries, spare, entries
    return entries


cdef Py_ssize_t width_of(list cells) except -1:
    """Return the common length of the cells' qualifiers by their first point; 0 if there is none."""
    cdef Py_ssize_t width = 0, size, each
    cdef bytes qualifier
    for cell in cells:
        qualifier = cell[0]
        size = PyBytes_GET_SIZE(qualifier)
        each = 4 if size and <uint8_t> PyBytes_AS_STRING(qualifier)[0] >= ms_mark else 2
        if size == 0 or size % each or (width and width != each):
            return 0
        width = each
    return width


cdef bint read_cell(Entry* to, bytes qualifier, bytes value, Py_ssize_t width) noexcept:
    """Read the points of a cell; return False if it is not simple."""
    cdef const uint8_t* text = <const uint8_t*> PyBytes_AS_STRING(qualifier)
    cdef const uint8_t* values = <const uint8_t*> PyBytes_AS_STRING(value)
    cdef Py_ssize_t count = PyBytes_GET_SIZE(qualifier) // width, left = PyBytes_GET_SIZE(value), at
    cdef uint8_t size
    for at in range(count):
        if (text[0] >= ms_mark) != (width == 4):
            return False
        size = sizes[text[width - 1]]
        if size == 0 or size > left:
            return False
        if width == 2:
            to.moment = (<uint32_t> text[0] << 8 | text[1]) >> 4
        else:
            to.moment = (<uint32_t> text[0] << 24 | text[1] << 16 | text[2] << 8 | text[3]) >> 6
        if at and to.moment <= (to - 1).moment:
            return False
        to.size, to.qualifier, to.value = size, text, values
        text += width
        values += size
        left -= size
        to += 1
    return left == 0 or (left == 1 and count > 1)


cdef join_entries(Entry* entries, Py_ssize_t count, Py_ssize_t width, Py_ssize_t size):
    """Return qualifiers and values of ascending points, and their number."""
    cdef bytes qualifier = PyBytes_FromStringAndSize(NULL, count * width)
    cdef bytes value = PyBytes_FromStringAndSize(NULL, size + (count > 1))
    cdef char* name = PyBytes_AS_STRING(qualifier)
    cdef char* content = PyBytes_AS_STRING(value)
    cdef Py_ssize_t at
    for at in range(count):
        memcpy(name, entries[at].qualifier, width)
        memcpy(content, entries[at].value, entries[at].size)
        name += width
        content += entries[at].size
    if count > 1:
        content[0] = 0  # all qualifiers have one length
    return qualifier, value, count


def join_cells(list cells not None):
    """Return the qualifier, the value and the number of all points of cells, given as (qualifier, value, …) in any order.
    None: a cell is not simple, qualifiers have different lengths, or points have equal times."""
    cdef Py_ssize_t count = 0, size = 0, at = 0
    cdef Py_ssize_t width = width_of(cells)
    cdef bytes qualifier, value
    cdef bint ascends = True
    cdef Entry* entries
    cdef Entry* ordered
    if width == 0:
        return None
    for cell in cells:
        qualifier = cell[0]
        count += PyBytes_GET_SIZE(qualifier) // width
    entries = <Entry*> malloc(2 * count * sizeof(Entry))  # the second half is for sorting
    if entries == NULL:
        raise MemoryError
    try:
        for cell in cells:
            qualifier, value = cell[0], cell[1]
            if not read_cell(entries + at, qualifier, value, width):
                return None
            at += PyBytes_GET_SIZE(qualifier) // width
        for at in range(count):
            size += entries[at].size
            ascends &= at == 0 or entries[at - 1].moment < entries[at].moment
        ordered = entries
        if not ascends:
            ordered = merged_runs(entries, entries + count, count)
            if ordered == NULL:
                return None
        return join_entries(ordered, count, width, size)
    finally:
        free(entries)
