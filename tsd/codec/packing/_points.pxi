# Decodes packed cells to points, without their qualifiers and values in between. Included by _packing.pyx.

cdef int write_times(int64_t* to, Scratch* room, Cell* cell, int64_t base_ms) noexcept nogil:
    """Write times in ms. Return whether one is beyond an hour's row, or not after the one before."""
    cdef int64_t beyond = 1 << 22 if cell.in_ms else 3600, scale = 1 if cell.in_ms else 1000, last = -1
    cdef Py_ssize_t i
    for i in range(cell.count):
        if room.times[i] <= last or room.times[i] >= beyond:
            return -1
        last = room.times[i]
        to[i] = base_ms + last * scale
    return 0


cdef int write_numbers(int64_t* to, uint8_t* floats, Scratch* room, Cell* cell) noexcept nogil:
    """Write integers, and the bits of floats as doubles. Return whether a number breaks the cell's rule."""
    cdef double power = POWERS[cell.decimals], number
    cdef float single
    cdef uint32_t word
    cdef int64_t bits
    cdef Py_ssize_t i
    if cell.kind == INTEGER:
        for i in range(cell.count):
            if cell.rule < SHORTEST and shortest_flags(room.numbers[i]) > cell.rule:
                return -1
        memcpy(to, room.numbers, cell.count * 8)
        memset(floats, 0, cell.count)
        return 0
    memset(floats, 1, cell.count)
    if cell.kind == SINGLE:
        for i in range(cell.count):
            bits = room.numbers[i]
            word = <uint32_t> (bits ^ (bits >> 63 & <int64_t> 0x7FFFFFFF))
            memcpy(&single, &word, 4)
            number = single
            memcpy(to + i, &number, 8)
        return 0
    for i in range(cell.count):
        number = as_double(room.numbers[i], cell.kind, power)
        if cell.rule == SINGLE_FLAGS:
            single = <float> number
            number = single
        if cell.rule == WHOLE and is_whole(number):
            to[i] = <int64_t> number
            floats[i] = 0
        else:
            memcpy(to + i, &number, 8)
    return 0


cdef int decode_points(
    Source* source, Scratch* room, Cell* cell, int64_t base_ms, int64_t* times, int64_t* bits, uint8_t* floats
) noexcept nogil:
    """Decode a cell whose head was read. Return whether it breaks its form, or its times do not ascend."""
    if take_sequence(source, room, room.times, cell.count) or take_sequence(source, room, room.numbers, cell.count):
        return -1
    if source.at != source.end:
        return -1
    return write_times(times, room, cell, base_ms) or write_numbers(bits, floats, room, cell)


def count_points(list stored, Py_ssize_t since, Py_ssize_t ahead):
    """See tsd.codec.packing.points.count_points."""
    cdef Py_ssize_t total = 0, i, size
    cdef const uint8_t* text
    cdef bytes one
    cdef Source source
    cdef Cell cell
    for i in range(since, len(stored)):
        one = stored[i]
        text, size = <const uint8_t*> PyBytes_AS_STRING(one), PyBytes_GET_SIZE(one)
        source.at, source.end = text + ahead, text + size - 4
        if size < ahead + 9 or read_head(&source, &cell):
            return -1
        total += cell.count
    return total


def unpack_points(
    list stored, Py_ssize_t ahead, const int64_t[::1] bases_s,
    int64_t[::1] counts, int64_t[::1] times, int64_t[::1] bits, uint8_t[::1] floats,
):
    """See tsd.codec.packing.points.unpack_points. `count_points` has counted these cells. Return whether all are
    decoded."""
    cdef Py_ssize_t cells = len(stored), i, size, most = 0, filled = 0
    cdef const uint8_t* text
    cdef uint32_t checksum
    cdef bytes one
    cdef Source* sources = <Source*> malloc((cells + 1) * sizeof(Source))
    cdef Cell* heads = <Cell*> malloc((cells + 1) * sizeof(Cell))
    cdef const uint8_t** starts = <const uint8_t**> malloc((cells + 1) * sizeof(uint8_t*))
    cdef Scratch room
    cdef void* block = NULL
    cdef bint done = True
    try:
        if sources == NULL or heads == NULL or starts == NULL:
            raise MemoryError
        for i in range(cells):
            one = stored[i]
            text, size = <const uint8_t*> PyBytes_AS_STRING(one), PyBytes_GET_SIZE(one)
            starts[i] = text + ahead
            sources[i].at, sources[i].end = text + ahead, text + size - 4
            if read_head(&sources[i], &heads[i]):
                return False
            counts[i] = heads[i].count
            most = max(most, heads[i].count)
        make_room(&room, &block, most)
        with nogil:
            for i in range(cells):
                memcpy(&checksum, sources[i].end, 4)
                if crc_of(starts[i], sources[i].end) != checksum or decode_points(
                    &sources[i], &room, &heads[i], bases_s[i] * 1000, &times[filled], &bits[filled], &floats[filled]
                ):
                    done = False
                    break
                filled += heads[i].count
        return done
    finally:
        free(sources)
        free(heads)
        free(starts)
        free(block)


def check_joined(bytes text, const int32_t[::1] ends, int32_t[::1] counts):
    """See tsd.codec.packing.points.join_cells. Write the number of points of each cell. Return whether all are whole,
    with ascending times."""
    cdef Py_ssize_t cells = counts.shape[0], i, most = 0
    cdef const uint8_t* start = <const uint8_t*> PyBytes_AS_STRING(text)
    cdef Source source
    cdef Cell cell
    cdef Scratch room
    cdef void* block = NULL
    cdef int64_t* points = NULL
    cdef uint32_t checksum
    cdef bint done = True
    try:
        for i in range(cells):
            source.at, source.end = start + ends[i], start + ends[i + 1] - 4
            if read_head(&source, &cell):
                return False
            counts[i] = cell.count
            most = max(most, cell.count)
        make_room(&room, &block, most)
        points = <int64_t*> malloc(most * 17 + 1)
        if points == NULL:
            raise MemoryError
        with nogil:
            for i in range(cells):
                source.at, source.end = start + ends[i], start + ends[i + 1] - 4
                memcpy(&checksum, source.end, 4)
                if (
                    crc_of(source.at, source.end) != checksum
                    or read_head(&source, &cell)
                    or decode_points(&source, &room, &cell, 0, points, points + most, <uint8_t*> (points + 2 * most))
                ):
                    done = False
                    break
        return done
    finally:
        free(points)
        free(block)


def unpack_joined(
    bytes text, const int32_t[::1] ends, const int64_t[::1] rows, Py_ssize_t most,
    int64_t[::1] times, int64_t[::1] bits, uint8_t[::1] floats,
):
    """See tsd.codec.packing.points.unpack_joined. `most`: points of the largest cell. Return whether all are
    decoded."""
    cdef Py_ssize_t i, filled = 0
    cdef const uint8_t* start = <const uint8_t*> PyBytes_AS_STRING(text)
    cdef Source source
    cdef Cell cell
    cdef Scratch room
    cdef void* block = NULL
    cdef bint done = True
    try:
        make_room(&room, &block, most)
        with nogil:
            for i in range(rows.shape[0]):
                source.at, source.end = start + ends[rows[i]], start + ends[rows[i] + 1] - 4
                if (
                    read_head(&source, &cell)
                    or cell.count > most
                    or filled + cell.count > times.shape[0]
                    or decode_points(&source, &room, &cell, 0, &times[filled], &bits[filled], &floats[filled])
                ):
                    done = False
                    break
                filled += cell.count
        return done
    finally:
        free(block)
