# cython: language_level=3, boundscheck=False, wraparound=False
"""The compiled twins of the loops that take apart what an engine's scan yields (see tsd.store.keyvalue and
tsd.store.rowanswers), and that sign its cells (see tsd.store.changes)."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy


def split_cells(list part, list keys, list columns, list values):
    """Append row, column and value of each (key, value) to the lists; how many bytes they are in all.

    What ends no row is a row as it is, with an empty column: its reader finds out.
    """
    cdef Py_ssize_t size = 0, length, at, filled
    cdef const char* text
    cdef const char* zero
    cdef char* row
    cdef bytes key, value, last = b"", made = b"", head = b""
    for key, value in part:
        length = PyBytes_GET_SIZE(key)
        size += length + PyBytes_GET_SIZE(value)
        text = PyBytes_AS_STRING(key)
        made = PyBytes_FromStringAndSize(NULL, length)
        row = PyBytes_AS_STRING(made)
        at = filled = 0
        while True:
            zero = <const char*> memchr(text + at, 0, length - at) if at < length else NULL
            if zero == NULL:
                memcpy(row + filled, text + at, length - at)
                filled += length - at
                at = length
                break
            memcpy(row + filled, text + at, zero - text - at)
            filled += zero - text - at
            at = zero - text + 1
            if at < length and text[at] == 1:
                at += 1
                break
            row[filled] = 0
            filled += 1
            if at < length and <unsigned char> text[at] == 0xFF:
                at += 1
        keys.append(PyBytes_FromStringAndSize(row, filled))
        columns.append(PyBytes_FromStringAndSize(text + at, length - at))
        values.append(value)
    return size


cdef inline unsigned int word(const unsigned char* at) noexcept nogil:
    return <unsigned int> at[0] << 24 | <unsigned int> at[1] << 16 | <unsigned int> at[2] << 8 | at[3]


cdef inline long long longer(const unsigned char* at) noexcept nogil:
    return <long long> (<unsigned long long> word(at) << 32 | word(at + 4))


cdef Py_ssize_t parse_row(
    const unsigned char* text, Py_ssize_t at, Py_ssize_t have, list keys, list columns, list values, list times_ms
) except -3:
    """Add one row; where it ends, -1 where it has not come whole, -2 where it is no row as Hbase.thrift has it."""
    cdef Py_ssize_t count, column, value, end, i
    cdef bytes key
    if at + 7 > have:
        return -1
    if text[at] != 11 or text[at + 1] != 0 or text[at + 2] != 1:
        return -2
    end = at + 7 + word(text + at + 3)
    if end + 9 > have:
        return -1
    key = PyBytes_FromStringAndSize(<const char*> text + at + 7, end - at - 7)
    if text[end] != 13 or text[end + 1] != 0 or text[end + 2] != 2 or text[end + 3] != 11 or text[end + 4] != 12:
        return -2
    count = word(text + end + 5)
    at = end + 9
    for i in range(count):
        if at + 4 > have:
            return -1
        column = at + 4
        at = column + word(text + at)
        if at + 7 > have:
            return -1
        if text[at] != 11 or text[at + 1] != 0 or text[at + 2] != 1:
            return -2
        value = at + 7
        end = value + word(text + at + 3)
        if end + 12 > have:
            return -1
        if text[end] != 10 or text[end + 1] != 0 or text[end + 2] != 2 or text[end + 11] != 0:
            return -2
        keys.append(key)
        columns.append(PyBytes_FromStringAndSize(<const char*> text + column, at - column))
        values.append(PyBytes_FromStringAndSize(<const char*> text + value, end - value))
        times_ms.append(longer(text + end + 3))
        at = end + 12
    if at + 1 > have:
        return -1
    return at + 1 if text[at] == 0 else -2


def parse_rows(
    const unsigned char[::1] room, Py_ssize_t at, Py_ssize_t have, Py_ssize_t wanted,
    list keys, list columns, list values, list times_ms,
):
    """Add up to `wanted` rows of an answer, of which `have` bytes have come, from a place on; how many were whole,
    where they end, and whether what follows can be a row at all."""
    cdef Py_ssize_t done = 0, end, held
    while done < wanted:
        held = len(keys)
        end = parse_row(&room[0], at, have, keys, columns, values, times_ms)
        if end < 0:
            del keys[held:]
            del columns[held:]
            del values[held:]
            del times_ms[held:]
            return done, at, end == -1
        at = end
        done += 1
    return done, at, True


cdef inline uint64_t turned(uint64_t word, int by) noexcept nogil:
    return word << by | word >> (64 - by)


cdef struct Sip:
    uint64_t a
    uint64_t b
    uint64_t c
    uint64_t d


cdef inline void mix(Sip* state) noexcept nogil:
    """A round of SipHash."""
    state.a += state.b
    state.c += state.d
    state.b = turned(state.b, 13) ^ state.a
    state.d = turned(state.d, 16) ^ state.c
    state.a = turned(state.a, 32)
    state.c += state.b
    state.a += state.d
    state.b = turned(state.b, 17) ^ state.c
    state.d = turned(state.d, 21) ^ state.a
    state.c = turned(state.c, 32)


cdef inline void take_word(Sip* state, uint64_t word) noexcept nogil:
    state.d ^= word
    mix(state)
    state.a ^= word


cdef inline void take_text(Sip* state, const unsigned char* text, Py_ssize_t size) noexcept nogil:
    """A text behind its length: no two texts, one after the other, are read as two others."""
    cdef uint64_t word
    take_word(state, <uint64_t> size)
    while size >= 8:
        memcpy(&word, text, 8)
        take_word(state, word)
        text += 8
        size -= 8
    if size:
        word = 0
        memcpy(&word, text, size)
        take_word(state, word)


cdef inline void sign_cell(
    const unsigned char* key, Py_ssize_t key_size, const unsigned char* column, Py_ssize_t column_size,
    int64_t length, int64_t time_ms, uint64_t secret, uint64_t other, uint64_t* low, uint64_t* high,
) noexcept nogil:
    """Add SipHash-1-3, of 128 bits, of a cell to two sums."""
    cdef Sip state
    state.a = secret ^ <uint64_t> 0x736F6D6570736575ULL
    state.b = other ^ <uint64_t> 0x646F72616E646F6DULL ^ <uint64_t> 0xEE
    state.c = secret ^ <uint64_t> 0x6C7967656E657261ULL
    state.d = other ^ <uint64_t> 0x7465646279746573ULL
    take_text(&state, key, key_size)
    take_text(&state, column, column_size)
    take_word(&state, <uint64_t> length)
    take_word(&state, <uint64_t> time_ms)
    state.c ^= <uint64_t> 0xEE
    mix(&state)
    mix(&state)
    mix(&state)
    low[0] += state.a ^ state.b ^ state.c ^ state.d
    state.b ^= <uint64_t> 0xDD
    mix(&state)
    mix(&state)
    mix(&state)
    high[0] += state.a ^ state.b ^ state.c ^ state.d


cdef int add_sums(dict groups, bytes prefix, uint64_t low, uint64_t high) except -1:
    cdef uint64_t before, above
    if prefix is not None:
        before, above = groups.get(prefix, (0, 0))
        groups[prefix] = (before + low, above + high)
    return 0


def sign_cells(
    list keys, list columns, const int64_t[::1] lengths, list times_ms, Py_ssize_t width, uint64_t secret,
    uint64_t other, dict groups,
):
    """Add a hash of each cell to the sums of its group in `groups`, by the first `width` bytes of its row's key."""
    cdef Py_ssize_t i
    cdef uint64_t low = 0, high = 0
    cdef bytes key, column, prefix = None
    for i in range(len(keys)):
        key, column = keys[i], columns[i]
        if prefix is None or key[:width] != prefix:
            add_sums(groups, prefix, low, high)
            low = high = 0
            prefix = key[:width]
        sign_cell(
            <const unsigned char*> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key),
            <const unsigned char*> PyBytes_AS_STRING(column), PyBytes_GET_SIZE(column),
            lengths[i], times_ms[i], secret, other, &low, &high,
        )
    add_sums(groups, prefix, low, high)


cdef Py_ssize_t sign_row(
    const unsigned char* text, Py_ssize_t at, Py_ssize_t have, uint64_t secret, uint64_t other,
    uint64_t* low, uint64_t* high,
) noexcept nogil:
    """Add one row, whose values are their lengths, to two sums; where it ends, -1 and -2 as in `parse_row`."""
    cdef Py_ssize_t count, column, value, end, i, key, key_end
    cdef uint64_t some = 0, more = 0
    if at + 7 > have:
        return -1
    if text[at] != 11 or text[at + 1] != 0 or text[at + 2] != 1:
        return -2
    key, key_end = at + 7, at + 7 + word(text + at + 3)
    end = key_end
    if end + 9 > have:
        return -1
    if text[end] != 13 or text[end + 1] != 0 or text[end + 2] != 2 or text[end + 3] != 11 or text[end + 4] != 12:
        return -2
    count = word(text + end + 5)
    at = end + 9
    for i in range(count):
        if at + 4 > have:
            return -1
        column = at + 4
        at = column + word(text + at)
        if at + 11 > have:
            return -1
        if text[at] != 11 or text[at + 1] != 0 or text[at + 2] != 1 or word(text + at + 3) != 4:
            return -2
        value = at + 7
        end = value + 4
        if end + 12 > have:
            return -1
        if text[end] != 10 or text[end + 1] != 0 or text[end + 2] != 2 or text[end + 11] != 0:
            return -2
        sign_cell(
            text + key, key_end - key, text + column, at - column, word(text + value), longer(text + end + 3),
            secret, other, &some, &more,
        )
        at = end + 12
    if at + 1 > have:
        return -1
    if text[at] != 0:
        return -2
    low[0] += some
    high[0] += more
    return at + 1


def sign_rows(
    const unsigned char[::1] room, Py_ssize_t at, Py_ssize_t have, Py_ssize_t wanted, Py_ssize_t width,
    uint64_t secret, uint64_t other, bytes before, dict groups,
):
    """Add up to `wanted` rows of an answer as `parse_rows` reads them, to the sums of their groups; how many were
    whole, where they end, whether what follows can be a row at all, and the last row's key. Where a row's key is not
    above the one before, first of all `before`, no row follows."""
    cdef const unsigned char* text = &room[0]
    cdef const unsigned char* last = <const unsigned char*> PyBytes_AS_STRING(before)
    cdef Py_ssize_t done = 0, end = at, size, last_size = PyBytes_GET_SIZE(before), shared
    cdef Py_ssize_t group = -1  # where its first row's key stands
    cdef uint64_t low = 0, high = 0, low_of_row, high_of_row
    cdef int order
    cdef bint sound = True
    while done < wanted:
        with nogil:
            low_of_row = high_of_row = 0
            end = sign_row(text, at, have, secret, other, &low_of_row, &high_of_row)
        if end < 0:
            sound = end == -1
            break
        size = word(text + at + 3)
        shared = min(size, last_size)
        order = memcmp(text + at + 7, last, shared)
        if order < 0 or (order == 0 and size <= last_size) or size < width:
            sound = False
            break
        if group < 0 or memcmp(text + at + 7, text + group, width):
            if group >= 0:
                add_sums(groups, PyBytes_FromStringAndSize(<const char*> text + group, width), low, high)
            group, low, high = at + 7, 0, 0
        low += low_of_row
        high += high_of_row
        last, last_size = text + at + 7, size
        at = end
        done += 1
    if group >= 0:
        add_sums(groups, PyBytes_FromStringAndSize(<const char*> text + group, width), low, high)
    return done, at, sound, PyBytes_FromStringAndSize(<const char*> last, last_size)
