# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Names with cached UIDs → series keys: like `tsd.tables.opentsdb.resolver`, but without an object for each name."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int8_t, int32_t, int64_t, uint32_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy, memmove

from tsd.codec._arrays cimport DONE, NO_MEMORY, UNKNOWN, grow, larger, must
from tsd.codec._bytemap cimport ByteMap, Record, value_of
from tsd.codec._tags cimport ANY_NUMBER, Tag, TagList, sort_in_map_order, split_tags
from tsd.tables._composer cimport KeyBytes, KeyComposer

cdef enum:
    HEAD_BYTES = 16  # salt and metric UID: 8 bytes each at most


cdef class UidComposer(KeyComposer):
    """Composes keys from the UIDs of names."""

    cdef ByteMap metrics, tagks, tagvs
    cdef int salt_width
    cdef uint32_t salt_buckets
    cdef char head[HEAD_BYTES]
    cdef char* pairs  # of one series, sorted
    cdef Py_ssize_t pairs_room
    cdef TagList list

    def __cinit__(
        self, ByteMap metrics not None, ByteMap tagks not None, ByteMap tagvs not None, int salt_width,
        uint32_t salt_buckets,
    ):
        """The maps hold the UIDs of each kind by name."""
        assert 0 <= salt_width <= 8 and salt_buckets > 0
        self.metrics, self.tagks, self.tagvs = metrics, tagks, tagvs
        self.salt_width, self.salt_buckets = salt_width, salt_buckets

    def __dealloc__(self):
        free(self.pairs)
        free(self.list.tags)

    cdef int compose(self, const char* metric, Py_ssize_t m, const TagList* tags, KeyBytes* key) noexcept:
        cdef Py_ssize_t pairs_bytes
        cdef int found
        cdef Record* uid = self.metrics.look_up(metric, m)
        if uid == NULL:
            return UNKNOWN
        found = self.join_pairs(tags, &pairs_bytes)
        if found != DONE:
            return found
        if self.salt_width + uid.value_bytes > HEAD_BYTES:
            return UNKNOWN
        self.write_salt(value_of(uid), uid.value_bytes, pairs_bytes)
        memcpy(self.head + self.salt_width, value_of(uid), uid.value_bytes)
        key.head, key.head_bytes = self.head, self.salt_width + uid.value_bytes
        key.tail, key.tail_bytes = self.pairs, pairs_bytes
        self.metrics.looked_up += 1
        self.tagks.looked_up += tags.count
        self.tagvs.looked_up += tags.count
        return DONE

    cdef int join_pairs(self, const TagList* list, Py_ssize_t* size) noexcept:
        """Write the UID pairs of tags to `pairs`, sorted. Return UNKNOWN if a name is not cached."""
        cdef Py_ssize_t at, to, width = 0
        cdef Record* tagk
        cdef Record* tagv
        cdef char* place
        for at in range(list.count):
            tagk = self.tagks.look_up(list.tags[at].key, list.tags[at].key_bytes)
            tagv = NULL if tagk == NULL else self.tagvs.look_up(list.tags[at].value, list.tags[at].value_bytes)
            if tagv == NULL:
                return UNKNOWN
            if at == 0:
                width = tagk.value_bytes + tagv.value_bytes
                if self.pairs_room < (list.count + 1) * width:
                    if grow(<void**> &self.pairs, (list.count + 1) * width, 1):
                        return NO_MEMORY
                    self.pairs_room = (list.count + 1) * width
            elif tagk.value_bytes + tagv.value_bytes != width:
                return UNKNOWN
            place = self.pairs + list.count * width  # after all other pairs, until it is sorted in
            memcpy(place, value_of(tagk), tagk.value_bytes)
            memcpy(place + tagk.value_bytes, value_of(tagv), tagv.value_bytes)
            to = at
            while to > 0 and memcmp(self.pairs + (to - 1) * width, place, width) > 0:
                memcpy(self.pairs + to * width, self.pairs + (to - 1) * width, width)
                to -= 1
            memmove(self.pairs + to * width, place, width)
        size[0] = list.count * width
        return DONE

    cdef void write_salt(self, const char* metric, Py_ssize_t size, Py_ssize_t pairs_bytes) noexcept nogil:
        """Write the salt of a series: `tsd.codec.opentsdb.rowkey.salt_of`."""
        cdef uint32_t hash = 1, salt
        cdef bint is_named = False
        cdef Py_ssize_t at
        if self.salt_width == 0:
            return
        for at in range(size):
            hash = 31 * hash + <uint32_t> <int32_t> <int8_t> metric[at]
            is_named = is_named or metric[at] != 0
        for at in range(pairs_bytes):
            hash = 31 * hash + <uint32_t> <int32_t> <int8_t> self.pairs[at]
        salt = (<uint32_t> 0 - hash if hash >> 31 else hash) % self.salt_buckets if is_named else 0
        for at in range(self.salt_width):
            self.head[self.salt_width - 1 - at] = <char> (salt >> 8 * at if at < 4 else 0)

    def compose_all(self, list texts not None, int64_t[::1] bounds not None):
        """Return the keys of well-formed series (metric and tag text), joined. `bounds` (2 × series + 1) gets the ends
        of each head and tail; a series with a name that is not cached has neither. Raise MemoryError."""
        cdef Py_ssize_t at, used = 0, room = 0
        cdef bytes metric, tags
        cdef char* joined = NULL
        cdef KeyBytes key
        cdef int found
        assert bounds.shape[0] == 2 * len(texts) + 1
        bounds[0] = 0
        try:
            for at in range(len(texts)):
                metric, tags = texts[at]
                must(split_tags(PyBytes_AS_STRING(tags), PyBytes_GET_SIZE(tags), &self.list, ANY_NUMBER))
                found = self.compose(PyBytes_AS_STRING(metric), PyBytes_GET_SIZE(metric), &self.list, &key)
                if found == UNKNOWN:
                    key.head_bytes = key.tail_bytes = 0
                else:
                    must(found)
                if used + key.head_bytes + key.tail_bytes > room:
                    room = larger(room, used + key.head_bytes + key.tail_bytes)
                    must(grow(<void**> &joined, room, 1))
                memcpy(joined + used, key.head, key.head_bytes)
                memcpy(joined + used + key.head_bytes, key.tail, key.tail_bytes)
                bounds[2 * at + 1] = used + key.head_bytes
                used += key.head_bytes + key.tail_bytes
                bounds[2 * at + 2] = used
            return PyBytes_FromStringAndSize(joined, used)
        finally:
            free(joined)

    def missing(self, texts):
        """Return the names of well-formed series that are not cached: metrics, tag names, tag values, each once, in
        the order in which OpenTSDB visits them. Raise MemoryError."""
        cdef dict metrics = {}, tagks = {}, tagvs = {}
        cdef bytes metric, tags
        cdef Py_ssize_t at
        cdef Tag* tag
        for metric, tags in texts:
            must(split_tags(PyBytes_AS_STRING(tags), PyBytes_GET_SIZE(tags), &self.list, ANY_NUMBER))
            if self.metrics.look_up(PyBytes_AS_STRING(metric), PyBytes_GET_SIZE(metric)) == NULL:
                metrics[metric] = None
            sort_in_map_order(&self.list)
            for at in range(self.list.count):
                tag = &self.list.tags[at]
                if self.tagks.look_up(tag.key, tag.key_bytes) == NULL:
                    tagks[PyBytes_FromStringAndSize(tag.key, tag.key_bytes)] = None
                if self.tagvs.look_up(tag.value, tag.value_bytes) == NULL:
                    tagvs[PyBytes_FromStringAndSize(tag.value, tag.value_bytes)] = None
        return list(metrics), list(tagks), list(tagvs)
