# cython: language_level=3, boundscheck=False, wraparound=False
"""The compiled twins of `tsd.doors.gather.plain_gather` and `plain_credit`.

The interpreter's lock is kept: a read of what is there takes the kernel a microsecond or a few.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EINTR, errno
from libc.string cimport memchr, memcmp

cdef extern from "<unistd.h>" nogil:
    Py_ssize_t read(int fd, void* to, size_t size)

cdef enum:
    READ_BYTES = 8192  # as there
    FEW_BYTES = 4096


cdef Py_ssize_t lines_of(const char* text, Py_ssize_t size, Py_ssize_t longest) noexcept nogil:
    """How many put lines these bytes are; 0 where they are not, as far as can be told at a glance, or one is longer."""
    cdef const char* end = text + size
    cdef const char* feed
    cdef Py_ssize_t lines = 0
    if size < 5 or size >= FEW_BYTES or end[-1] != c"\n":
        return 0
    if memcmp(text, b"put ", 4) != 0 or memchr(text, c"\r", size) != NULL:
        return 0
    while text < end:
        feed = <const char*> memchr(text, c"\n", end - text)
        if feed - text > longest:
            return 0
        lines += 1
        text = feed + 1
    return lines


def gather(list ready not None, dict places not None, bytearray _room not None):
    """See plain_gather."""
    cdef list shares = [], others = [], failed = [], uneasy = []
    cdef char* start = PyByteArray_AS_STRING(_room)
    cdef Py_ssize_t have = 0, got, lines
    cdef int fd
    if PyByteArray_GET_SIZE(_room) < FEW_BYTES * len(ready) + READ_BYTES:
        raise ValueError(f"got room for {len(_room)} bytes of {len(ready)} packets")
    for item in ready:
        number = item[0]
        place = places[number]
        if not place.easy or place.client.is_bounded:
            uneasy.append(number)
            continue
        fd = number
        got = read(fd, start + have, READ_BYTES)
        if got < 0:
            if errno != EAGAIN and errno != EINTR:
                failed.append((number, errno))
            continue
        lines = lines_of(start + have, got, place.longest)
        if lines:
            shares.append((number, place, got, lines))
            have += got
        else:
            others.append((number, PyBytes_FromStringAndSize(start + have, got)))
    return PyBytes_FromStringAndSize(start, have), shares, others, failed, uneasy


def credit(shares not None, position, now_s, now_ms):
    """See plain_credit."""
    cdef Py_ssize_t total = 0
    for _, place, size, lines in shares:
        client = place.client
        client.bytes += size
        client.accepted += lines
        client.last_ms = now_ms
        if client.is_bounded:
            client.sent(lines)
        else:
            client.lines += lines
        member = place.member
        member.accepted += lines
        member.position = position
        place.visitor.silent_since = now_s
        total += lines
    return total
