# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Columns of points as buffers for numpy, and sorting of points by series: the compiled part of `tsd.codec.points`."""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from tsd.codec._arrays cimport DONE, PREFETCH, tsd_large

cdef enum:
    FLOAT_BIT = 8  # of a value's flags; the others are its bytes, minus one
    AHEAD = 24  # points to prefetch, because reads are not sequential


cdef tuple give_away(Columns* columns, Py_ssize_t count):
    """Return the columns of `count` points as buffers, in the order of `tsd.codec.points.Columns`. The buffers own the
    memory from then on."""
    cdef Memory memory = Memory.__new__(Memory)
    cdef Py_ssize_t bits = <char*> columns.bits - columns.start, series = <char*> columns.series - columns.start
    cdef Py_ssize_t flags = <char*> columns.flags - columns.start
    memory.start, memory.size = columns.start, flags + count
    try:
        whole = memoryview(memory)
        return (
            whole[series : series + count * 4], whole[: count * 8], whole[flags : flags + count],
            whole[bits : bits + count * 8],
        )
    except MemoryError:
        memory.start = NULL  # the caller still owns it
        raise


cdef class Memory:
    """Buffer over memory from malloc, which it frees."""

    def __dealloc__(self):
        free(self.start)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        self.stride = 1
        buffer.buf = self.start
        buffer.obj = self
        buffer.len = self.size
        buffer.readonly = 0
        buffer.format = "B"
        buffer.ndim = 1
        buffer.itemsize = 1
        buffer.shape = &self.size
        buffer.strides = &self.stride
        buffer.suboffsets = NULL
        buffer.internal = NULL

    def __releasebuffer__(self, Py_buffer* buffer):
        pass


def order(const int32_t[::1] series, Py_ssize_t numbers):
    """Return the indexes of points sorted by series, then by arrival, as bytes of int32. All series numbers are below
    `numbers`. Raise MemoryError."""
    cdef Py_ssize_t count = series.shape[0], at
    cdef int32_t sum = 0, points
    cdef int32_t* next_of = <int32_t*> calloc(numbers + 1, sizeof(int32_t))
    cdef Memory places = Memory.__new__(Memory)
    cdef int32_t* to
    if next_of == NULL or count >= 1 << 31:  # more than any window has
        free(next_of)
        raise MemoryError
    places.size = count * sizeof(int32_t)
    places.start = <char*> tsd_large(places.size + 1, places.size)
    try:
        if places.start == NULL:
            raise MemoryError
        to = <int32_t*> places.start
        with nogil:
            for at in range(count):
                next_of[series[at]] += 1
            for at in range(numbers):
                points = next_of[at]
                next_of[at] = sum
                sum += points
            for at in range(count):
                to[next_of[series[at]]] = <int32_t> at
                next_of[series[at]] += 1
    finally:
        free(next_of)
    return memoryview(places)


def pick(
    const int32_t[::1] series, const int64_t[::1] instants, const uint8_t[::1] flags, const int64_t[::1] bits,
    const int32_t[::1] places,
):
    """Return the columns of the points with these indexes, and whether the times of each series ascend strictly. Raise
    MemoryError."""
    cdef Py_ssize_t count = places.shape[0], at
    cdef int32_t place
    cdef bint is_sorted = True
    cdef Columns to
    if new_columns(&to, max(count, 1), True) != DONE:
        raise MemoryError
    with nogil:
        for at in range(count):
            if at + AHEAD < count:
                place = places[at + AHEAD]
                PREFETCH(&series[place])
                PREFETCH(&instants[place])
                PREFETCH(&flags[place])
                PREFETCH(&bits[place])
            place = places[at]
            to.series[at], to.instants[at] = series[place], instants[place]
            to.flags[at], to.bits[at] = flags[place], bits[place]
            if at > 0 and to.series[at] == to.series[at - 1] and to.instants[at] >> 1 <= to.instants[at - 1] >> 1:
                is_sorted = False
    try:
        return give_away(&to, count), is_sorted
    except MemoryError:
        free(to.start)
        raise


def choose(
    const int32_t[::1] series, const int64_t[::1] instants, const uint8_t[::1] flags, const int64_t[::1] bits,
    const int32_t[::1] owners, int32_t owner,
):
    """Return the columns of the points whose series has an owner: `owners[series]` is `owner`. Raise MemoryError."""
    cdef Py_ssize_t count = series.shape[0], at, chosen = 0, filled = 0
    cdef Columns to
    with nogil:
        for at in range(count):
            chosen += owners[series[at]] == owner
    if new_columns(&to, max(chosen, 1), True) != DONE:
        raise MemoryError
    with nogil:
        for at in range(count):
            if owners[series[at]] == owner:
                to.series[filled], to.instants[filled] = series[at], instants[at]
                to.flags[filled], to.bits[filled] = flags[at], bits[at]
                filled += 1
    try:
        return give_away(&to, chosen)
    except MemoryError:
        free(to.start)
        raise


def widen(const uint8_t[::1] flags, const int64_t[::1] bits, int64_t[::1] wide, uint8_t[::1] floats):
    """Write the value of each point as an integer, or as the bits of a double, and whether it is a double."""
    cdef Py_ssize_t at
    with nogil:
        for at in range(flags.shape[0]):
            floats[at] = (flags[at] & FLOAT_BIT) != 0
            wide[at] = wide_value(flags[at], bits[at])


def shorten(int64_t[::1] bits, const uint8_t[::1] floats, uint8_t[::1] flags):
    """Write the flags of the shortest form of each value, which is an integer or, where `floats` is set, a double. Bits
    of doubles become those of singles where these have the same value."""
    cdef Py_ssize_t at
    cdef int64_t value
    cdef double number
    cdef float single
    cdef uint32_t word
    with nogil:
        for at in range(bits.shape[0]):
            value = bits[at]
            if floats[at]:
                memcpy(&number, &value, 8)
                single = <float> number
                if single == number:
                    memcpy(&word, &single, 4)
                    bits[at], flags[at] = word, FLOAT_BIT | 3
                else:
                    flags[at] = FLOAT_BIT | 7
            elif value == <int8_t> value:
                flags[at] = 0
            elif value == <int16_t> value:
                flags[at] = 1
            else:
                flags[at] = 3 if value == <int32_t> value else 7
