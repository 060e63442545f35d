# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Compiled merge of simple cells (see tsd.codec.opentsdb.merge). It keeps the GIL: a row takes microseconds."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

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


cdef Py_ssize_t width_of(list cells, bytes family) except -1:
    """Return the common length of the cells' qualifiers by their first point; 0 if there is none, or a column is not of
    the family."""
    cdef Py_ssize_t width = 0, size, each, skip = PyBytes_GET_SIZE(family)
    cdef const char* text
    cdef bytes column
    for cell in cells:
        column = cell[0]
        text = PyBytes_AS_STRING(column)
        size = PyBytes_GET_SIZE(column) - skip
        if size <= 0 or memcmp(text, PyBytes_AS_STRING(family), skip):
            return 0
        each = 4 if <uint8_t> text[skip] >= ms_mark else 2
        if size % each or (width and width != each):
            return 0
        width = each
    return width


cdef bint read_cell(Entry* to, bytes column, Py_ssize_t skip, bytes value, Py_ssize_t width) noexcept:
    """Read the points of a cell, whose qualifier follows `skip` bytes; return False if it is not simple."""
    cdef const uint8_t* text = <const uint8_t*> PyBytes_AS_STRING(column) + skip
    cdef const uint8_t* values = <const uint8_t*> PyBytes_AS_STRING(value)
    cdef Py_ssize_t count = (PyBytes_GET_SIZE(column) - skip) // width, left = PyBytes_GET_SIZE(value), at
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


cdef join_entries(Entry* entries, Py_ssize_t count, Py_ssize_t width, Py_ssize_t size, bytes family):
    """Return the column and the value of ascending points, and their number."""
    cdef Py_ssize_t skip = PyBytes_GET_SIZE(family)
    cdef bytes column = PyBytes_FromStringAndSize(NULL, skip + count * width)
    cdef bytes value = PyBytes_FromStringAndSize(NULL, size + (count > 1))
    cdef char* name = PyBytes_AS_STRING(column)
    cdef char* content = PyBytes_AS_STRING(value)
    cdef Py_ssize_t at
    memcpy(name, PyBytes_AS_STRING(family), skip)
    name += skip
    for at in range(count):
        memcpy(name, entries[at].qualifier, width)
        memcpy(content, entries[at].value, entries[at].size)
        name += width
        content += entries[at].size
    if count > 1:
        content[0] = 0  # all qualifiers have one length
    return column, value, count


def join_cells(list cells not None, bytes family not None=b""):
    """Return the column, the value and the number of all points of cells, given as (column, value, …) in any order.
    A column is `family` and a qualifier. None: a column has another family, a cell is not simple, qualifiers have
    different lengths, or points have equal times."""
    cdef Py_ssize_t count = 0, size = 0, at = 0, skip = PyBytes_GET_SIZE(family)
    cdef Py_ssize_t width = width_of(cells, family)
    cdef bytes column, value
    cdef bint ascends = True
    cdef Entry* entries
    cdef Entry* ordered
    if width == 0:
        return None
    for cell in cells:
        column = cell[0]
        count += (PyBytes_GET_SIZE(column) - skip) // width
    entries = <Entry*> malloc(2 * count * sizeof(Entry))  # the second half is for sorting
    if entries == NULL:
        raise MemoryError
    try:
        for cell in cells:
            column, value = cell[0], cell[1]
            if not read_cell(entries + at, column, skip, value, width):
                return None
            at += (PyBytes_GET_SIZE(column) - skip) // width
        for at in range(count):
            size += entries[at].size
            ascends &= at == 0 or entries[at - 1].moment < entries[at].moment
        ordered = entries
        if not ascends:
            ordered = merged_runs(entries, entries + count, count)
            if ordered == NULL:
                return None
        return join_entries(ordered, count, width, size, family)
    finally:
        free(entries)


def measure(list cells not None):
    """Return the bytes of the columns and of the values of cells, given as (column, value, time), the highest time, and
    how many have it."""
    cdef Py_ssize_t columns = 0, values = 0, newest = 0
    cdef int64_t highest = 0, time
    cdef bytes column, value
    for cell in cells:
        column, value, time = cell[0], cell[1], cell[2]
        columns += PyBytes_GET_SIZE(column)
        values += PyBytes_GET_SIZE(value)
        if not newest or time > highest:
            highest, newest = time, 1
        elif time == highest:
            newest += 1
    return columns, values, highest, newest
