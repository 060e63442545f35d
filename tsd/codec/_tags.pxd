# A tag text → its tags, a part of _rows.pyx: `tsd.codec.putline.split_tags` in C, for well-formed texts.

cdef struct Tag:
    const char* key
    const char* value
    uint32_t key_bytes
    uint32_t value_bytes
    uint32_t bucket  # see `in_map_order`

cdef struct TagList:
    Tag* tags
    Py_ssize_t count, room


cdef enum:
    ANY_NUMBER = 0x7fffffff  # of tags: of texts that were judged before


cdef int split_tags(const char* at, Py_ssize_t size, TagList* list, Py_ssize_t most) noexcept nogil:
    """The tags of a text, a repeated one once. ODD where it is not well-formed or has more than `most`, which bounds
    the time it takes; NO_MEMORY."""
    cdef const char* end = at + size
    cdef const char* stop
    cdef const char* equals
    cdef Tag tag
    cdef Tag* there
    list.count = 0
    while True:
        while at < end and at[0] == c" ":
            at += 1
        if at == end:
            return TAKEN
        stop = <const char*> memchr(at, c" ", end - at)
        if stop == NULL:
            stop = end
        equals = <const char*> memchr(at, c"=", stop - at)
        if equals == NULL or equals == at or equals + 1 == stop or memchr(equals + 1, c"=", stop - equals - 1) != NULL:
            return ODD
        tag.key, tag.key_bytes = at, <uint32_t> (equals - at)
        tag.value, tag.value_bytes = equals + 1, <uint32_t> (stop - equals - 1)
        at = stop
        there = tag_of(list, &tag)
        if there == NULL:
            if list.count == most:
                return ODD
            if list.count == list.room:
                if grow(<void**> &list.tags, list.room * 2 + 8, sizeof(Tag)):
                    return NO_MEMORY
                list.room = list.room * 2 + 8
            list.tags[list.count] = tag
            list.count += 1
        elif there.value_bytes != tag.value_bytes or memcmp(there.value, tag.value, tag.value_bytes):
            return ODD


cdef inline Tag* tag_of(TagList* list, const Tag* tag) noexcept nogil:
    """The tag of the same name; NULL: there is none."""
    cdef Py_ssize_t at
    for at in range(list.count):
        if list.tags[at].key_bytes == tag.key_bytes and memcmp(list.tags[at].key, tag.key, tag.key_bytes) == 0:
            return &list.tags[at]
    return NULL


cdef bint same_tags(TagList* some, TagList* others) noexcept nogil:
    """Whether two lists have the same tags, in whatever order."""
    cdef Py_ssize_t at
    cdef Tag* there
    if some.count != others.count:
        return False
    for at in range(some.count):
        there = tag_of(others, &some.tags[at])
        if (
            there == NULL
            or there.value_bytes != some.tags[at].value_bytes
            or memcmp(there.value, some.tags[at].value, there.value_bytes)
        ):
            return False
    return True


cdef void in_map_order(TagList* list) noexcept nogil:
    """Put tags in the order in which OpenTSDB visits them: `tsd.codec.words.java_map_order`."""
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
    for at in range(1, list.count):  # stable: order of arrival within a bucket
        tag = list.tags[at]
        to = at
        while to > 0 and list.tags[to - 1].bucket > tag.bucket:
            list.tags[to] = list.tags[to - 1]
            to -= 1
        list.tags[to] = tag
