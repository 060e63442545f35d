# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Sorted points → cells with their row keys: `tsd.codec.opentsdb.columns.encode_cells` in C."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport Py_INCREF, PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memcpy

from tsd.codec.opentsdb.cell import MS_MARK

cdef uint32_t MS = <uint32_t> MS_MARK << 24  # high bits of a millisecond qualifier

cdef enum:
    HOUR_S = 3600
    BASE_BYTES = 4
    HEAD_BYTES = 4  # first bytes of salt and metric, used for sorting
    BATCH_CELLS = 2000  # encoded between two releases of the GIL: half a millisecond


cdef extern from *:
    """
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #define BIG16(x) (x)
    #define BIG32(x) (x)
    #define BIG64(x) (x)
    #else
    #define BIG16(x) __builtin_bswap16(x)
    #define BIG32(x) __builtin_bswap32(x)
    #define BIG64(x) __builtin_bswap64(x)
    #endif
    """
    uint16_t BIG16(uint16_t word) noexcept nogil
    uint32_t BIG32(uint32_t word) noexcept nogil
    uint64_t BIG64(uint64_t word) noexcept nogil


cdef extern from "Python.h":
    object PyType_GenericAlloc(type kind, Py_ssize_t items)
    void PyTuple_SET_ITEM(object made, Py_ssize_t at, PyObject* item)


cdef struct Run:  # the points of a cell
    uint64_t order[3]  # sort key of its row: some bytes of salt and metric, the base time, some tags
    Py_ssize_t start  # its first point
    Py_ssize_t end
    Py_ssize_t key  # index of its series' key

cdef struct Cell:
    char* qualifiers
    char* values
    Py_ssize_t qualifier_bytes
    Py_ssize_t value_bytes


cdef inline void append_points(
    Cell* cell, const int64_t* instants, const uint8_t* flags, const int64_t* bits, Py_ssize_t count, int64_t hour
) noexcept nogil:
    """Append `count` points of an hour to an empty cell: for each a qualifier, and as many low bytes of its bits as its
    flags say. Eight bytes are written for each value; the next one overwrites those beyond it."""
    cdef char* qualifier = cell.qualifiers + cell.qualifier_bytes
    cdef char* value = cell.values
    cdef int64_t first = hour * (HOUR_S * 2000)
    cdef Py_ssize_t at, in_ms = 0
    cdef uint32_t offset, word, flag
    cdef uint16_t half
    cdef uint64_t number
    cdef int size
    for at in range(count):
        flag = flags[at] & 15
        offset = <uint32_t> ((instants[at] - first) >> 1)
        if instants[at] & 1:
            word = BIG32(MS | offset << 6 | flag)
            memcpy(qualifier, &word, 4)
            qualifier += 4
            in_ms += 1
        else:
            half = BIG16(<uint16_t> (offset // 1000 << 4 | flag))
            memcpy(qualifier, &half, 2)
            qualifier += 2
        size = (flag & 7) + 1
        number = BIG64(<uint64_t> bits[at] << (64 - 8 * size))
        memcpy(value, &number, 8)
        value += size
    if count > 1:
        value[0] = 0 < in_ms < count
        value += 1
    cell.qualifier_bytes = qualifier - cell.qualifiers
    cell.value_bytes = value - cell.values


cdef bytes row_key(const char* keys, const int64_t* bounds, int64_t base):
    """Return the row key of a series and a base time. `bounds` has the ends of the series key's head and tail."""
    cdef Py_ssize_t head = bounds[1] - bounds[0], tail = bounds[2] - bounds[1]
    cdef bytes row = PyBytes_FromStringAndSize(NULL, head + BASE_BYTES + tail)
    cdef char* at = PyBytes_AS_STRING(row)
    memcpy(at, keys + bounds[0], head)
    at += head
    at[0], at[1], at[2], at[3] = <char> (base >> 24), <char> (base >> 16), <char> (base >> 8), <char> base
    memcpy(at + BASE_BYTES, keys + bounds[1], tail)
    return row


cdef inline object triple(type kind, bytes first, bytes second, bytes third):
    """Make a named tuple of three fields without its `__new__`, which is a function in Python."""
    made = PyType_GenericAlloc(kind, 3)
    Py_INCREF(first)
    Py_INCREF(second)
    Py_INCREF(third)
    PyTuple_SET_ITEM(made, 0, <PyObject*> first)
    PyTuple_SET_ITEM(made, 1, <PyObject*> second)
    PyTuple_SET_ITEM(made, 2, <PyObject*> third)
    return made


cdef inline uint64_t word_of(const char* text, Py_ssize_t size) noexcept nogil:
    """Return the first eight bytes of a text as a big-endian number, which sorts like the bytes."""
    cdef uint64_t word = 0
    cdef int at
    if size >= 8:
        memcpy(&word, text, 8)
        return BIG64(word)
    for at in range(8):
        word = word << 8 | (<uint8_t> text[at] if at < size else 0)
    return word


cdef inline void set_order(Run* run, const char* keys, const int64_t* bounds, int64_t base) noexcept nogil:
    """Set the sort key of a run: the whole row key for UIDs of the default widths, its first bytes for wider UIDs."""
    cdef Py_ssize_t tail = bounds[2] - bounds[1]
    run.order[0] = word_of(keys + bounds[0], min(bounds[1] - bounds[0], <Py_ssize_t> HEAD_BYTES)) | <uint64_t> base
    run.order[1] = word_of(keys + bounds[1], tail)
    run.order[2] = word_of(keys + bounds[1] + 8, tail - 8)


cdef int by_row(const void* one, const void* other) noexcept nogil:
    """Compare two runs for qsort. Those of one row keep their order."""
    cdef Run* a = <Run*> one
    cdef Run* b = <Run*> other
    cdef int at
    for at in range(3):
        if a.order[at] != b.order[at]:
            return -1 if a.order[at] < b.order[at] else 1
    return -1 if a.start < b.start else 1


cdef Py_ssize_t find_runs(
    const int32_t[::1] series, const int64_t[::1] instants, const char* keys, const int64_t[::1] bounds,
    Py_ssize_t cell_points, Run* runs,
) except -1:
    """Fill `runs` with the points of each cell and return the number of cells."""
    cdef Py_ssize_t count = series.shape[0], at = 0, found = 0, key = -1
    cdef int64_t hour, first, end
    cdef int32_t number
    while at < count:
        number = series[at]
        if at == 0 or number != series[at - 1]:
            key += 1
            assert 2 * key + 2 < bounds.shape[0] and bounds[2 * key] < bounds[2 * key + 2], number  # it has a key
        hour = instants[at] // (HOUR_S * 2000)
        assert 0 <= hour * HOUR_S < <int64_t> 1 << 32, number
        first, end = hour * (HOUR_S * 2000), (hour + 1) * (HOUR_S * 2000)
        set_order(&runs[found], keys, &bounds[2 * key], hour * HOUR_S)
        runs[found].start, runs[found].key = at, key
        runs[found].end = min(count, at + cell_points)
        while at < runs[found].end and series[at] == number and first <= instants[at] < end:
            at += 1
        runs[found].end = at
        found += 1
    return found


def encode(
    const int32_t[::1] series, const int64_t[::1] instants, const uint8_t[::1] flags, const int64_t[::1] bits,
    bytes keys not None, const int64_t[::1] bounds, Py_ssize_t cell_points, bytes column not None,
    type put_type not None,
):
    """Return the cells of points sorted by series and time: a `put_type` of row, column and value for each row and at
    most `cell_points` points. `column` precedes every qualifier. `keys` and `bounds` are the keys of the series, in
    order (`tsd.tables.writing.SeriesKeys`). Rows are sorted by the keys of `set_order`, because a store that keeps
    rows sorted inserts sorted puts faster."""
    cdef Py_ssize_t count = series.shape[0], at, head = PyBytes_GET_SIZE(column), room = min(cell_points, count)
    cdef Py_ssize_t number, cells
    cdef int64_t hour
    cdef const char* joined = PyBytes_AS_STRING(keys)
    cdef Cell cell
    cdef Run* runs = <Run*> malloc(count * sizeof(Run) + 1)
    cdef list puts = []
    assert issubclass(put_type, tuple)
    assert instants.shape[0] == count and flags.shape[0] == count and bits.shape[0] == count and cell_points > 0
    assert bounds[bounds.shape[0] - 1] <= PyBytes_GET_SIZE(keys)
    cell.qualifiers = <char*> malloc(head + room * 4 + 1)
    cell.values = <char*> malloc(room * 8 + 1)
    try:
        if runs == NULL or cell.qualifiers == NULL or cell.values == NULL:
            raise MemoryError
        memcpy(cell.qualifiers, PyBytes_AS_STRING(column), head)
        cells = find_runs(series, instants, joined, bounds, cell_points, runs)
        qsort(runs, cells, sizeof(Run), by_row)
        for number in range(cells):
            if number % BATCH_CELLS == BATCH_CELLS - 1:
                with nogil:  # release the GIL for other threads
                    pass
            at = runs[number].start
            hour = instants[at] // (HOUR_S * 2000)
            cell.qualifier_bytes = head
            append_points(&cell, &instants[at], &flags[at], &bits[at], runs[number].end - at, hour)
            puts.append(
                triple(
                    put_type,
                    row_key(joined, &bounds[2 * runs[number].key], hour * HOUR_S),
                    PyBytes_FromStringAndSize(cell.qualifiers, cell.qualifier_bytes),
                    PyBytes_FromStringAndSize(cell.values, cell.value_bytes),
                )
            )
    finally:
        free(runs)
        free(cell.qualifiers)
        free(cell.values)
    return puts
