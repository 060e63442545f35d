# Series never seen whose names are known → their numbers and key parts, a part of _rows.pyx: what `tsd.ingest.names`
# does, for lines that need nobody to be asked.

cdef class KnownNames:
    """The UIDs of names, and what a series may be called."""

    cdef ByteMap metrics, tagks, tagvs
    cdef bint legal[256]
    cdef Py_ssize_t most_tags
    cdef int salt_width
    cdef uint32_t salt_buckets
    cdef char* pairs  # those of one series, in order
    cdef Py_ssize_t pairs_room
    cdef TagList list

    def __cinit__(
        self, ByteMap metrics not None, ByteMap tagks not None, ByteMap tagvs not None, bytes legal not None,
        Py_ssize_t most_tags, int salt_width, uint32_t salt_buckets,
    ):
        """Each kind's UIDs by name; the characters that names may have."""
        assert 0 <= salt_width <= 8 and salt_buckets > 0
        self.metrics, self.tagks, self.tagvs = metrics, tagks, tagvs
        self.most_tags, self.salt_width, self.salt_buckets = most_tags, salt_width, salt_buckets
        for byte in legal:
            self.legal[byte] = True

    def __dealloc__(self):
        free(self.pairs)
        free(self.list.tags)

    cdef inline bint is_legal(self, const char* name, uint32_t size) noexcept nogil:
        cdef uint32_t at
        for at in range(size):
            if not self.legal[<uint8_t> name[at]]:
                return False
        return True

    cdef bint may_be(self, const char* metric, Py_ssize_t m, const TagList* list) noexcept nogil:
        """Whether a series may be called so: `tsd.codec.putline.check_series`."""
        cdef Py_ssize_t at
        if not 0 < list.count <= self.most_tags or not self.is_legal(metric, <uint32_t> m):
            return False
        for at in range(list.count):
            if not self.is_legal(list.tags[at].key, list.tags[at].key_bytes):
                return False
            if not self.is_legal(list.tags[at].value, list.tags[at].value_bytes):
                return False
        return True

    cdef int join_pairs(self, const TagList* list, Py_ssize_t* size) noexcept:
        """The pairs of a series' tags → `pairs`; STRANGER where a name is not known."""
        cdef Py_ssize_t at, to, width = 0
        cdef Record* tagk
        cdef Record* tagv
        cdef char* place
        for at in range(list.count):
            tagk = self.tagks.look_up(list.tags[at].key, list.tags[at].key_bytes)
            tagv = NULL if tagk == NULL else self.tagvs.look_up(list.tags[at].value, list.tags[at].value_bytes)
            if tagv == NULL:
                return STRANGER
            if at == 0:
                width = tagk.value_bytes + tagv.value_bytes
                if self.pairs_room < (list.count + 1) * width:
                    if grow(<void**> &self.pairs, (list.count + 1) * width, 1):
                        return NO_MEMORY
                    self.pairs_room = (list.count + 1) * width
            elif tagk.value_bytes + tagv.value_bytes != width:
                return STRANGER
            place = self.pairs + list.count * width  # behind all others, until its place is found
            memcpy(place, value_of(tagk), tagk.value_bytes)
            memcpy(place + tagk.value_bytes, value_of(tagv), tagv.value_bytes)
            to = at
            while to > 0 and memcmp(self.pairs + (to - 1) * width, place, width) > 0:
                memcpy(self.pairs + to * width, self.pairs + (to - 1) * width, width)
                to -= 1
            memmove(self.pairs + to * width, place, width)
        size[0] = list.count * width
        return TAKEN

    cdef int enter(self, Texts texts, const Line* line, int32_t* number) noexcept:
        """Enter the series of a line that the look-up does not know; STRANGER where it has to be looked at: its names
        are not all known, or not legal, or it is one that is known by another text."""
        cdef Py_ssize_t pairs
        cdef uint32_t hash
        cdef int32_t metric_id
        cdef Record* metric
        cdef char* parts
        cdef int found = split_tags(line.tags, line.tag_bytes, &texts.wanted, self.most_tags)
        if found != TAKEN:
            return STRANGER if found == ODD else found
        if not self.may_be(line.metric, line.metric_bytes, &texts.wanted):
            return STRANGER
        metric = self.metrics.look_up(line.metric, line.metric_bytes)
        if metric == NULL:
            return STRANGER
        found = self.join_pairs(&texts.wanted, &pairs)
        if found != TAKEN:
            return found
        metric_id = texts.id_of_metric(line.metric, line.metric_bytes)
        if metric_id == NONE:
            return NO_MEMORY
        hash = texts.set_hash(line.metric, line.metric_bytes, &texts.wanted)
        if texts.set_slot(hash, metric_id) != NONE:
            return STRANGER
        if (
            texts.make_fresh_room() != TAKEN
            or texts.make_arena_room(line.tag_bytes + self.salt_width + metric.value_bytes + pairs) != TAKEN
        ):
            return NO_MEMORY
        number[0] = texts.new_series(metric_id, line.metric, line.metric_bytes, line.tags, line.tag_bytes, hash)
        if number[0] == NONE:
            return NO_MEMORY
        parts = texts.settled(number[0], self.salt_width + metric.value_bytes, pairs)  # there is room
        self.write_salt(parts, value_of(metric), metric.value_bytes, pairs)
        memcpy(parts + self.salt_width, value_of(metric), metric.value_bytes)
        memcpy(parts + self.salt_width + metric.value_bytes, self.pairs, pairs)
        texts.note_fresh(number[0], metric_id)
        texts.follow(texts.series[number[0]].entry)
        self.metrics.looked_up += 1
        self.tagks.looked_up += texts.wanted.count
        self.tagvs.looked_up += texts.wanted.count
        return TAKEN

    cdef void write_salt(self, char* to, const char* metric, Py_ssize_t size, Py_ssize_t pairs) noexcept nogil:
        """The salt of a series: `tsd.codec.rowkey.salt_of`."""
        cdef uint32_t hash = 1, salt
        cdef bint named = False
        cdef Py_ssize_t at
        if self.salt_width == 0:
            return
        for at in range(size):
            hash = 31 * hash + <uint32_t> <int32_t> <int8_t> metric[at]
            named = named or metric[at] != 0
        for at in range(pairs):
            hash = 31 * hash + <uint32_t> <int32_t> <int8_t> self.pairs[at]
        salt = (<uint32_t> 0 - hash if hash >> 31 else hash) % self.salt_buckets if named else 0
        for at in range(self.salt_width):
            to[self.salt_width - 1 - at] = <char> (salt >> 8 * at if at < 4 else 0)

    def missing(self, strangers):
        """The names of well-formed series that are not known: metrics, tag names, tag values, each once, in the order
        in which OpenTSDB meets them. Raises MemoryError."""
        cdef dict metrics = {}, tagks = {}, tagvs = {}
        cdef bytes metric, tags
        cdef Py_ssize_t at
        cdef Tag* tag
        cdef int found
        for metric, tags in strangers:
            found = split_tags(PyBytes_AS_STRING(tags), PyBytes_GET_SIZE(tags), &self.list, self.most_tags)
            if found == ODD or found == TAKEN and not self.may_be(
                PyBytes_AS_STRING(metric), PyBytes_GET_SIZE(metric), &self.list
            ):
                continue
            must(found)
            if self.metrics.look_up(PyBytes_AS_STRING(metric), PyBytes_GET_SIZE(metric)) == NULL:
                metrics[metric] = None
            in_map_order(&self.list)
            for at in range(self.list.count):
                tag = &self.list.tags[at]
                if self.tagks.look_up(tag.key, tag.key_bytes) == NULL:
                    tagks[PyBytes_FromStringAndSize(tag.key, tag.key_bytes)] = None
                if self.tagvs.look_up(tag.value, tag.value_bytes) == NULL:
                    tagvs[PyBytes_FromStringAndSize(tag.value, tag.value_bytes)] = None
        return list(metrics), list(tagks), list(tagvs)


cdef inline const char* value_of(const Record* record) noexcept nogil:
    return <const char*> record + sizeof(Record) + record.key_bytes
