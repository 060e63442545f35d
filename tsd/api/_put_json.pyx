# cython: language_level=3, boundscheck=False, wraparound=False
"""The compiled version of `tsd.api.put.parse_usual`: JSON points → put lines, in one pass, without an object per point.

It accepts plain JSON only: names of printable ASCII without escapes, each known member and each tag once. For any
other array it returns None, and the caller parses it in Python. Every bytes object ends with a NUL byte, which is not
part of a name, a number or a delimiter, so no loop reads beyond it.

The GIL is kept: a slice of a body takes less time than reacquiring the GIL may take.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t
from libc.string cimport memcmp, memcpy

from tsd.codec.text import LEGAL

cdef enum:
    MOST_TAGS = 16
    HEADER_BYTES = 38  # limit for the header's tag, so that a line is no longer than its JSON
    METRIC = 1
    TIMESTAMP = 2
    VALUE = 4
    TAGS = 8
    ALL = 15
    END = 0  # the byte ends a name
    ODD = 1  # legal only if configured: the line parser decides
    PLAIN = 2

cdef uint8_t[256] KINDS

cdef int code
for code in range(256):
    KINDS[code] = ODD if 0x20 < code < 0x7F else END
    if code < 0x7F and code in LEGAL:
        KINDS[code] = PLAIN
for code in b'"\\=[{':
    KINDS[code] = END


cdef struct Word:
    const char* at
    Py_ssize_t size

cdef struct Point:
    Word metric
    Word time
    Word value
    Word[2 * MOST_TAGS + 2] tags  # tagk, tagv, tagk…
    int words  # number of words in `tags`

cdef struct Body:
    const char* end
    Word tagk  # tag of the header; empty: none
    Word tagv
    int most_tags
    bint quoted  # a number was a string: such points must be validated
    bint doubtful  # something may fail the validation


cdef inline const char* past_blanks(const char* at) noexcept nogil:
    while at[0] == c" " or at[0] == c"\n" or at[0] == c"\r" or at[0] == c"\t":
        at += 1
    return at


cdef inline const char* past_digits(const char* at) noexcept nogil:
    while <uint8_t> (at[0] - c"0") < 10:
        at += 1
    return at


cdef inline const char* past_colon(const char* at) noexcept nogil:
    """Return the start of the value after a member name that ends at `at`, or NULL."""
    at = past_blanks(at)
    return past_blanks(at + 1) if at[0] == c":" else NULL


cdef inline bint starts(const char* at, const char* end, const char* text, Py_ssize_t size) noexcept nogil:
    return end - at >= size and memcmp(at, text, size) == 0


cdef inline bint same(const Word* one, const Word* other) noexcept nogil:
    return one.size == other.size and memcmp(one.at, other.at, one.size) == 0


# Each reader parses what starts at `at`, and returns its end, or NULL if it is not plain.


cdef inline const char* read_name(const char* at, Word* name, Body* body) noexcept nogil:
    cdef uint8_t kind, kinds = 0
    if at[0] != c'"':
        return NULL
    at += 1
    name.at = at
    while True:
        kind = KINDS[<uint8_t> at[0]]
        if kind == END:
            break
        kinds |= kind
        at += 1
    name.size = at - name.at
    body.doubtful |= kinds & ODD
    return at + 1 if at[0] == c'"' and name.size else NULL


cdef inline const char* read_time(const char* at, Word* time, Body* body) noexcept nogil:
    """Read an integer from 1 to 9999999999999 (LAST_MS), or a string of one."""
    cdef bint quoted = at[0] == c'"'
    at += quoted
    time.at = at
    at = past_digits(at)
    time.size = at - time.at
    if not 0 < time.size <= 13 or time.at[0] == c"0":
        return NULL
    body.doubtful |= time.size == 13 and time.at[0] > c"3"  # no row starts after 4294969199999
    body.quoted |= quoted
    return at + quoted if not quoted or at[0] == c'"' else NULL


cdef inline const char* read_value(const char* at, Word* value, Body* body) noexcept nogil:
    """Read a JSON number, or a string of one."""
    cdef bint quoted = at[0] == c'"'
    cdef bint whole = True
    cdef const char* mark
    at += quoted
    value.at = at
    at += at[0] == c"-"
    mark = at
    at = past_digits(at)
    if at == mark or (mark[0] == c"0" and at - mark > 1):
        return NULL
    if at[0] == c".":
        whole = False
        mark = at + 1
        at = past_digits(mark)
        if at == mark:
            return NULL
    if at[0] == c"e" or at[0] == c"E":
        whole = False
        at += 2 if at[1] == c"-" or at[1] == c"+" else 1
        mark = at
        at = past_digits(mark)
        if at == mark:
            return NULL
        body.doubtful |= at - mark > 2
    value.size = at - value.at
    body.doubtful |= value.size > (18 if whole else 40)  # longer ones may not fit into 64 bits
    body.quoted |= quoted
    return at + quoted if not quoted or at[0] == c'"' else NULL


cdef inline bint has_tag(const Point* point, const Word* tagk, int words) noexcept nogil:
    """Return whether one of the first `words` words is this tag name."""
    cdef int at
    for at in range(0, words, 2):
        if same(&point.tags[at], tagk):
            return True
    return False


cdef inline const char* read_tags(const char* at, Point* point, Body* body) noexcept nogil:
    cdef int words = 0
    if at[0] != c"{":
        return NULL
    while True:
        if words == 2 * MOST_TAGS:
            return NULL
        at = read_name(past_blanks(at + 1), &point.tags[words], body)
        if at == NULL or has_tag(point, &point.tags[words], words):
            return NULL
        at = past_colon(at)
        if at == NULL:
            return NULL
        at = read_name(at, &point.tags[words + 1], body)
        if at == NULL:
            return NULL
        words += 2
        at = past_blanks(at)
        if at[0] != c",":
            break
    point.words = words
    return at + 1 if at[0] == c"}" else NULL


cdef inline const char* read_point(const char* at, Point* point, Body* body) noexcept nogil:
    cdef int met = 0, member
    if at[0] != c"{":
        return NULL
    while True:
        at = past_blanks(at + 1)
        if starts(at, body.end, b'"metric"', 8):
            member = METRIC
            at += 8
        elif starts(at, body.end, b'"timestamp"', 11):
            member = TIMESTAMP
            at += 11
        elif starts(at, body.end, b'"value"', 7):
            member = VALUE
            at += 7
        elif starts(at, body.end, b'"tags"', 6):
            member = TAGS
            at += 6
        else:
            return NULL
        at = past_colon(at)
        if at == NULL or met & member:
            return NULL
        met |= member
        if member == METRIC:
            at = read_name(at, &point.metric, body)
        elif member == TIMESTAMP:
            at = read_time(at, &point.time, body)
        elif member == VALUE:
            at = read_value(at, &point.value, body)
        else:
            at = read_tags(at, point, body)
        if at == NULL:
            return NULL
        at = past_blanks(at)
        if at[0] != c",":
            break
    return at + 1 if at[0] == c"}" and met == ALL else NULL


# Lines


cdef inline char* put_word(char* to, char before, const Word* word) noexcept nogil:
    to[0] = before
    memcpy(to + 1, word.at, word.size)
    return to + 1 + word.size


cdef inline char* put_line(char* to, const Point* point, const char* stop) noexcept nogil:
    """Write the line of a point. Return its end, or NULL if it would be beyond `stop`."""
    cdef Py_ssize_t size = 7 + point.metric.size + point.time.size + point.value.size
    cdef int at
    for at in range(point.words):
        size += 1 + point.tags[at].size
    if size > stop - to:
        return NULL
    memcpy(to, b"put", 3)
    to = put_word(to + 3, c" ", &point.metric)
    to = put_word(to, c" ", &point.time)
    to = put_word(to, c" ", &point.value)
    for at in range(0, point.words, 2):
        to = put_word(to, c" ", &point.tags[at])
        to = put_word(to, c"=", &point.tags[at + 1])
    to[0] = c"\n"
    return to + 1


cdef Py_ssize_t put_array(const char* at, char** place, const char* stop, Body* body) noexcept nogil:
    """Write the lines of an array's points. Return their number, or -1 if the array is not plain."""
    cdef Py_ssize_t points = 0
    cdef Point point
    cdef char* to = place[0]
    at = past_blanks(at)
    if at[0] != c"[":
        return -1
    while True:
        at = read_point(past_blanks(at + 1), &point, body)
        if at == NULL:
            return -1
        if body.tagk.size and not has_tag(&point, &body.tagk, point.words):
            point.tags[point.words], point.tags[point.words + 1] = body.tagk, body.tagv
            point.words += 2
        body.doubtful |= point.words > 2 * body.most_tags
        to = put_line(to, &point, stop)
        if to == NULL:
            return -1
        points += 1
        at = past_blanks(at)
        if at[0] != c",":
            break
    place[0] = to
    return points if at[0] == c"]" and past_blanks(at + 1) == body.end and not (body.quoted and body.doubtful) else -1


cdef bint is_name(bytes text, Word* name, Body* body):
    cdef Py_ssize_t at
    name.at, name.size = PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)
    for at in range(name.size):
        if KINDS[<uint8_t> name.at[at]] == END:
            return False
        body.doubtful |= KINDS[<uint8_t> name.at[at]] & ODD
    return True


def put_lines(bytes text not None, bytes tagk not None, bytes tagv not None, most_tags):
    """Return the lines of an array of points and their number; None if the array is not plain.

    Points get the tag `tagk` unless it is empty, or they already have a tag of that name. Some clients send numbers as
    strings. Then all names and numbers must be certain to pass validation, with at most `most_tags` tags per point.
    """
    cdef Body body
    cdef Py_ssize_t points, size = PyBytes_GET_SIZE(text)  # enough for the lines: each is shorter than its object
    cdef bytes lines = PyBytes_FromStringAndSize(NULL, size)
    cdef char* start = PyBytes_AS_STRING(lines)
    cdef char* end = start
    body.end = PyBytes_AS_STRING(text) + size
    body.most_tags = min(most_tags, MOST_TAGS + 1)
    body.quoted = body.doubtful = False
    if not is_name(tagk, &body.tagk, &body) or not is_name(tagv, &body.tagv, &body):
        return None
    if body.tagk.size + body.tagv.size > HEADER_BYTES:
        return None
    points = put_array(PyBytes_AS_STRING(text), &end, start + size, &body)
    return None if points < 0 else (PyBytes_FromStringAndSize(start, end - start), points)
