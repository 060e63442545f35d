# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Compiled loop that records the rows of put cells in their buckets (see tsd.tables.opentsdb.compaction.queue).

It keeps the GIL: the largest batch takes less than a millisecond.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcmp, memcpy

from tsd.codec._bytemap cimport ByteMap, Record

from tsd.tables.opentsdb.compaction.hour_buckets import GROUPS, SINGLE, WAITING

cdef enum:
    BASE_BYTES = 4
    DONE = 0

cdef int32_t single_state = SINGLE, waiting_state = WAITING
cdef int groups = GROUPS


cdef inline int64_t base_of(const char* at) noexcept nogil:
    cdef const uint8_t* byte = <const uint8_t*> at
    return <int64_t> byte[0] << 24 | byte[1] << 16 | byte[2] << 8 | byte[3]


cdef bytes bucket_key(const char* text, Py_ssize_t salt, Py_ssize_t start):
    """See tsd.tables.opentsdb.compaction.hour_buckets."""
    cdef bytes place = PyBytes_FromStringAndSize(NULL, BASE_BYTES + salt + 1)
    cdef char* to = PyBytes_AS_STRING(place)
    memcpy(to, text + start, BASE_BYTES)
    memcpy(to + BASE_BYTES, text, salt)
    to[BASE_BYTES + salt] = <char> (<uint8_t> text[start - 1] % groups)
    return place


cdef bytes key_of(const char* text, Py_ssize_t size, Py_ssize_t start):
    """Return a row key without its base time, `size` bytes. It is freed before the next: allocation is cheap."""
    cdef bytes key = PyBytes_FromStringAndSize(NULL, size)
    memcpy(PyBytes_AS_STRING(key), text, start)
    memcpy(PyBytes_AS_STRING(key) + start, text + start + BASE_BYTES, size - start)
    return key


cdef update_counts(bucket, int32_t state, Py_ssize_t added, Py_ssize_t promoted):
    """Count the changes in a bucket's states."""
    if added:
        bucket.count_added(state, added)
    if promoted:
        bucket.count_promoted(promoted)


def record_rows(
    puts not None,
    Py_ssize_t at,
    buckets not None,
    Py_ssize_t salt,
    Py_ssize_t start,
    int64_t closed_s,
    bint whole,
    Py_ssize_t room,
    int64_t last_s,
):
    """Record the rows of `puts` from index `at` on, until a put that is not a simple case. Simple cases are: a new row in
    an existing bucket while there is `room`; another cell of a row; and, without room, a row with the base time
    `last_s` or later, which is dropped. New rows with base times up to `closed_s` are WAITING, others SINGLE, or not
    added if the puts are `whole`.

    Return the index of that put, and how many rows are new, became WAITING, and were dropped. The salt has
    `salt` bytes, the base time starts at `start`.
    """
    cdef list listed = puts if isinstance(puts, list) else list(puts)
    cdef Py_ssize_t end = start + BASE_BYTES, size, count = len(listed)
    cdef Py_ssize_t new = 0, begun = 0, dropped = 0, added = 0, promoted = 0
    cdef int32_t state = 0, known
    cdef bytes row, first = b"", key
    cdef const char* text
    cdef PyObject* found
    cdef object bucket = None
    cdef ByteMap states = None
    cdef Record* record
    cdef bint plain = False
    if not isinstance(buckets, dict):
        raise TypeError(f"got buckets as {type(buckets)}")
    if not 0 <= salt < start or at < 0 or room < 0:
        raise ValueError(f"got {salt} bytes of salt, the base time after {start}, index {at}, and room for {room}")
    while at < count:
        row = listed[at][0]
        text = PyBytes_AS_STRING(row)
        size = PyBytes_GET_SIZE(row) - BASE_BYTES
        if size < start:
            break
        if PyBytes_GET_SIZE(first) == 0 or memcmp(text, PyBytes_AS_STRING(first), end) != 0:
            update_counts(bucket, state, added, promoted)
            added = promoted = 0
            first = row
            found = PyDict_GetItem(buckets, bucket_key(text, salt, start))
            if found == NULL:
                bucket, states = None, None
            else:
                bucket = <object> found
                states, plain = bucket.states, bucket.is_plain
            state = waiting_state if base_of(text + start) <= closed_s else single_state
        if states is None:
            if whole and state == single_state:
                at += 1
                continue
            if not room and base_of(text + start) >= last_s:
                dropped += 1
                at += 1
                continue
            break
        key = key_of(text, size, start)
        record = states.look_up(PyBytes_AS_STRING(key), size)
        if record != NULL:
            assert record.value_bytes == sizeof(int32_t)
            memcpy(&known, <char*> record + sizeof(Record) + size, sizeof(int32_t))
            if known == single_state and plain:
                memcpy(<char*> record + sizeof(Record) + size, &waiting_state, sizeof(int32_t))
                promoted += 1
                begun += 1
            elif known != waiting_state:
                break
        elif whole and plain and state == single_state:
            pass
        elif room and plain:
            if states.add(PyBytes_AS_STRING(key), size, <char*> &state, sizeof(int32_t)) != DONE:
                break  # no memory: the caller handles this row
            room -= 1
            added += 1
            new += 1
            begun += state == waiting_state
        elif not room and base_of(text + start) >= last_s:
            dropped += 1
        else:
            break
        at += 1
    update_counts(bucket, state, added, promoted)
    return at, new, begun, dropped
