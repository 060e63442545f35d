# The columns of points in one piece of memory, and points put in order, a part of _rows.pyx.

cdef extern from *:
    """
    #include <stdint.h>
    #include <stdlib.h>
    #include <sys/mman.h>
    /* Memory that is filled from its start: large pages, where there are any, save a fault for every 4 KiB. */
    static void* tsd_large(size_t size) {
        char* start = malloc(size);
    #ifdef MADV_HUGEPAGE
        uintptr_t page = (uintptr_t) 2 << 20, first = ((uintptr_t) start + page - 1) & ~(page - 1);
        uintptr_t end = ((uintptr_t) start + size) & ~(page - 1);
        if (start && first < end)
            madvise((void*) first, end - first, MADV_HUGEPAGE);
    #endif
        return start;
    }
    """
    void* tsd_large(size_t size) nogil

cdef enum:
    POINT_BYTES = 21
    AHEAD = 24  # points: to read them from all over a window takes as long as memory does, unless it is told before
    FEW_POINTS = 1 << 17
    MANY_POINTS = (1 << 21) + (1 << 16)  # what a large window takes (MOST_POINTS of tsd.ingest.writer), and a block more

cdef struct Columns:
    char* start  # of the memory
    int64_t* instants
    int64_t* bits
    int32_t* series
    uint8_t* flags


cdef int new_columns(Columns* columns, Py_ssize_t room, bint to_stay=False) noexcept nogil:
    """Have memory for so many points: none of it is touched. What is to stay as it is takes no large pages: it would
    fill none of them."""
    columns.start = <char*> (malloc(room * POINT_BYTES) if to_stay else tsd_large(room * POINT_BYTES))
    if columns.start == NULL:
        return NO_MEMORY
    columns.instants = <int64_t*> columns.start
    columns.bits = columns.instants + room
    columns.series = <int32_t*> (columns.bits + room)
    columns.flags = <uint8_t*> (columns.series + room)
    return TAKEN


cdef void copy_columns(Columns* to, Columns* columns, Py_ssize_t count) noexcept nogil:
    """So many points."""
    if count:
        memcpy(to.series, columns.series, count * sizeof(int32_t))
        memcpy(to.instants, columns.instants, count * sizeof(int64_t))
        memcpy(to.flags, columns.flags, count)
        memcpy(to.bits, columns.bits, count * sizeof(int64_t))


cdef tuple given_away(Columns* columns, Py_ssize_t count):
    """The columns of so many points for numpy, in its order of them; they free the memory."""
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
        memory.start = NULL  # it stays where it was
        raise


cdef class Memory:
    """What malloc gave, to be read as an array; freed with it."""

    cdef char* start
    cdef Py_ssize_t size
    cdef Py_ssize_t stride

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
    """The places of points by series, those of each in order of arrival, as bytes of int32. All series are below
    `numbers`. Raises MemoryError."""
    cdef Py_ssize_t count = series.shape[0], at
    cdef int32_t sum = 0, met
    cdef int32_t* next_of = <int32_t*> calloc(numbers + 1, sizeof(int32_t))
    cdef Memory places = Memory.__new__(Memory)
    cdef int32_t* to
    if next_of == NULL or count >= 1 << 31:  # more than any window has
        free(next_of)
        raise MemoryError
    places.start, places.size = <char*> tsd_large(count * sizeof(int32_t) + 1), count * sizeof(int32_t)
    try:
        if places.start == NULL:
            raise MemoryError
        to = <int32_t*> places.start
        with nogil:
            for at in range(count):
                next_of[series[at]] += 1
            for at in range(numbers):
                met = next_of[at]
                next_of[at] = sum
                sum += met
            for at in range(count):
                to[next_of[series[at]]] = <int32_t> at
                next_of[series[at]] += 1
    finally:
        free(next_of)
    return memoryview(places)


def picked(
    const int32_t[::1] series, const int64_t[::1] instants, const uint8_t[::1] flags, const int64_t[::1] bits,
    const int32_t[::1] places,
):
    """The columns of the points at these places, and whether each is later than the one before it or of another series.
    Raises MemoryError."""
    cdef Py_ssize_t count = places.shape[0], at
    cdef int32_t place
    cdef bint tidy = True
    cdef Columns to
    if new_columns(&to, max(count, 1)) != TAKEN:
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
                tidy = False
    try:
        return given_away(&to, count), tidy
    except MemoryError:
        free(to.start)
        raise
