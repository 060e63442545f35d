# cython: language_level=3, boundscheck=False, wraparound=False
"""Compiled loops over the cells of a scan: split keys of the embedded store (see tsd.store.rocksdb.keys), parse rows of
HBase's Thrift answers (see tsd.store.hbase.thrift_codec) and compute cell signatures (see tsd.store.cells)."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from tsd.codec._siphash cimport Key, State, add_bytes, add_word, finish, start

cdef enum:
    ROOM = 512  # bytes of a key that are split without an allocation


def split_cells(list part, list keys, list columns, list values):
    """Append row, column and value of each (key, value) to the lists; return their size in bytes. Cells of one row
    that follow each other share its key.

    Keys are not checked: one without the mark that ends a row gives the whole key as row, and an empty column.
    """
    cdef Py_ssize_t size = 0, length, at, filled, column_at = 0
    cdef const char* text
    cdef const char* last = NULL  # the key before, up to its column at `column_at`
    cdef char[ROOM] room
    cdef char* row
    cdef bytes key, value, made, row_key = b"", column = b""
    for key, value in part:
        length = PyBytes_GET_SIZE(key)
        size += length + PyBytes_GET_SIZE(value)
        text = PyBytes_AS_STRING(key)
        values.append(value)
        if last == NULL or length < column_at or memcmp(text, last, column_at) != 0:
            row = room
            if length > ROOM:
                made = PyBytes_FromStringAndSize(NULL, length)
                row = PyBytes_AS_STRING(made)
            at = filled = 0
            last = NULL
            while at < length:
                row[filled] = text[at]
                filled += 1
                at += 1
                if text[at - 1] != 0 or at == length:
                    continue
                if text[at] == 1:
                    filled -= 1
                    at += 1
                    last, column_at = text, at
                    break
                if <unsigned char> text[at] == 0xFF:
                    at += 1
            row_key = PyBytes_FromStringAndSize(row, filled)
            if last == NULL:
                column_at = length
        keys.append(row_key)
        length -= column_at
        if length != PyBytes_GET_SIZE(column) or memcmp(text + column_at, PyBytes_AS_STRING(column), length) != 0:
            column = PyBytes_FromStringAndSize(text + column_at, length)  # often that of the row before
        columns.append(column)
    return size


# Rows as Hbase.thrift defines them: TRowResult = {1: string, 2: map<string, TCell>}, TCell = {1: string, 2: i64}, each
# struct closed by a stop byte. Offsets are in the buffer of the answer.

cdef enum:
    INCOMPLETE = -1  # the row continues after the received bytes
    INVALID = -2  # not a row

cdef struct RowHead:
    Py_ssize_t key
    Py_ssize_t key_size
    Py_ssize_t cells  # number of cells

cdef struct CellPlace:
    Py_ssize_t column
    Py_ssize_t column_size
    Py_ssize_t value
    Py_ssize_t value_size
    int64_t time_ms


cdef inline unsigned int word(const unsigned char* at) noexcept nogil:
    return <unsigned int> at[0] << 24 | <unsigned int> at[1] << 16 | <unsigned int> at[2] << 8 | at[3]


cdef inline int64_t long_word(const unsigned char* at) noexcept nogil:
    return <int64_t> (<uint64_t> word(at) << 32 | word(at + 4))


cdef inline Py_ssize_t read_head(
    const unsigned char* text, Py_ssize_t at, Py_ssize_t have, RowHead* row
) noexcept nogil:
    """Read a row up to its first cell; return where that starts, INCOMPLETE or INVALID."""
    cdef Py_ssize_t end
    if at + 7 > have:
        return INCOMPLETE
    if text[at] != 11 or text[at + 1] != 0 or text[at + 2] != 1:
        return INVALID
    row.key, row.key_size = at + 7, word(text + at + 3)
    end = row.key + row.key_size
    if end + 9 > have:
        return INCOMPLETE
    if text[end] != 13 or text[end + 1] != 0 or text[end + 2] != 2 or text[end + 3] != 11 or text[end + 4] != 12:
        return INVALID
    row.cells = word(text + end + 5)
    return end + 9


cdef inline Py_ssize_t read_cell(
    const unsigned char* text, Py_ssize_t at, Py_ssize_t have, CellPlace* cell
) noexcept nogil:
    """Read a cell; return where it ends, INCOMPLETE or INVALID."""
    cdef Py_ssize_t end
    if at + 4 > have:
        return INCOMPLETE
    cell.column, cell.column_size = at + 4, word(text + at)
    at = cell.column + cell.column_size
    if at + 7 > have:
        return INCOMPLETE
    if text[at] != 11 or text[at + 1] != 0 or text[at + 2] != 1:
        return INVALID
    cell.value, cell.value_size = at + 7, word(text + at + 3)
    end = cell.value + cell.value_size
    if end + 12 > have:
        return INCOMPLETE
    if text[end] != 10 or text[end + 1] != 0 or text[end + 2] != 2 or text[end + 11] != 0:
        return INVALID
    cell.time_ms = long_word(text + end + 3)
    return end + 12


cdef inline Py_ssize_t read_stop(const unsigned char* text, Py_ssize_t at, Py_ssize_t have) noexcept nogil:
    """Read the end of a row; return where it ends, INCOMPLETE or INVALID."""
    if at + 1 > have:
        return INCOMPLETE
    return at + 1 if text[at] == 0 else INVALID


cdef inline bytes part_of(const unsigned char* text, Py_ssize_t at, Py_ssize_t size):
    return PyBytes_FromStringAndSize(<const char*> text + at, size)


cdef Py_ssize_t parse_row(
    const unsigned char* text, Py_ssize_t at, Py_ssize_t have, list keys, list columns, list values, list times_ms
) except -3:
    """Append the cells of one row; return where it ends, INCOMPLETE or INVALID."""
    cdef RowHead row
    cdef CellPlace cell
    cdef Py_ssize_t i
    cdef bytes key
    at = read_head(text, at, have, &row)
    if at < 0:
        return at
    key = part_of(text, row.key, row.key_size)
    for i in range(row.cells):
        at = read_cell(text, at, have, &cell)
        if at < 0:
            return at
        keys.append(key)
        columns.append(part_of(text, cell.column, cell.column_size))
        values.append(part_of(text, cell.value, cell.value_size))
        times_ms.append(cell.time_ms)
    return read_stop(text, at, have)


def parse_rows(
    const unsigned char[::1] room, Py_ssize_t at, Py_ssize_t have, Py_ssize_t wanted,
    list keys, list columns, list values, list times_ms,
):
    """Append up to `wanted` rows of an answer, from byte `at` on. `room` has `have` received bytes. Return the number
    of whole rows, the position after them, and whether the next bytes can be a row."""
    cdef Py_ssize_t done = 0, end, held
    while done < wanted:
        held = len(keys)
        end = parse_row(&room[0], at, have, keys, columns, values, times_ms)
        if end < 0:
            del keys[held:]
            del columns[held:]
            del values[held:]
            del times_ms[held:]
            return done, at, end == INCOMPLETE
        at = end
        done += 1
    return done, at, True


cdef inline void sign_cell(
    const Key* secret, const unsigned char* key, Py_ssize_t key_size, const unsigned char* column,
    Py_ssize_t column_size, int64_t length, int64_t time_ms, uint64_t* low, uint64_t* high,
) noexcept nogil:
    """Add the 128-bit hash of a cell to two sums."""
    cdef State state
    start(&state, secret)
    add_bytes(&state, <const char*> key, key_size)
    add_bytes(&state, <const char*> column, column_size)
    add_word(&state, <uint64_t> key_size << 32 | <uint64_t> column_size)
    add_word(&state, <uint64_t> length)
    add_word(&state, <uint64_t> time_ms)
    low[0] += finish(&state, 0xEE)
    high[0] += finish(&state, 0xDD)


cdef int add_sums(dict groups, bytes prefix, uint64_t low, uint64_t high) except -1:
    cdef uint64_t before, above
    if prefix is not None:
        before, above = groups.get(prefix, (0, 0))
        groups[prefix] = (before + low, above + high)
    return 0


def sign_cells(
    list keys, list columns, const int64_t[::1] lengths, list times_ms, Py_ssize_t width, uint64_t secret_low,
    uint64_t secret_high, dict groups,
):
    """Add the hash of each cell to the sums of its group, named by the first `width` bytes of its row key."""
    cdef Py_ssize_t i
    cdef uint64_t low = 0, high = 0
    cdef bytes key, column, prefix = None
    cdef Key secret
    secret.low, secret.high = secret_low, secret_high
    for i in range(len(keys)):
        key, column = keys[i], columns[i]
        if prefix is None or key[:width] != prefix:
            add_sums(groups, prefix, low, high)
            low = high = 0
            prefix = key[:width]
        sign_cell(
            &secret, <const unsigned char*> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key),
            <const unsigned char*> PyBytes_AS_STRING(column), PyBytes_GET_SIZE(column),
            lengths[i], times_ms[i], &low, &high,
        )
    add_sums(groups, prefix, low, high)


cdef Py_ssize_t sign_row(
    const unsigned char* text, Py_ssize_t at, Py_ssize_t have, const Key* secret, RowHead* row,
    uint64_t* low, uint64_t* high,
) noexcept nogil:
    """Add the hashes of one row to two sums. The row's values are 4-byte lengths of the stored values. Return where the
    row ends, or INCOMPLETE or INVALID, which leave the sums undefined."""
    cdef CellPlace cell
    cdef Py_ssize_t i
    at = read_head(text, at, have, row)
    if at < 0:
        return at
    for i in range(row.cells):
        at = read_cell(text, at, have, &cell)
        if at < 0:
            return at
        if cell.value_size != 4:
            return INVALID
        sign_cell(
            secret, text + row.key, row.key_size, text + cell.column, cell.column_size, word(text + cell.value),
            cell.time_ms, low, high,
        )
    return read_stop(text, at, have)


def sign_rows(
    const unsigned char[::1] room, Py_ssize_t at, Py_ssize_t have, Py_ssize_t wanted, Py_ssize_t width,
    uint64_t secret_low, uint64_t secret_high, bytes before, dict groups,
):
    """Add up to `wanted` rows of an answer to the sums of their groups. Keys must ascend, from above `before`. Return
    the number of whole rows, the position after them, whether the next bytes can be a row, and the last key."""
    cdef const unsigned char* text = &room[0]
    cdef const unsigned char* last = <const unsigned char*> PyBytes_AS_STRING(before)
    cdef Py_ssize_t done = 0, end = at, last_size = PyBytes_GET_SIZE(before)
    cdef Py_ssize_t group = -1  # place of the key of its first row
    cdef uint64_t low = 0, high = 0, low_of_row, high_of_row
    cdef RowHead row
    cdef Key secret
    cdef int order
    cdef bint valid = True
    secret.low, secret.high = secret_low, secret_high
    while done < wanted:
        with nogil:
            low_of_row = high_of_row = 0
            end = sign_row(text, at, have, &secret, &row, &low_of_row, &high_of_row)
        if end < 0:
            valid = end == INCOMPLETE
            break
        order = memcmp(text + row.key, last, min(row.key_size, last_size))
        if order < 0 or (order == 0 and row.key_size <= last_size) or row.key_size < width:
            valid = False
            break
        if group < 0 or memcmp(text + row.key, text + group, width):
            if group >= 0:
                add_sums(groups, part_of(text, group, width), low, high)
            group, low, high = row.key, 0, 0
        low += low_of_row
        high += high_of_row
        last, last_size = text + row.key, row.key_size
        at = end
        done += 1
    if group >= 0:
        add_sums(groups, part_of(text, group, width), low, high)
    return done, at, valid, PyBytes_FromStringAndSize(<const char*> last, last_size)
