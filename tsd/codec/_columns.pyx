# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Columns of points as buffers for numpy, and sorting of points by series: the compiled part of `tsd.codec.points`."""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

from tsd.codec._arrays cimport DONE, PREFETCH, tsd_large

cdef enum:
    FLOAT_BIT = 8  # of a value's flags
    LENGTH_BITS = 7  # of them: the bytes of the value, minus one
    AHEAD = 24  # points to prefetch, because reads are not sequential
    TOGETHER = 64  # points that are passed over together if none is of the series from the first wanted one to the last


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


cdef inline bint has_any(const int32_t* series, Py_ssize_t count, int32_t first, uint32_t width) noexcept nogil:
    """Return whether one of some points is of the series from `first` to `first + width`. Without a branch for each
    point, the compiler compares several at once."""
    cdef Py_ssize_t at
    cdef uint32_t found = 0
    for at in range(count):
        found |= <uint32_t> series[at] - <uint32_t> first <= width
    return found != 0


def choose(
    const int32_t[::1] series, const int64_t[::1] instants, const uint8_t[::1] flags, const int64_t[::1] bits,
    const uint8_t[::1] wanted,
):
    """Return the columns of the points whose series is `wanted`; none beyond the end of that is. Raise MemoryError."""
    cdef Py_ssize_t count = series.shape[0], first = 0, last = wanted.shape[0] - 1, chosen = 0, filled = 0, start, at
    cdef uint8_t* are_near = <uint8_t*> calloc(count // TOGETHER + 1, 1)
    cdef Columns to
    if are_near == NULL:
        raise MemoryError
    with nogil:
        while last >= 0 and not wanted[last]:
            last -= 1
        while first < last and not wanted[first]:
            first += 1
        start = 0 if last >= 0 else count
        while start < count:
            if has_any(&series[start], min(count - start, TOGETHER), <int32_t> first, <uint32_t> (last - first)):
                are_near[start // TOGETHER] = True
                for at in range(start, min(start + TOGETHER, count)):
                    if series[at] <= last:
                        chosen += wanted[series[at]]
            start += TOGETHER
    if new_columns(&to, max(chosen, 1), True) != DONE:
        free(are_near)
        raise MemoryError
    with nogil:
        start = 0
        while filled < chosen:
            if are_near[start // TOGETHER]:
                for at in range(start, min(start + TOGETHER, count)):
                    if series[at] <= last and wanted[series[at]]:
                        to.series[filled], to.instants[filled] = series[at], instants[at]
                        to.flags[filled], to.bits[filled] = flags[at], bits[at]
                        filled += 1
            start += TOGETHER
        free(are_near)
    try:
        return give_away(&to, chosen)
    except MemoryError:
        free(to.start)
        raise


def count(
    const int32_t[::1] series, const int32_t[::1] place_of, int64_t[::1] counts, uint8_t[::1] present,
):
    """Add the points of each series to `counts`, and mark it in `present`, at the place that `place_of` has for it.
    Leave out series with a negative place, or beyond the end of `place_of`."""
    cdef Py_ssize_t at, series_count = place_of.shape[0]
    cdef int32_t place
    with nogil:
        for at in range(series.shape[0]):
            if series[at] < series_count:
                place = place_of[series[at]]
                if place >= 0:
                    counts[place] += 1
                    present[place] = 1


def gather(list parts, const int32_t[::1] row_of, Py_ssize_t rows, int64_t first, int64_t stop):
    """Return the points with instants from `first` to before `stop`, row after row: start of each row and the number of
    points, the bytes that each row takes in a cell, times in ms, values, and which of these are doubles, as bytes. None
    if the times of a row do not ascend. `parts` have columns of points; `row_of` has the row of each series, negative
    for those to leave out, as are series beyond its end. Raise MemoryError."""
    cdef Memory starts = new_memory((rows + 1) * sizeof(int64_t)), sizes = new_memory(rows * sizeof(int64_t))
    cdef Memory ends = new_memory(rows * sizeof(int64_t)), times, bits, floats
    cdef int64_t* start_of = <int64_t*> starts.start
    cdef int64_t* size_of = <int64_t*> sizes.start
    cdef int64_t* end_of = <int64_t*> ends.start
    cdef int64_t* to_times
    cdef int64_t* to_bits
    cdef uint8_t* to_floats
    cdef const int32_t[::1] series
    cdef const int64_t[::1] instants, values
    cdef const uint8_t[::1] flags
    cdef Py_ssize_t at, count, series_count = row_of.shape[0]
    cdef int64_t place, points, size, time, newest, total = 0
    cdef int32_t row, one
    cdef bint is_sorted = True
    with nogil:
        for at in range(rows + 1):
            start_of[at] = 0
        for at in range(rows):
            size_of[at] = 0
    for series, instants, _, _ in parts:
        with nogil:
            one, row, points = -1, -1, 0
            for at in range(series.shape[0]):
                if series[at] != one:  # points of one series often follow each other
                    if row >= 0:
                        start_of[row + 1] += points
                    one, points = series[at], 0
                    row = row_of[one] if one < series_count else -1
                points += first <= instants[at] < stop
            if row >= 0:
                start_of[row + 1] += points
    with nogil:
        for at in range(rows):
            end_of[at] = total
            total += start_of[at + 1]
            start_of[at + 1] = total
    times, bits, floats = new_memory(total * 8), new_memory(total * 8), new_memory(total)
    to_times, to_bits, to_floats = <int64_t*> times.start, <int64_t*> bits.start, <uint8_t*> floats.start
    for series, instants, flags, values in parts:
        with nogil:
            at, count = 0, series.shape[0]
            while at < count:
                if at + AHEAD < count and series[at + AHEAD] < series_count:
                    row = row_of[series[at + AHEAD]]
                    if row >= 0:
                        PREFETCH(&to_times[end_of[row]])
                        PREFETCH(&to_bits[end_of[row]])
                        PREFETCH(&to_floats[end_of[row]])
                one = series[at]
                row = row_of[one] if one < series_count else -1
                if row < 0:
                    at += 1
                    continue
                place, size = end_of[row], 0
                newest = to_times[place - 1] if place > start_of[row] else (first >> 1) - 1
                while at < count and series[at] == one:
                    if first <= instants[at] < stop:
                        time = instants[at] >> 1
                        if time <= newest:
                            is_sorted = False
                        newest = time
                        to_times[place] = time
                        to_bits[place] = wide_value(flags[at], values[at])
                        to_floats[place] = (flags[at] & FLOAT_BIT) != 0
                        size += (flags[at] & LENGTH_BITS) + 1
                        place += 1
                    at += 1
                end_of[row] = place
                size_of[row] += size
        if not is_sorted:
            return None
    return memoryview(starts), memoryview(sizes), memoryview(times), memoryview(bits), memoryview(floats)


cdef struct Rows:
    const int64_t* times
    const int64_t* bits
    const uint8_t* floats


def merge_rows(
    const int64_t[::1] starts, const int64_t[::1] times, const int64_t[::1] bits, const uint8_t[::1] floats,
    const int64_t[::1] added_starts, const int64_t[::1] added_times, const int64_t[::1] added_bits,
    const uint8_t[::1] added_floats, const int64_t[::1] added_of, int64_t[::1] to_starts,
):
    """Return the points of rows, each with those of an added row, and whether all rows have the same times: times,
    values, and which of these are doubles, as bytes. Times of each row ascend strictly; of equal times the added point
    counts. `added_of` has the index of each row's added row, negative where there is none; no two rows have the same
    one. `to_starts` gets the start of each merged row and the number of points. Raise MemoryError."""
    cdef Py_ssize_t rows = added_of.shape[0], row, count = 0, at, added, stop, added_stop
    cdef Py_ssize_t room = times.shape[0] + added_times.shape[0]
    cdef Memory new_times = new_memory(room * 8), new_bits = new_memory(room * 8), new_floats = new_memory(room)
    cdef int64_t* to_times = <int64_t*> new_times.start
    cdef int64_t* to_bits = <int64_t*> new_bits.start
    cdef uint8_t* to_floats = <uint8_t*> new_floats.start
    cdef Rows one, two
    cdef bint is_alike = True
    one.times = &times[0] if times.shape[0] else NULL
    one.bits = &bits[0] if times.shape[0] else NULL
    one.floats = &floats[0] if times.shape[0] else NULL
    two.times = &added_times[0] if added_times.shape[0] else NULL
    two.bits = &added_bits[0] if added_times.shape[0] else NULL
    two.floats = &added_floats[0] if added_times.shape[0] else NULL
    with nogil:
        to_starts[0] = 0
        for row in range(rows):
            at, stop = starts[row], starts[row + 1]
            added = added_stop = 0
            if added_of[row] >= 0:
                added, added_stop = added_starts[added_of[row]], added_starts[added_of[row] + 1]
            while at < stop and added < added_stop and one.times[stop - 1] >= two.times[added]:
                if one.times[at] < two.times[added]:
                    count = copied(&one, at, 1, to_times, to_bits, to_floats, count)
                    at += 1
                else:
                    at += one.times[at] == two.times[added]
                    count = copied(&two, added, 1, to_times, to_bits, to_floats, count)
                    added += 1
            count = copied(&one, at, stop - at, to_times, to_bits, to_floats, count)
            count = copied(&two, added, added_stop - added, to_times, to_bits, to_floats, count)
            to_starts[row + 1] = count
            if is_alike and (
                count - to_starts[row] != to_starts[1]
                or memcmp(to_times + to_starts[row], to_times, to_starts[1] * sizeof(int64_t))
            ):
                is_alike = False
    new_times.size, new_bits.size, new_floats.size = count * 8, count * 8, count
    return memoryview(new_times), memoryview(new_bits), memoryview(new_floats), is_alike


cdef inline Py_ssize_t copied(
    const Rows* rows, Py_ssize_t first, Py_ssize_t count, int64_t* times, int64_t* bits, uint8_t* floats, Py_ssize_t to
) noexcept nogil:
    """Copy points. Return the place after them."""
    if count == 1:
        times[to], bits[to], floats[to] = rows.times[first], rows.bits[first], rows.floats[first]
    elif count > 1:
        memcpy(times + to, rows.times + first, count * sizeof(int64_t))
        memcpy(bits + to, rows.bits + first, count * sizeof(int64_t))
        memcpy(floats + to, rows.floats + first, count)
    return to + count


cdef Memory new_memory(Py_ssize_t size):
    """Return uninitialized memory, which is filled from its start."""
    cdef Memory memory = Memory.__new__(Memory)
    memory.start = <char*> tsd_large(size + 1, size)
    if memory.start == NULL:
        raise MemoryError
    memory.size = size
    return memory


def place_rows(
    const int64_t[::1] values, const uint8_t[::1] chosen, const int64_t[::1] counts, int64_t[::1] whole
):
    """Write the values of the chosen rows to their places among all rows, each of `counts` values."""
    cdef Py_ssize_t row
    cdef int64_t at = 0, place = 0
    with nogil:
        for row in range(counts.shape[0]):
            if chosen[row]:
                memcpy(&whole[place], &values[at], counts[row] * sizeof(int64_t))
                at += counts[row]
            place += counts[row]


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
