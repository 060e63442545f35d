# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled twin of the way in: texts → numbers, and a block of put lines → points, without an object for a line.

`Texts` is the look-up of a `SeriesTable`, `Points` are the points of an `OpenRows`. Lines that are not plain stay where
they are: `Points.read` says where it stopped, and `tsd.codec.putline` judges that line.
"""

import os

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport Py_INCREF, PyObject
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memchr, memcmp, memcpy, memmove, memset

from tsd._bytemap cimport ByteMap, Record
from tsd.ingest._words cimport ODD, TAKEN, Key, hash_of, read_time, read_value, tsd_strtod

cdef extern from *:
    """
    #define PREFETCH(place) __builtin_prefetch(place)
    """
    void PREFETCH(const void* place) nogil

include "_tags.pxi"
include "_slots.pxi"
include "_texts.pxi"
include "_cells.pxi"
include "_columns.pxi"


cdef enum:
    STRANGER = 2  # beside TAKEN and ODD: a good line of a series that is not known
    OTHER = 3  # no put line

cdef struct Line:
    const char* metric
    Py_ssize_t metric_bytes
    const char* tags
    Py_ssize_t tag_bytes
    const char* time  # the word that `instant` was read from last, and its blank; NULL: none
    Py_ssize_t time_bytes
    int64_t instant
    int64_t bits
    int flags


cdef inline bint is_same(const char* some, const char* others, Py_ssize_t size) noexcept nogil:
    cdef uint64_t[2] words
    cdef uint64_t[2] held
    if not 8 <= size <= 16:
        return memcmp(some, others, size) == 0
    memcpy(&words[0], some, 8)
    memcpy(&held[0], others, 8)
    memcpy(&words[1], some + size - 8, 8)
    memcpy(&held[1], others + size - 8, 8)
    return words[0] == held[0] and words[1] == held[1]


cdef inline int read_line(const char* at, const char* end, Line* line) noexcept nogil:
    """Take a put line apart whose LF stands at `end`."""
    line.metric = at + 4
    at = <const char*> memchr(line.metric, c" ", end - line.metric)
    if at == NULL or at == line.metric:
        return ODD
    line.metric_bytes = at - line.metric
    at += 1
    if line.time != NULL and at + line.time_bytes <= end and is_same(at, line.time, line.time_bytes):
        at += line.time_bytes  # agents send many lines of one time
    else:
        line.time = at
        if read_time(&at, &line.instant) != TAKEN:
            line.time = NULL
            return ODD
        line.time_bytes = at - line.time
    if read_value(&at, &line.flags, &line.bits) != TAKEN:
        return ODD
    line.tags = at
    line.tag_bytes = end - at
    return TAKEN if at < end else ODD


include "_known.pxi"


cdef class Points:
    """Points in order of arrival: four columns (see `tsd.codec.columns.Columns`)."""

    cdef Texts texts
    cdef Columns columns
    cdef Py_ssize_t count, room

    def __cinit__(self, Texts texts not None):
        self.texts = texts

    def __dealloc__(self):
        free(self.columns.start)

    def __len__(self):
        return self.count

    cdef inline int add(self, int32_t series, int64_t instant, int flags, int64_t bits) noexcept nogil:
        if self.count == self.room and self.make_room() != TAKEN:
            return NO_MEMORY
        self.columns.series[self.count] = series
        self.columns.instants[self.count] = instant
        self.columns.flags[self.count] = <uint8_t> flags
        self.columns.bits[self.count] = bits
        self.count += 1
        return TAKEN

    cdef int make_room(self) noexcept nogil:
        """Have more. What is not few is soon a window's: memory for all of that is taken at once, and used as it fills,
        instead of copied from one to another that is larger."""
        cdef Columns more
        cdef Py_ssize_t room = larger(self.room, 1024 if self.room < FEW_POINTS else MANY_POINTS)
        if new_columns(&more, room) != TAKEN:
            return NO_MEMORY
        self.move_to(&more, room)
        return TAKEN

    cdef void move_to(self, Columns* other, Py_ssize_t room) noexcept nogil:
        copy_columns(other, &self.columns, self.count)
        free(self.columns.start)
        self.columns, self.room = other[0], room

    def append(self, int32_t series, int64_t instant, int flags, int64_t bits):
        """Add a point that was read elsewhere."""
        if self.add(series, instant, flags, bits) != TAKEN:
            raise MemoryError

    def cut(self, Py_ssize_t count):
        """Take the last points back, so that so many are left."""
        assert 0 <= count <= self.count
        self.count = count

    cdef int run(self, const char** place, const char* end, Line* line, KnownNames known, Py_ssize_t* room) noexcept:
        """Add the points of lines until one that is not a known series' plain put line; what it is."""
        cdef const char* at = place[0]
        cdef const char* stop
        cdef int32_t number
        cdef int found = TAKEN
        while at < end:
            stop = <const char*> memchr(at, c"\n", end - at)
            if stop == NULL or stop - at < 3 or memcmp(at, "put", 3) or (at[3] != c" " and stop - at > 3):
                found = OTHER
                break
            found = ODD if stop - at == 3 else read_line(at, stop, line)
            if found != TAKEN:
                break
            number = self.texts.next_number(line.metric, line.metric_bytes, line.tags, line.tag_bytes)
            if number == NONE:
                found = STRANGER
                if known is not None and room[0] > 0:
                    found = known.enter(self.texts, line, &number)
                if found != TAKEN:
                    break
                room[0] -= 1
            found = self.add(number, line.instant, line.flags, line.bits)
            if found != TAKEN:
                break
            at = stop + 1
        place[0] = at
        return found

    def read(self, bytes block not None, Py_ssize_t start, dict strangers, KnownNames known, Py_ssize_t room):
        """Add the points of a block's lines from the offset `start` on, which is a line's; where that ended: behind the
        last line, or where a line stands that is not plain, or is no put line.

        Series that are not known are entered, up to `room` of them, where all of their names are `known`. Lines of
        others end it; where there are `strangers`, their texts are entered there, and they are passed over, with all
        new ones behind the first: series are entered in the order of their lines. Raises MemoryError.
        """
        cdef const char* text = PyBytes_AS_STRING(block)
        cdef const char* at = text + start
        cdef const char* end = text + PyBytes_GET_SIZE(block)
        cdef Line line
        cdef int found
        line.time = NULL
        assert 0 <= start <= PyBytes_GET_SIZE(block)
        while True:
            found = self.run(&at, end, &line, known, &room)
            if found == NO_MEMORY:
                raise MemoryError
            if found != STRANGER or strangers is None:
                return at - text
            stranger = self.texts.text_type(
                PyBytes_FromStringAndSize(line.metric, line.metric_bytes),
                PyBytes_FromStringAndSize(line.tags, line.tag_bytes),
            )
            strangers[stranger] = None
            room = 0
            at = line.tags + line.tag_bytes + 1

    def numbers(self):
        """The series of all points, as bytes."""
        return PyBytes_FromStringAndSize(<const char*> self.columns.series, self.count * sizeof(int32_t))

    def take(self):
        """The columns, which are empty then; None where they are. They hold no more memory than their points take, or
        not much: many may wait."""
        cdef Columns exact
        if self.count == 0:
            return None
        if self.count < self.room // 2 and new_columns(&exact, self.count, True) == TAKEN:
            self.move_to(&exact, self.count)
        taken = given_away(&self.columns, self.count)
        self.columns.start, self.count, self.room = NULL, 0, 0
        return taken


cdef char* _stop
tsd_strtod("0", &_stop)  # makes its locale, before there are threads that could do so at once
