# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled twin of some functions of `tsd.codec.blocks.block`, which has the same ones in Python."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from tsd.errors import CorruptRow

cdef extern from *:
    uint64_t __builtin_bswap64(uint64_t) nogil

include "../packing/_checksum.pxi"


def rows_of(bytes columns not None, Py_ssize_t at, Py_ssize_t rows, Py_ssize_t width):
    """See tsd.codec.blocks.block."""
    cdef Py_ssize_t row, byte
    if at + rows * width > PyBytes_GET_SIZE(columns):
        raise CorruptRow(f"the directory of a block has {len(columns)} bytes, wanted {at + rows * width}")
    cdef bytes found = PyBytes_FromStringAndSize(NULL, rows * width)
    cdef const char* column = PyBytes_AS_STRING(columns) + at
    cdef char* to = PyBytes_AS_STRING(found)
    for byte in range(width):
        for row in range(rows):
            to[row * width + byte] = column[row]
        column += rows
    return found


def ascends(bytes rows not None, Py_ssize_t width):
    """See tsd.codec.blocks.block."""
    cdef const char* at = PyBytes_AS_STRING(rows)
    cdef Py_ssize_t row
    for row in range(1, PyBytes_GET_SIZE(rows) // width):
        if memcmp(at + (row - 1) * width, at + row * width, width) >= 0:
            return False
    return True


def ends_of(bytes sizes not None, int32_t[::1] ends):
    """See tsd.codec.blocks.block."""
    cdef Py_ssize_t rows = PyBytes_GET_SIZE(sizes) // 4, row
    cdef const char* at = PyBytes_AS_STRING(sizes)
    cdef int64_t end = 0
    cdef uint32_t size, least = 0xFFFFFFFF
    ends[0] = 0
    for row in range(rows):
        memcpy(&size, at + 4 * row, 4)
        least = min(least, size)
        end += size
        if end > 0x7FFFFFFF:
            raise CorruptRow(f"the cells of a block have more than {end} bytes")
        ends[row + 1] = <int32_t> end
    return least


def stored_cells(
    bytes heads not None, Py_ssize_t ahead, bytes rests not None, const int32_t[::1] ends, const int64_t[::1] stamps,
    const int64_t[::1] rows,
):
    """See tsd.codec.blocks.block."""
    cdef const char* head = PyBytes_AS_STRING(heads)
    cdef const char* rest = PyBytes_AS_STRING(rests)
    cdef list found = []
    cdef Py_ssize_t i, size
    cdef int64_t row
    cdef uint64_t stamp
    cdef uint32_t checksum
    cdef bytes one
    cdef char* to
    for i in range(rows.shape[0]):
        row = rows[i]
        size = ends[row + 1] - ends[row]
        one = PyBytes_FromStringAndSize(NULL, 8 + size + 4)
        to = PyBytes_AS_STRING(one)
        stamp = __builtin_bswap64(<uint64_t> stamps[row])
        memcpy(to, &stamp, 8)
        memcpy(to + 8, head + row * ahead, ahead)
        memcpy(to + 8 + ahead, rest + ends[row] - row * ahead, size - ahead)
        checksum = crc_of(<const uint8_t*> to + 8, <const uint8_t*> to + 8 + size)
        memcpy(to + 8 + size, &checksum, 4)
        found.append(one)
    return found
