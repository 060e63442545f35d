# Downsamples packed cells while they are decoded: their points are never written. Included by _packing.pyx.

cdef extern from *:
    """
    static void decimals_as_doubles(double* to, const int64_t* numbers, Py_ssize_t count, double power) {
        const uint64_t half = UINT64_C(1) << 51;
        uint64_t beyond = 0;
        for (Py_ssize_t i = 0; i < count; i++) beyond |= ((uint64_t) numbers[i] + half) >> 52;
        if (beyond) {
            for (Py_ssize_t i = 0; i < count; i++) to[i] = (double) numbers[i] / power;
        } else { /* as mantissas of 1.5 * 2**52: several a step, which SSE2 cannot convert */
            for (Py_ssize_t i = 0; i < count; i++) {
                const uint64_t bits = (uint64_t) numbers[i] + UINT64_C(0x4338000000000000);
                double sum;
                memcpy(&sum, &bits, 8);
                to[i] = (sum - 6755399441055744.0) / power;
            }
        }
    }
    """
    void decimals_as_doubles(double* to, const int64_t* numbers, Py_ssize_t count, double power) nogil


cdef enum Function:
    SUM = 0
    LOW = 1
    HIGH = 2
    FIRST = 3
    LAST = 4

cdef struct Grid:
    # The buckets of the times of a cell.
    const uint8_t* encoded  # the times as stored; NULL: none yet
    Py_ssize_t size  # bytes of these
    Py_ssize_t points
    bint in_ms
    Py_ssize_t buckets
    int64_t* offsets_ms  # after the hour, of each bucket
    int64_t* stops  # of each bucket: the index after its last point
    int64_t last_ms  # after the hour, of the last point


cdef int divide_times(Grid* grid, int64_t* times, int64_t interval_ms) noexcept nogil:
    """Find the buckets of a grid's points. Return whether a time is beyond an hour's row, or not after the one
    before."""
    cdef int64_t beyond = 1 << 22 if grid.in_ms else 3600, scale = 1 if grid.in_ms else 1000, last = -1, stop_ms = -1
    cdef int64_t offset_ms
    cdef Py_ssize_t i, runs = -1
    for i in range(grid.points):
        if times[i] <= last or times[i] >= beyond:
            return -1
        last = times[i]
        offset_ms = last * scale
        if offset_ms >= stop_ms:
            if runs >= 0:
                grid.stops[runs] = i
            runs += 1
            grid.offsets_ms[runs] = offset_ms - offset_ms % interval_ms
            stop_ms = grid.offsets_ms[runs] + interval_ms
    grid.stops[runs] = grid.points
    grid.buckets, grid.last_ms = runs + 1, last * scale
    return 0


cdef int take_times(Source* source, Scratch* room, Cell* cell, Grid* grid, int64_t interval_ms) noexcept nogil:
    """Read the times of a cell, or skip them if they are those of the cell before. Return whether they are invalid."""
    cdef const uint8_t* begin = source.at
    if (
        grid.encoded != NULL and grid.points == cell.count and grid.in_ms == cell.in_ms
        and source.end - begin >= grid.size and memcmp(begin, grid.encoded, grid.size) == 0
    ):
        source.at += grid.size
        return 0
    grid.encoded = NULL
    if take_sequence(source, room, room.times, cell.count):
        return -1
    grid.points, grid.in_ms = cell.count, cell.in_ms
    if divide_times(grid, room.times, interval_ms):
        return -1
    grid.encoded, grid.size = begin, source.at - begin
    return 0


cdef int numbers_as_doubles(double* to, Scratch* room, Cell* cell) noexcept nogil:
    """Write numbers as doubles, as `write_numbers` followed by a conversion. Return whether one breaks the cell's
    rule."""
    cdef double power = POWERS[cell.decimals], number
    cdef float single
    cdef uint32_t word
    cdef int64_t bits
    cdef Py_ssize_t i
    if cell.kind == INTEGER:
        for i in range(cell.count):
            if cell.rule < SHORTEST and shortest_flags(room.numbers[i]) > cell.rule:
                return -1
            to[i] = <double> room.numbers[i]
    elif cell.kind == SINGLE:
        for i in range(cell.count):
            bits = room.numbers[i]
            word = <uint32_t> (bits ^ (bits >> 63 & <int64_t> 0x7FFFFFFF))
            memcpy(&single, &word, 4)
            to[i] = single
    elif cell.kind == DECIMAL and cell.rule != SINGLE_FLAGS:  # a whole one is no -0.0
        decimals_as_doubles(to, room.numbers, cell.count, power)
    else:
        for i in range(cell.count):
            number = as_double(room.numbers[i], cell.kind, power)
            if cell.rule == SINGLE_FLAGS:
                single = <float> number
                number = single
            if cell.rule == WHOLE and is_whole(number):
                number = <double> <int64_t> number
            to[i] = number
    return 0


cdef void reduce_values(
    const double* values, Grid* grid, Function function, bint are_numbers, int64_t base_ms, int64_t* stamps,
    int64_t* counts, double* results,
) noexcept nogil:
    """Reduce the values of each bucket, see `tsd.query._loops.downsample_rows`. `are_numbers`: none is NaN."""
    cdef Py_ssize_t i = 0, bucket
    cdef int64_t seen
    cdef double value, found
    for bucket in range(grid.buckets):
        seen = 0
        found = 0.0 if function == SUM else values[i]
        if function == LAST:
            found = values[grid.stops[bucket] - 1]
        if function == SUM and are_numbers:
            seen = grid.stops[bucket] - i
            for i in range(i, grid.stops[bucket]):
                found += values[i]
            i = grid.stops[bucket]
        for i in range(i, grid.stops[bucket]):
            value = values[i]
            if value == value:
                if function == SUM:
                    found += value
                elif not seen and (function == LOW or function == HIGH):
                    found = value
                elif (function == LOW and value < found) or (function == HIGH and value > found):
                    found = value
                seen += 1
        i = grid.stops[bucket]
        stamps[bucket], counts[bucket], results[bucket] = base_ms + grid.offsets_ms[bucket], seen, found


cdef int downsample_sources(
    Source* sources, const uint8_t** starts, Cell* heads, Py_ssize_t cells, const int64_t* bases_s, bint one_base,
    int64_t interval_ms, Function function,
    int64_t[::1] lasts, int64_t[::1] bounds, int64_t[::1] stamps, int64_t[::1] counts, double[::1] results,
) except -2:
    """Downsample cells whose heads were read. With `starts`, where they begin, their checksums are compared. Return as
    `downsample_cells` does."""
    cdef Py_ssize_t i, most = 0, at = 0, first
    cdef uint32_t checksum
    cdef Scratch room
    cdef Grid grid
    cdef void* block = NULL
    cdef bint even = cells > 0, done = True
    grid.encoded = NULL
    grid.offsets_ms = grid.stops = NULL
    try:
        for i in range(cells):
            most = max(most, heads[i].count)
        make_room(&room, &block, most)
        grid.offsets_ms = <int64_t*> malloc((most + 1) * 8)
        grid.stops = <int64_t*> malloc((most + 1) * 8)
        if grid.offsets_ms == NULL or grid.stops == NULL:
            raise MemoryError
        bounds[0] = 0
        with nogil:
            for i in range(cells):
                if starts != NULL:
                    memcpy(&checksum, sources[i].end, 4)
                    if crc_of(starts[i], sources[i].end) != checksum:
                        done = False
                        break
                if (
                    take_times(&sources[i], &room, &heads[i], &grid, interval_ms)
                    or take_sequence(&sources[i], &room, room.numbers, heads[i].count)
                    or sources[i].at != sources[i].end
                    or numbers_as_doubles(room.doubles, &room, &heads[i])
                    or grid.buckets > stamps.shape[0] - at
                ):
                    done = False
                    break
                first = at
                reduce_values(
                    room.doubles, &grid, function, heads[i].kind == DECIMAL or heads[i].kind == INTEGER,
                    bases_s[0 if one_base else i] * 1000, &stamps[at], &counts[at], &results[at]
                )
                at += grid.buckets
                bounds[i + 1] = at
                lasts[i] = bases_s[0 if one_base else i] * 1000 + grid.last_ms
                if even and (
                    grid.buckets != bounds[1] or memcmp(&stamps[first], &stamps[0], bounds[1] * sizeof(int64_t))
                ):
                    even = False
        return even if done else -1
    finally:
        free(block)
        free(grid.offsets_ms)
        free(grid.stops)


def downsample_cells(
    list stored, Py_ssize_t ahead, const int64_t[::1] bases_s, int64_t interval_ms, Function function,
    int64_t[::1] points, int64_t[::1] lasts, int64_t[::1] bounds, int64_t[::1] stamps, int64_t[::1] counts,
    double[::1] results,
):
    """See tsd.codec.packing.points.downsample_points. Return 1 if all cells have the same buckets, 0 if they do not, -1
    if a cell is not decoded, or if there is no room for all buckets."""
    cdef Py_ssize_t cells = len(stored), i, size
    cdef const uint8_t* text
    cdef bytes one
    cdef Source* sources = <Source*> malloc((cells + 1) * sizeof(Source))
    cdef Cell* heads = <Cell*> malloc((cells + 1) * sizeof(Cell))
    cdef const uint8_t** starts = <const uint8_t**> malloc((cells + 1) * sizeof(uint8_t*))
    try:
        if sources == NULL or heads == NULL or starts == NULL:
            raise MemoryError
        for i in range(cells):
            one = stored[i]
            text, size = <const uint8_t*> PyBytes_AS_STRING(one), PyBytes_GET_SIZE(one)
            starts[i] = text + ahead
            sources[i].at, sources[i].end = text + ahead, text + size - 4
            if size < ahead + 9 or read_head(&sources[i], &heads[i]):
                return -1
            points[i] = heads[i].count
        return downsample_sources(
            sources, starts, heads, cells, &bases_s[0] if cells else NULL, False, interval_ms, function,
            lasts, bounds, stamps, counts, results,
        )
    finally:
        free(sources)
        free(heads)
        free(starts)


def downsample_joined(
    bytes text, const int32_t[::1] ends, const int64_t[::1] rows, int64_t base_s, int64_t interval_ms, Function function,
    int64_t[::1] lasts, int64_t[::1] bounds, int64_t[::1] stamps, int64_t[::1] counts, double[::1] results,
):
    """See tsd.codec.packing.points.downsample_joined. Return as `downsample_cells` does."""
    cdef Py_ssize_t cells = rows.shape[0], i
    cdef const uint8_t* start = <const uint8_t*> PyBytes_AS_STRING(text)
    cdef Source* sources = <Source*> malloc((cells + 1) * sizeof(Source))
    cdef Cell* heads = <Cell*> malloc((cells + 1) * sizeof(Cell))
    try:
        if sources == NULL or heads == NULL:
            raise MemoryError
        for i in range(cells):
            sources[i].at, sources[i].end = start + ends[rows[i]], start + ends[rows[i] + 1] - 4
            if read_head(&sources[i], &heads[i]):
                return -1
        return downsample_sources(
            sources, NULL, heads, cells, &base_s, True, interval_ms, function, lasts, bounds, stamps, counts, results
        )
    finally:
        free(sources)
        free(heads)


def continue_buckets(
    const int64_t[::1] lasts, const int64_t[::1] bounds, const int64_t[::1] stamps, const int64_t[::1] counts,
    const double[::1] results, bint is_even, const int64_t[::1] starts, const int64_t[::1] times,
    const int64_t[::1] bits, const uint8_t[::1] floats, const int64_t[::1] added_of, int64_t interval_ms,
    Function function,
    int64_t[::1] to_points, int64_t[::1] to_lasts, int64_t[::1] to_bounds, int64_t[::1] to_stamps,
    int64_t[::1] to_counts, double[::1] to_results,
):
    """See tsd.codec.packing.points.continued_buckets. `to_points` has the points of each cell. Return as
    `downsample_cells` does; -1 also if the points of a row are not after those of its cell."""
    cdef Py_ssize_t row, i, to = 0, first, size
    cdef int64_t at, stop, stop_ms
    cdef double value
    cdef bint even = added_of.shape[0] > 0, done = True
    with nogil:
        to_bounds[0] = 0
        for row in range(added_of.shape[0]):
            first, size = to, bounds[row + 1] - bounds[row]
            at = stop = 0
            if added_of[row] >= 0:
                at, stop = starts[added_of[row]], starts[added_of[row] + 1]
            to_lasts[row] = lasts[row]
            if at < stop:
                if times[at] <= lasts[row]:
                    done = False
                    break
                to_points[row] += stop - at
                to_lasts[row] = times[stop - 1]
            if size > to_stamps.shape[0] - to:
                done = False
                break
            for i in range(size):
                to_stamps[to + i] = stamps[i if is_even else bounds[row] + i]
                to_counts[to + i] = counts[bounds[row] + i]
                to_results[to + i] = results[bounds[row] + i]
            to += size
            stop_ms = to_stamps[to - 1] + interval_ms if size else -(<int64_t> 1 << 62)
            for at in range(at, stop):
                if floats[at]:
                    memcpy(&value, &bits[at], 8)
                else:
                    value = <double> bits[at]
                if times[at] >= stop_ms:
                    if to == to_stamps.shape[0]:
                        done = False
                        break
                    to_stamps[to] = times[at] - times[at] % interval_ms
                    stop_ms = to_stamps[to] + interval_ms
                    to_counts[to] = 0
                    to_results[to] = 0.0 if function == SUM else value
                    to += 1
                if value == value:
                    if function == SUM:
                        to_results[to - 1] += value
                    elif not to_counts[to - 1] and function != FIRST:
                        to_results[to - 1] = value
                    elif (function == LOW and value < to_results[to - 1]) or (
                        function == HIGH and value > to_results[to - 1]
                    ):
                        to_results[to - 1] = value
                    to_counts[to - 1] += 1
                if function == LAST:
                    to_results[to - 1] = value
            to_bounds[row + 1] = to
            if even and (
                to - first != to_bounds[1] or memcmp(&to_stamps[first], &to_stamps[0], to_bounds[1] * sizeof(int64_t))
            ):
                even = False
    return even if done else -1
