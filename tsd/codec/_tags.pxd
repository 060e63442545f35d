# cython: language_level=3
"""Compiled `split_tags` and `check_series` of `tsd.codec.putline`, for well-formed series only."""

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memchr, memcmp

from tsd.codec._arrays cimport DONE, NO_MEMORY, grow
from tsd.codec._scan cimport ODD

cdef struct Tag:
    const char* key
    const char* value
    uint32_t key_bytes
    uint32_t value_bytes
    uint32_t bucket  # see `sort_in_map_order`

cdef struct TagList:
    Tag* tags
    Py_ssize_t count, room


cdef struct NameLimits:  # `tsd.codec.putline.NameRules`
    bint legal[256]  # by character
    Py_ssize_t max_tags

cdef enum:
    ANY_NUMBER = 0x7fffffff  # no limit on tags, for texts that were already checked


cdef inline int split_tags(const char* at, Py_ssize_t size, TagList* list, Py_ssize_t most) noexcept nogil:
    """Parse the tags of a text into `list`, repeated ones once. Return DONE, NO_MEMORY, or ODD if the text is malformed
    or has more than `most` tags. The limit bounds the time."""
    cdef const char* end = at + size
    cdef const char* stop
    cdef const char* equals
    cdef Tag tag
    cdef Tag* known
    list.count = 0
    while True:
        while at < end and at[0] == c" ":
            at += 1
        if at == end:
            return DONE
        stop = <const char*> memchr(at, c" ", end - at)
        if stop == NULL:
            stop = end
        equals = <const char*> memchr(at, c"=", stop - at)
        if equals == NULL or equals == at or equals + 1 == stop or memchr(equals + 1, c"=", stop - equals - 1) != NULL:
            return ODD
        tag.key, tag.key_bytes = at, <uint32_t> (equals - at)
        tag.value, tag.value_bytes = equals + 1, <uint32_t> (stop - equals - 1)
        at = stop
        known = tag_of(list, &tag)
        if known == NULL:
            if list.count == most:
                return ODD
            if list.count == list.room:
                if grow(<void**> &list.tags, list.room * 2 + 8, sizeof(Tag)):
                    return NO_MEMORY
                list.room = list.room * 2 + 8
            list.tags[list.count] = tag
            list.count += 1
        elif known.value_bytes != tag.value_bytes or memcmp(known.value, tag.value, tag.value_bytes):
            return ODD


cdef inline Tag* tag_of(TagList* list, const Tag* tag) noexcept nogil:
    """Return the listed tag with the same name, or NULL."""
    cdef Py_ssize_t at
    for at in range(list.count):
        if list.tags[at].key_bytes == tag.key_bytes and memcmp(list.tags[at].key, tag.key, tag.key_bytes) == 0:
            return &list.tags[at]
    return NULL


cdef inline bint is_legal(const NameLimits* limits, const char* name, Py_ssize_t size) noexcept nogil:
    """Return whether all characters of a name are legal."""
    cdef Py_ssize_t at
    for at in range(size):
        if not limits.legal[<uint8_t> name[at]]:
            return False
    return True


cdef inline bint is_series(
    const NameLimits* limits, const char* metric, Py_ssize_t m, const TagList* list
) noexcept nogil:
    """Return whether metric and tags are valid names of a series."""
    cdef Py_ssize_t at
    if m == 0 or not 0 < list.count <= limits.max_tags or not is_legal(limits, metric, m):
        return False
    for at in range(list.count):
        if not is_legal(limits, list.tags[at].key, list.tags[at].key_bytes):
            return False
        if not is_legal(limits, list.tags[at].value, list.tags[at].value_bytes):
            return False
    return True


cdef inline bint same_tags(TagList* some, TagList* others) noexcept nogil:
    """Return whether two lists have the same tags, in any order."""
    cdef Py_ssize_t at
    cdef Tag* known
    if some.count != others.count:
        return False
    for at in range(some.count):
        known = tag_of(others, &some.tags[at])
        if (
            known == NULL
            or known.value_bytes != some.tags[at].value_bytes
            or memcmp(known.value, some.tags[at].value, known.value_bytes)
        ):
            return False
    return True


cdef inline void sort_in_map_order(TagList* list) noexcept nogil:
    """Sort tags in the order in which OpenTSDB visits them: `tsd.codec.text.java_map_order`."""
    cdef uint32_t hash, size = 16
    cdef Py_ssize_t at, to
    cdef uint32_t i
    cdef Tag tag
    while list.count > size * 3 // 4:
        size *= 2
    for at in range(list.count):
        hash = 0
        for i in range(list.tags[at].key_bytes):
            hash = 31 * hash + <uint8_t> list.tags[at].key[i]
        list.tags[at].bucket = (hash ^ hash >> 16) & (size - 1)
    for at in range(1, list.count):  # a stable sort: order of arrival within a bucket
        tag = list.tags[at]
        to = at
        while to > 0 and list.tags[to - 1].bucket > tag.bucket:
            list.tags[to] = list.tags[to - 1]
            to -= 1
        list.tags[to] = tag
