# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled parser: series texts → numbers, and a block of put lines → points, without an object for a line.

`Texts` is the look-up of a `SeriesTable`, `ParsedPoints` are the points of `OpenWindow`. `ParsedPoints.read` stops at a
line that is not plain and returns where; `tsd.codec.putline` reads that line.
"""

import os

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp, memcpy, memset

from tsd.codec._arrays cimport DONE, NO_MEMORY, PREFETCH, UNKNOWN, grow, grow_kept, larger, must, tsd_kept
from tsd.codec._bytemap cimport ByteMap, Record, value_of
from tsd.codec._columns cimport Columns, copy_columns, give_away, new_columns, release_unused
from tsd.codec._scan cimport ODD, TAKEN, read_time, read_value, tsd_strtod
from tsd.codec._siphash cimport Key, hash_of
from tsd.codec._tags cimport ANY_NUMBER, NameLimits, TagList, is_series, same_tags, split_tags
from tsd.tables._composer cimport KeyBytes, KeyComposer

include "_hash_table.pxi"
include "_series_table.pxi"


cdef enum:
    OTHER = 3  # no put line
    FEW_POINTS = 1 << 17
    MANY_POINTS = (1 << 21) + (1 << 16)  # MAX_POINTS of `tsd.ingest.windows`, and a block more

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
    """Parse a put line. Its LF is at `end`."""
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
    return DONE if at < end else ODD


cdef class Rules:
    """The rules for names of a series: `tsd.codec.putline.NameRules`."""

    cdef NameLimits limits
    cdef TagList list

    def __cinit__(self, bytes legal not None, Py_ssize_t max_tags):
        """`legal` has the characters that names may have."""
        for byte in legal:
            self.limits.legal[byte] = True
        self.limits.max_tags = max_tags

    def __dealloc__(self):
        free(self.list.tags)

    def malformed(self, texts):
        """Return the series texts that are not well-formed. Raise MemoryError."""
        cdef bytes metric, tags
        cdef list found = []
        cdef int code
        for text in texts:
            metric, tags = text
            code = split_tags(PyBytes_AS_STRING(tags), PyBytes_GET_SIZE(tags), &self.list, self.limits.max_tags)
            if code == ODD or code == DONE and not is_series(
                &self.limits, PyBytes_AS_STRING(metric), PyBytes_GET_SIZE(metric), &self.list
            ):
                found.append(text)
            else:
                must(code)
        return found


cdef int insert_series(Texts texts, Rules rules, KeyComposer composer, const Line* line, int32_t* number) noexcept:
    """Insert the series of a line. Return UNKNOWN if a name is not cached, if the series is not well-formed, or if it is
    known by another text."""
    cdef KeyBytes key
    cdef int found = split_tags(line.tags, line.tag_bytes, &texts.wanted, rules.limits.max_tags)
    if found != DONE:
        return UNKNOWN if found == ODD else found
    if not is_series(&rules.limits, line.metric, line.metric_bytes, &texts.wanted):
        return UNKNOWN
    found = composer.compose(line.metric, line.metric_bytes, &texts.wanted, &key)
    if found != DONE:
        return found
    return texts.insert(line.metric, line.metric_bytes, line.tags, line.tag_bytes, &key, number)


cdef class ParsedPoints:
    """Points in order of arrival: four columns (see `tsd.codec.points.Columns`)."""

    cdef Texts texts
    cdef Rules rules
    cdef Columns columns
    cdef Py_ssize_t count, room

    def __cinit__(self, Texts texts not None, Rules rules not None):
        self.texts, self.rules = texts, rules

    def __dealloc__(self):
        free(self.columns.start)

    def __len__(self):
        return self.count

    cdef inline int add(self, int32_t series, int64_t instant, int flags, int64_t bits) noexcept nogil:
        if self.count == self.room and self.make_room() != DONE:
            return NO_MEMORY
        self.columns.series[self.count] = series
        self.columns.instants[self.count] = instant
        self.columns.flags[self.count] = <uint8_t> flags
        self.columns.bits[self.count] = bits
        self.count += 1
        return DONE

    cdef int make_room(self) noexcept nogil:
        """Allocate more. From FEW_POINTS on, memory for a whole window is allocated at once and used as it fills, instead
        of copied from one array to a larger one."""
        cdef Columns more
        cdef Py_ssize_t room = larger(self.room, 1024 if self.room < FEW_POINTS else MANY_POINTS)
        if new_columns(&more, room, True) != DONE:
            return NO_MEMORY
        self.move_to(&more, room)
        return DONE

    cdef void move_to(self, Columns* other, Py_ssize_t room) noexcept nogil:
        copy_columns(other, &self.columns, self.count)
        free(self.columns.start)
        self.columns, self.room = other[0], room

    def append(self, int32_t series, int64_t instant, int flags, int64_t bits):
        """Add a point that was parsed elsewhere."""
        if self.add(series, instant, flags, bits) != DONE:
            raise MemoryError

    def cut(self, Py_ssize_t count):
        """Remove the last points, so that `count` are left."""
        assert 0 <= count <= self.count
        self.count = count

    cdef int run(
        self, const char** place, const char* end, Line* line, KeyComposer composer, Py_ssize_t* room
    ) noexcept:
        """Add the points of lines up to the first that is not a plain put line of a known series. Return why it
        stopped: DONE at the end, ODD, UNKNOWN, OTHER or NO_MEMORY."""
        cdef const char* at = place[0]
        cdef const char* stop
        cdef int32_t number
        cdef int found = DONE
        while at < end:
            stop = <const char*> memchr(at, c"\n", end - at)
            if stop == NULL or stop - at < 3 or memcmp(at, "put", 3) or (at[3] != c" " and stop - at > 3):
                found = OTHER
                break
            found = ODD if stop - at == 3 else read_line(at, stop, line)
            if found != DONE:
                break
            number = self.texts.next_number(line.metric, line.metric_bytes, line.tags, line.tag_bytes)
            if number == NONE:
                found = UNKNOWN
                if composer is not None and room[0] > 0:
                    found = insert_series(self.texts, self.rules, composer, line, &number)
                if found != DONE:
                    break
                room[0] -= 1
            found = self.add(number, line.instant, line.flags, line.bits)
            if found != DONE:
                break
            at = stop + 1
        place[0] = at
        return found

    def read(self, bytes block not None, Py_ssize_t start, dict unknown, KeyComposer composer, Py_ssize_t room):
        """Add the points of a block's lines from the offset `start` on, the start of a line. Return where it stopped:
        at the end, or at a line that is not plain or not a put line.

        With a `composer`, series with cached names are inserted, up to `room` of them. Another unknown
        series stops it; with a dict `unknown`, its text goes there, its line is passed over, and no series is inserted
        behind it, because series are inserted in the order of their lines. Raise MemoryError.
        """
        cdef const char* text = PyBytes_AS_STRING(block)
        cdef const char* at = text + start
        cdef const char* end = text + PyBytes_GET_SIZE(block)
        cdef Line line
        cdef int found
        line.time = NULL
        assert 0 <= start <= PyBytes_GET_SIZE(block)
        while True:
            found = self.run(&at, end, &line, composer, &room)
            if found == NO_MEMORY:
                raise MemoryError
            if found != UNKNOWN or unknown is None:
                return at - text
            series = self.texts.text_type(
                PyBytes_FromStringAndSize(line.metric, line.metric_bytes),
                PyBytes_FromStringAndSize(line.tags, line.tag_bytes),
            )
            unknown[series] = None
            room = 0
            at = line.tags + line.tag_bytes + 1

    def numbers(self):
        """Return the series of all points, as bytes of int32."""
        return PyBytes_FromStringAndSize(<const char*> self.columns.series, self.count * sizeof(int32_t))

    def take(self):
        """Remove and return the columns, or None if there are no points. They hold little more memory than their points
        take, because many windows may wait. Many points are not copied for that."""
        cdef Columns exact
        if self.count == 0:
            return None
        if self.count >= FEW_POINTS:
            release_unused(&self.columns, self.room, self.count)
        elif self.count < self.room // 2 and new_columns(&exact, self.count, False) == DONE:
            self.move_to(&exact, self.count)
        taken = give_away(&self.columns, self.count)
        self.columns.start, self.count, self.room = NULL, 0, 0
        return taken


cdef char* _stop
tsd_strtod("0", &_stop)  # makes its locale, before there are threads that could do so at once
