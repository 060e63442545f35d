# Decodes packed cells that have the same times to a table. Included by _packing.pyx.

cdef int decode_alike(
    Source* cells, Py_ssize_t count, Py_ssize_t width, Scratch* room, bint checked,
    int64_t* times, int64_t* bits, uint8_t* floats
) noexcept nogil:
    """Decode whole cells that have the times of the first one. Return whether there is another one, or a damaged
    one. `checked`: their checksums are known to be right."""
    cdef const uint8_t* known = NULL  # the encoded times
    cdef const uint8_t* begin
    cdef Py_ssize_t known_size = 0, i
    cdef bint in_ms = False
    cdef uint32_t checksum
    cdef Source source
    cdef Cell cell
    for i in range(count):
        source = cells[i]
        memcpy(&checksum, source.end, 4)
        if (not checked and crc_of(source.at, source.end) != checksum) or read_head(&source, &cell) or cell.count != width:
            return -1
        begin = source.at
        if (
            known != NULL and cell.in_ms == in_ms
            and source.end - begin >= known_size and memcmp(begin, known, known_size) == 0
        ):
            source.at += known_size
        else:
            if take_sequence(&source, room, room.times, width):
                return -1
            if known == NULL:
                if write_times(times, room, &cell, 0):
                    return -1
            elif write_times(room.rests, room, &cell, 0) or memcmp(room.rests, times, width * 8):
                return -1
            known, known_size, in_ms = begin, source.at - begin, cell.in_ms
        if take_sequence(&source, room, room.numbers, width) or source.at != source.end:
            return -1
        if write_numbers(bits + i * width, floats + i * width, room, &cell):
            return -1
    return 0


def unpack_table(
    list stored, Py_ssize_t ahead, int64_t[::1] times, int64_t[:, ::1] bits, uint8_t[:, ::1] floats
):
    """See tsd.codec.packing.points.unpack_table. Return whether the cells have the same times, as many as there is
    room for, and are whole."""
    cdef Py_ssize_t count = len(stored), width = times.shape[0], i
    cdef const uint8_t* text
    cdef bytes one
    cdef Scratch room
    cdef void* block = NULL
    cdef int failed
    cdef Source* cells
    if not count or width < LEAST_POINTS:
        return False
    cells = <Source*> malloc(count * sizeof(Source))
    try:
        if cells == NULL:
            raise MemoryError
        for i in range(count):
            one = stored[i]
            text = <const uint8_t*> PyBytes_AS_STRING(one)
            if PyBytes_GET_SIZE(one) < ahead + 9:
                return False
            cells[i].at, cells[i].end = text + ahead, text + PyBytes_GET_SIZE(one) - 4
        make_room(&room, &block, width)
        with nogil:
            failed = decode_alike(cells, count, width, &room, False, &times[0], &bits[0, 0], &floats[0, 0])
        return not failed
    finally:
        free(cells)
        free(block)


def unpack_joined_table(
    bytes text, const int32_t[::1] ends, const int64_t[::1] rows,
    int64_t[::1] times, int64_t[:, ::1] bits, uint8_t[:, ::1] floats,
):
    """See tsd.codec.packing.points.unpack_joined_alike. Return whether the cells have the same times, as many as there
    is room for."""
    cdef Py_ssize_t count = rows.shape[0], width = times.shape[0], i
    cdef const uint8_t* start = <const uint8_t*> PyBytes_AS_STRING(text)
    cdef Scratch room
    cdef void* block = NULL
    cdef int failed
    cdef Source* cells = <Source*> malloc((count + 1) * sizeof(Source))
    try:
        if cells == NULL:
            raise MemoryError
        make_room(&room, &block, width)
        with nogil:
            for i in range(count):
                cells[i].at, cells[i].end = start + ends[rows[i]], start + ends[rows[i] + 1] - 4
            failed = decode_alike(cells, count, width, &room, True, &times[0], &bits[0, 0], &floats[0, 0])
        return not failed
    finally:
        free(cells)
        free(block)
