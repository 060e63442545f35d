# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled twin of `tsd.compaction.hours.plain_note_rows`: rows of put cells → the hours that they belong to.

The interpreter's lock is kept: it is less than a millisecond of work for the most that are told of at once.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcmp, memcpy

from tsd._bytemap cimport ByteMap, Record

from tsd.compaction.hours import TURNS, WAITING, WATCHED

cdef enum:
    BASE_BYTES = 4
    DONE = 0

cdef int32_t watched_state = WATCHED, waiting_state = WAITING
cdef int turns = TURNS


cdef inline int64_t base_of(const char* at) noexcept nogil:
    cdef const uint8_t* byte = <const uint8_t*> at
    return <int64_t> byte[0] << 24 | byte[1] << 16 | byte[2] << 8 | byte[3]


cdef bytes place_of(const char* text, Py_ssize_t salt, Py_ssize_t start):
    """See tsd.compaction.hours."""
    cdef bytes place = PyBytes_FromStringAndSize(NULL, BASE_BYTES + salt + 1)
    cdef char* to = PyBytes_AS_STRING(place)
    memcpy(to, text + start, BASE_BYTES)
    memcpy(to + BASE_BYTES, text, salt)
    to[BASE_BYTES + salt] = <char> (<uint8_t> text[start - 1] % turns)
    return place


cdef bytes key_of(const char* text, Py_ssize_t size, Py_ssize_t start):
    """A row without its base time, `size` bytes. It is freed before the next: the allocator has its memory at hand."""
    cdef bytes key = PyBytes_FromStringAndSize(NULL, size)
    memcpy(PyBytes_AS_STRING(key), text, start)
    memcpy(PyBytes_AS_STRING(key) + start, text + start + BASE_BYTES, size - start)
    return key


cdef settle(hour, int32_t state, Py_ssize_t grown, Py_ssize_t again):
    """Tell an hour what was done to its states."""
    if grown:
        hour.grew(state, grown)
    if again:
        hour.met_again(again)


def note_rows(
    puts not None,
    Py_ssize_t at,
    hours not None,
    Py_ssize_t salt,
    Py_ssize_t start,
    int64_t closed_s,
    Py_ssize_t room,
    int64_t last_s,
):
    """See plain_note_rows."""
    cdef list listed = puts if isinstance(puts, list) else list(puts)
    cdef Py_ssize_t end = start + BASE_BYTES, size, count = len(listed)
    cdef Py_ssize_t new = 0, begun = 0, left_out = 0, grown = 0, again = 0
    cdef int32_t state = 0, known
    cdef bytes row, first = b"", key
    cdef const char* text
    cdef PyObject* found
    cdef object hour = None
    cdef ByteMap states = None
    cdef Record* record
    cdef bint plain = False
    if not isinstance(hours, dict):  # or a kind of it
        raise TypeError(f"got hours as {type(hours)}")
    if not 0 <= salt < start or at < 0 or room < 0:
        raise ValueError(f"got {salt} bytes of salt, the base time behind {start}, a place of {at}, and room for {room}")
    while at < count:
        row = listed[at][0]
        text = PyBytes_AS_STRING(row)
        size = PyBytes_GET_SIZE(row) - BASE_BYTES
        if size < start:
            break
        if PyBytes_GET_SIZE(first) == 0 or memcmp(text, PyBytes_AS_STRING(first), end) != 0:
            settle(hour, state, grown, again)
            grown = again = 0
            first = row
            found = PyDict_GetItem(hours, place_of(text, salt, start))
            if found == NULL:
                hour, states = None, None
            else:
                hour = <object> found
                states, plain = hour.states, hour.is_plain
            state = waiting_state if base_of(text + start) <= closed_s else watched_state
        if states is None:
            if not room and base_of(text + start) >= last_s:
                left_out += 1
                at += 1
                continue
            break
        key = key_of(text, size, start)
        record = states.look_up(PyBytes_AS_STRING(key), size)
        if record != NULL:
            assert record.value_bytes == sizeof(int32_t)
            memcpy(&known, <char*> record + sizeof(Record) + size, sizeof(int32_t))
            if known == watched_state and plain:
                memcpy(<char*> record + sizeof(Record) + size, &waiting_state, sizeof(int32_t))
                again += 1
                begun += 1
            elif known != waiting_state:
                break
        elif room and plain:
            if states.add(PyBytes_AS_STRING(key), size, <char*> &state, sizeof(int32_t)) != DONE:
                break  # who takes a closer look meets it again
            room -= 1
            grown += 1
            new += 1
            begun += state == waiting_state
        elif not room and base_of(text + start) >= last_s:
            left_out += 1
        else:
            break
        at += 1
    settle(hour, state, grown, again)
    return at, new, begun, left_out
