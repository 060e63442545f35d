# Sorted points → cells with their row keys, a part of _rows.pyx: `tsd.codec.columns.encode_cells` in C.

cdef enum:
    HOUR_S = 3600
    BASE_BYTES = 4

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


cdef object new_put(type put_type, bytes row, bytes column, bytes value):
    """As put_type(row, column, value), a tuple with names, which takes a call of Python that is left out here."""
    cdef object made = PyType_GenericAlloc(put_type, 3)
    Py_INCREF(row)
    PyTuple_SET_ITEM(made, 0, row)
    Py_INCREF(column)
    PyTuple_SET_ITEM(made, 1, column)
    Py_INCREF(value)
    PyTuple_SET_ITEM(made, 2, value)
    return made


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


def encode(
    Texts texts not None, const int32_t[::1] series, const int64_t[::1] instants, const uint8_t[::1] flags,
    const int64_t[::1] bits, Py_ssize_t cell_points, bytes column not None,
    type put_type not None,
):
    """The cells of sorted points of settled series: a `put_type` of row, column and value for each row and at most
    `cell_points` points. `column` stands before every qualifier."""
    cdef Py_ssize_t count = series.shape[0], at = 0, head = PyBytes_GET_SIZE(column), room = min(cell_points, count)
    cdef int64_t hour, first, end
    cdef int32_t number
    cdef Cell cell
    cdef list puts = []
    assert instants.shape[0] == count and flags.shape[0] == count and bits.shape[0] == count and cell_points > 0
    assert issubclass(put_type, tuple), put_type
    cell.qualifiers = <char*> realloc(NULL, head + room * 4 + 1)
    cell.values = <char*> realloc(NULL, room * 8 + 1)
    try:
        if cell.qualifiers == NULL or cell.values == NULL:
            raise MemoryError
        memcpy(cell.qualifiers, PyBytes_AS_STRING(column), head)
        while at < count:
            number = series[at]
            hour = instants[at] // (HOUR_S * 2000)
            first, end = hour * (HOUR_S * 2000), (hour + 1) * (HOUR_S * 2000)
            cell.qualifier_bytes, cell.value_bytes, cell.points, cell.in_ms = head, 0, 0, 0
            while (
                at < count and cell.points < cell_points and series[at] == number and first <= instants[at] < end
            ):
                append_point(
                    &cell, (instants[at] - first) >> 1, instants[at] & 1, flags[at] & 15, <uint64_t> bits[at]
                )
                at += 1
            if cell.points > 1:
                cell.values[cell.value_bytes] = 0 < cell.in_ms < cell.points
                cell.value_bytes += 1
            puts.append(
                new_put(
                    put_type,
                    row_key(texts, number, hour * HOUR_S),
                    PyBytes_FromStringAndSize(cell.qualifiers, cell.qualifier_bytes),
                    PyBytes_FromStringAndSize(cell.values, cell.value_bytes),
                )
            )
    finally:
        free(cell.qualifiers)
        free(cell.values)
    return puts
