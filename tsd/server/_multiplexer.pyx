# cython: language_level=3, boundscheck=False, wraparound=False
"""Compiled loops over packets: see `read_batch_python` in `tsd.server.multiplexer` and `credit_batch_python` in
`tsd.server.packet_batches`.

The GIL is not released: reading available data takes the kernel a few microseconds.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EINTR, errno
from libc.string cimport memchr, memcmp

cdef extern from "<unistd.h>" nogil:
    Py_ssize_t read(int fd, void* to, size_t size)

cdef enum:
    READ_BYTES = 8192  # as in tsd.server.multiplexer
    SMALL_PACKET_BYTES = 4096


cdef Py_ssize_t lines_of(const char* text, Py_ssize_t size, Py_ssize_t max_line) noexcept nogil:
    """Return the number of lines in a packet; 0 if `is_batchable` is false for it."""
    cdef const char* end = text + size
    cdef const char* feed
    cdef Py_ssize_t lines = 0
    if size < 5 or size >= SMALL_PACKET_BYTES or (end - 1)[0] != c"\n":
        return 0
    if memcmp(text, b"put ", 4) != 0 or memchr(text, c"\r", size) != NULL:
        return 0
    while text < end:
        feed = <const char*> memchr(text, c"\n", end - text)
        if feed - text > max_line:
            return 0
        lines += 1
        text = feed + 1
    return lines


def read_batch(list ready not None, dict slots not None, bytearray _buffer not None):
    """See read_batch_python."""
    cdef list packets = [], unbatched = [], failed = [], deferred = []
    cdef char* start = PyByteArray_AS_STRING(_buffer)
    cdef Py_ssize_t have = 0, got, lines
    cdef int fd
    if PyByteArray_GET_SIZE(_buffer) < SMALL_PACKET_BYTES * len(ready) + READ_BYTES:
        raise ValueError(f"got a buffer of {len(_buffer)} bytes for {len(ready)} packets")
    for item in ready:
        number = item[0]
        slot = slots[number]
        if not slot.fast_path or slot.client.is_limited:
            deferred.append(number)
            continue
        fd = number
        got = read(fd, start + have, READ_BYTES)
        if got < 0:
            if errno != EAGAIN and errno != EINTR:
                failed.append((number, errno))
            continue
        lines = lines_of(start + have, got, slot.max_line)
        if lines:
            packets.append((number, slot, got, lines))
            have += got
        else:
            unbatched.append((number, PyBytes_FromStringAndSize(start + have, got)))
    return PyBytes_FromStringAndSize(start, have), packets, unbatched, failed, deferred


def credit_batch(packets not None, position, now_s, now_ms):
    """See credit_batch_python."""
    cdef Py_ssize_t total = 0
    for _, slot, size, lines in packets:
        client = slot.client
        slot.bytes += size
        client.bytes += size
        client.accepted += lines
        client.last_ms = now_ms
        if client.is_limited:
            client.count_received(lines)
        else:
            client.lines += lines
        connection = slot.connection
        connection.accepted += lines
        connection.position = position
        slot.peer.idle_since = now_s
        total += lines
    return total
