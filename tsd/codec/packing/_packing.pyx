# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled twin of `tsd.codec.packing.cell` and `tsd.codec.packing.sequence`, which define the format: both make
the same bytes of a cell, and the same cell of bytes."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.math cimport fabs
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

from zlib import crc32 as checksum_of

from tsd.codec.opentsdb.cell import MS_MARK
from tsd.errors import CorruptRow

cdef uint8_t MS = MS_MARK  # high bits of a millisecond qualifier's first byte

cdef extern from *:
    """
    #define BITS(x) ((x) ? 64 - __builtin_clzll(x) : 0)
    #define ZEROS(x) __builtin_ctzll(x)
    #define SWAP16(x) __builtin_bswap16(x)
    #define SWAP32(x) __builtin_bswap32(x)
    #define SWAP64(x) __builtin_bswap64(x)
    #if defined(__SSE2__) && defined(__x86_64__) /* one instruction; rint is a call */
    #include <emmintrin.h>
    #define NEAREST(x) _mm_cvtsd_si64(_mm_set_sd(x))
    #else
    #include <math.h>
    #define NEAREST(x) ((int64_t) rint(x))
    #endif
    #if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    #error "written for little-endian processors"
    #endif
    """
    int BITS(uint64_t) nogil
    int ZEROS(uint64_t) nogil
    uint32_t SWAP16(uint32_t) nogil
    uint32_t SWAP32(uint32_t) nogil
    uint64_t SWAP64(uint64_t) nogil
    int64_t NEAREST(double) nogil

cdef enum:
    FORM = 1
    LEAST_POINTS = 1
    MOST_POINTS = 1 << 16
    INTEGER = 0
    DECIMAL = 1
    DOUBLE = 2
    SINGLE = 3
    SHORTEST = 16
    WHOLE = 17
    MOST_DECIMALS = 9
    SINGLE_FLAGS = 11
    DOUBLE_FLAGS = 15
    FEW = 4
    FIXED = 0
    FROM_LEAST = 1
    FROM_MEAN = 2
    SPARSE = 3
    HEAD_BYTES = 128

cdef double BEYOND = 9007199254740992.0  # 2**53
cdef uint64_t WIDE = <uint64_t> 1 << 47
cdef double[10] POWERS
POWERS[:] = [1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9]


cdef struct Scratch:
    int64_t* times
    int64_t* numbers
    double* doubles
    int64_t* rests  # what an order leaves
    uint64_t* some  # not negative
    uint64_t* more
    uint64_t* gaps
    uint64_t* steps
    uint8_t* flags


cdef int make_room(Scratch* room, void** block, Py_ssize_t count) except -1:
    cdef char* at = <char*> malloc(count * 65 + 64)
    block[0] = at
    if at == NULL:
        raise MemoryError
    room.times = <int64_t*> at
    room.numbers = room.times + count
    room.doubles = <double*> (room.numbers + count)
    room.rests = <int64_t*> (room.doubles + count)
    room.some = <uint64_t*> (room.rests + count)
    room.more = room.some + count
    room.gaps = room.more + count
    room.steps = room.gaps + count
    room.flags = <uint8_t*> (room.steps + count)
    return 0

cdef struct Cell:
    Py_ssize_t count
    bint in_ms
    int tail  # 0: none, 1: UNIFORM, 2: MIXED
    int kind
    int rule
    int decimals


include "_checksum.pxi"
include "_sequence_encode.pxi"
include "_sequence_decode.pxi"
include "_cell_encode.pxi"
include "_cell_decode.pxi"
include "_points.pxi"
include "_tables.pxi"
include "_downsample.pxi"


def pack(bytes qualifier, bytes value):
    """See tsd.codec.packing.cell.pack."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(qualifier), value_size = PyBytes_GET_SIZE(value), made
    cdef const uint8_t* text = <const uint8_t*> PyBytes_AS_STRING(qualifier)
    cdef const uint8_t* content = <const uint8_t*> PyBytes_AS_STRING(value)
    cdef Scratch room
    cdef Cell cell
    cdef void* block
    cdef uint8_t* out
    cdef bytes found
    cell.in_ms = size > 0 and text[0] >= MS
    cell.count = size // 4 if cell.in_ms else size // 2
    if cell.count < LEAST_POINTS or cell.count > MOST_POINTS or size % (4 if cell.in_ms else 2):
        return None
    make_room(&room, &block, cell.count)
    out = <uint8_t*> malloc(cell.count * 18 + HEAD_BYTES * 4)
    try:
        if out == NULL:
            raise MemoryError
        made = pack_into(out, text, size, content, value_size, &room, &cell)
        if made < 0:
            return None
        found = PyBytes_FromStringAndSize(<const char*> out, made)
        return found + checksum_of(found).to_bytes(4, "little")
    finally:
        free(block)
        free(out)


def unpack(bytes stored, Py_ssize_t ahead, bytes prefix):
    """See tsd.codec.packing.cell.unpack."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(stored), before = PyBytes_GET_SIZE(prefix), value_size = -1, width
    cdef const uint8_t* text = <const uint8_t*> PyBytes_AS_STRING(stored)
    cdef Scratch room
    cdef Cell cell
    cdef Source source
    cdef void* block = NULL
    cdef uint32_t checksum
    cdef bytes packed, column, value
    cdef char* out
    cdef uint8_t* content = NULL
    if size < ahead + 9:
        raise CorruptRow(f"a packed cell of {size - ahead} bytes")
    memcpy(&checksum, text + size - 4, 4)
    packed = PyBytes_FromStringAndSize(<const char*> text + ahead, size - 4 - ahead)
    if <uint32_t> checksum_of(packed) != checksum:
        raise CorruptRow(f"a packed cell's checksum is wrong: {stored[ahead:].hex()}")
    source.at, source.end = text + ahead, text + size - 4
    if read_head(&source, &cell):
        raise CorruptRow(f"no packed cell starts like this: {stored[ahead : ahead + 8].hex()}")
    make_room(&room, &block, cell.count)
    try:
        if (
            take_sequence(&source, &room, room.times, cell.count) == 0
            and take_sequence(&source, &room, room.numbers, cell.count) == 0
            and source.at == source.end
        ):
            content = <uint8_t*> room.rests  # of no more use, nor is what follows it
            value_size = put_values(content, &room, &cell)
        width = 4 if cell.in_ms else 2
        if value_size >= 0:
            column = PyBytes_FromStringAndSize(NULL, before + width * cell.count)
            out = PyBytes_AS_STRING(column)
            memcpy(out, PyBytes_AS_STRING(prefix), before)
            if write_qualifier(<uint8_t*> out + before, &room, &cell) == 0:
                value = PyBytes_FromStringAndSize(NULL, ahead + value_size)
                out = PyBytes_AS_STRING(value)
                memcpy(out, text, ahead)
                memcpy(out + ahead, content, value_size)
                return column, value
        raise CorruptRow(f"a packed cell breaks its form: {stored[ahead:].hex()}")
    finally:
        free(block)
