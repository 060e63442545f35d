# Sorted points → cells with their row keys, a part of _rows.pyx: `tsd.codec.columns.encode_cells` in C.

cdef enum:
    HOUR_S = 3600
    BASE_BYTES = 4
    HEAD_BYTES = 4  # of salt and metric that count for the order
    TURN_CELLS = 2000  # made before others may have the interpreter's lock: half a millisecond


cdef extern from "Python.h":
    object PyType_GenericAlloc(type kind, Py_ssize_t items)
    void PyTuple_SET_ITEM(object made, Py_ssize_t at, PyObject* item)


cdef struct Run:
    uint64_t place[3]  # of its row among others: a few bytes of salt and metric, the base time, some tags
    Py_ssize_t start  # its first point
    Py_ssize_t end


cdef struct Cell:
    char* qualifiers
    char* values
    Py_ssize_t qualifier_bytes
    Py_ssize_t value_bytes
    Py_ssize_t points
    Py_ssize_t in_ms


cdef inline void append_point(Cell* cell, int64_t offset_ms, bint in_ms, int flags, uint64_t bits) noexcept nogil:
    """Add a qualifier, and the low bytes of `bits` that its flags count."""
    cdef uint32_t word
    cdef int left = ((flags & 7) + 1) * 8
    if in_ms:
        word = <uint32_t> 15 << 28 | <uint32_t> offset_ms << 6 | <uint32_t> flags
        cell.qualifiers[cell.qualifier_bytes] = <char> (word >> 24)
        cell.qualifiers[cell.qualifier_bytes + 1] = <char> (word >> 16)
        cell.qualifier_bytes += 2
    else:
        word = <uint32_t> (offset_ms // 1000) << 4 | <uint32_t> flags
    cell.qualifiers[cell.qualifier_bytes] = <char> (word >> 8)
    cell.qualifiers[cell.qualifier_bytes + 1] = <char> word
    cell.qualifier_bytes += 2
    while left:
        left -= 8
        cell.values[cell.value_bytes] = <char> (bits >> left)
        cell.value_bytes += 1
    cell.points += 1
    cell.in_ms += in_ms


cdef bytes row_key(Texts texts, int32_t number, int64_t base):
    """Of the row of a series that is settled."""
    assert texts.knows(number) and texts.series[number].before_bytes != UNSETTLED and 0 <= base < <int64_t> 1 << 32, number
    cdef Series* one = &texts.series[number]
    cdef bytes row = PyBytes_FromStringAndSize(NULL, one.before_bytes + BASE_BYTES + one.after_bytes)
    cdef char* at = PyBytes_AS_STRING(row)
    memcpy(at, texts.arena + one.at, one.before_bytes)
    at += one.before_bytes
    at[0], at[1], at[2], at[3] = <char> (base >> 24), <char> (base >> 16), <char> (base >> 8), <char> base
    memcpy(at + BASE_BYTES, texts.arena + one.at + one.before_bytes, one.after_bytes)
    return row


cdef inline object triple(type kind, bytes first, bytes second, bytes third):
    """A named tuple of a kind that has three fields; its own `__new__` is a function in Python."""
    made = PyType_GenericAlloc(kind, 3)
    Py_INCREF(first)
    Py_INCREF(second)
    Py_INCREF(third)
    PyTuple_SET_ITEM(made, 0, <PyObject*> first)
    PyTuple_SET_ITEM(made, 1, <PyObject*> second)
    PyTuple_SET_ITEM(made, 2, <PyObject*> third)
    return made


cdef inline uint64_t word_of(const char* text, Py_ssize_t size) noexcept nogil:
    """The first eight bytes of some, as a number that sorts as they do."""
    cdef uint64_t word = 0
    cdef int at
    for at in range(8):
        word = word << 8 | (<uint8_t> text[at] if at < size else 0)
    return word


cdef int find_place(Texts texts, int32_t number, int64_t base, uint64_t* place) except -1:
    """What the row key of a series that is settled starts with, as far as it counts for the order: all of the default
    widths, the first bytes of wider ones."""
    assert texts.knows(number) and texts.series[number].before_bytes != UNSETTLED, number
    cdef Series* one = &texts.series[number]
    cdef char* after = texts.arena + one.at + one.before_bytes
    place[0] = word_of(texts.arena + one.at, min(one.before_bytes, HEAD_BYTES)) | <uint64_t> base
    place[1] = word_of(after, one.after_bytes)
    place[2] = word_of(after + 8, <Py_ssize_t> one.after_bytes - 8)
    return 0


cdef int by_place(const void* one, const void* other) noexcept nogil:
    """Which run comes first: those of a series and hour stay in their order."""
    cdef Run* a = <Run*> one
    cdef Run* b = <Run*> other
    cdef int at
    for at in range(3):
        if a.place[at] != b.place[at]:
            return -1 if a.place[at] < b.place[at] else 1
    return -1 if a.start < b.start else 1


cdef Py_ssize_t find_runs(
    Texts texts, const int32_t[::1] series, const int64_t[::1] instants, Py_ssize_t cell_points, Run* runs
) except -1:
    """Which points go into which cell: how many cells that are."""
    cdef Py_ssize_t count = series.shape[0], at = 0, found = 0
    cdef int64_t hour, first, end
    cdef int32_t number
    while at < count:
        number = series[at]
        hour = instants[at] // (HOUR_S * 2000)
        first, end = hour * (HOUR_S * 2000), (hour + 1) * (HOUR_S * 2000)
        find_place(texts, number, hour * HOUR_S, runs[found].place)
        runs[found].start = at
        runs[found].end = min(count, at + cell_points)
        while at < runs[found].end and series[at] == number and first <= instants[at] < end:
            at += 1
        runs[found].end = at
        found += 1
    return found


def encode(
    Texts texts not None, const int32_t[::1] series, const int64_t[::1] instants, const uint8_t[::1] flags,
    const int64_t[::1] bits, Py_ssize_t cell_points, bytes column not None, type put_type not None,
):
    """The cells of sorted points of settled series: a `put_type` of row, column and value for each row and at most
    `cell_points` points. `column` stands before every qualifier. Rows are in order as far as `find_place` tells them apart: a
    store that keeps them in order finds their places sooner."""
    cdef Py_ssize_t count = series.shape[0], at, head = PyBytes_GET_SIZE(column), room = min(cell_points, count)
    cdef Py_ssize_t number, cells
    cdef int64_t hour
    cdef Cell cell
    cdef Run* runs = <Run*> malloc(count * sizeof(Run) + 1)
    cdef list puts = []
    assert issubclass(put_type, tuple)
    assert instants.shape[0] == count and flags.shape[0] == count and bits.shape[0] == count and cell_points > 0
    cell.qualifiers = <char*> malloc(head + room * 4 + 1)
    cell.values = <char*> malloc(room * 8 + 1)
    try:
        if runs == NULL or cell.qualifiers == NULL or cell.values == NULL:
            raise MemoryError
        memcpy(cell.qualifiers, PyBytes_AS_STRING(column), head)
        cells = find_runs(texts, series, instants, cell_points, runs)
        qsort(runs, cells, sizeof(Run), by_place)
        for number in range(cells):
            if number % TURN_CELLS == TURN_CELLS - 1:
                with nogil:  # others may want the lock
                    pass
            at = runs[number].start
            hour = instants[at] // (HOUR_S * 2000)
            cell.qualifier_bytes, cell.value_bytes, cell.points, cell.in_ms = head, 0, 0, 0
            for at in range(at, runs[number].end):
                append_point(
                    &cell, (instants[at] - hour * (HOUR_S * 2000)) >> 1, instants[at] & 1, flags[at] & 15,
                    <uint64_t> bits[at],
                )
            if cell.points > 1:
                cell.values[cell.value_bytes] = 0 < cell.in_ms < cell.points
                cell.value_bytes += 1
            puts.append(
                triple(
                    put_type,
                    row_key(texts, series[at], hour * HOUR_S),
                    PyBytes_FromStringAndSize(cell.qualifiers, cell.qualifier_bytes),
                    PyBytes_FromStringAndSize(cell.values, cell.value_bytes),
                )
            )
    finally:
        free(runs)
        free(cell.qualifiers)
        free(cell.values)
    return puts
