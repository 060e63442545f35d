# The look-up of series, a part of _parser.pyx: compiled into one piece with the loop over lines.

cdef enum:
    NONE = -1
    NO_KEY = 0xFFFF
    RECORD_UNIT = 4  # of a ByteMap
    KEYS_AHEAD = 8  # keys: how far ahead memory is prefetched
    MIN_DEAD = 1 << 20  # bytes; with fewer dead ones the arena is not packed

cdef uint64_t NOWHERE = 0xFFFFFFFFFFFFFFFF  # no place in the arena
cdef uint32_t LINKED = 1 << 30  # a flag: lines find the entry
cdef uint32_t FIRST = 1 << 31  # a flag: the entry is the first text of its number
cdef uint32_t METRIC = LINKED - 1  # the bits left for a metric's number

cdef struct Entry:
    uint64_t at  # of the tags in the arena; entries next to each other may share them
    uint32_t tag_bytes
    uint32_t metric  # its number and the flags; an entry without flags is unused
    int32_t number  # of an unused entry: the next unused one
    int32_t follower  # the entry that was looked up after this one the last time; NONE, or an entry that may be unused

cdef struct Series:
    uint64_t at  # of its key in the arena
    uint16_t head_bytes  # NO_KEY: it has none
    uint16_t tail_bytes
    int32_t entry  # of its first text; NONE: the number is free


cdef class Texts:
    """Series texts → numbers; numbers → their first text and their key. Each byte of a text is held once, and the tags
    of a host that sends its series one after the other are held once for all of them.

    A series is also found by its set of tags, in any order and with repetitions."""

    cdef Key key
    cdef Slots texts  # entries, by their text
    cdef Slots sets  # numbers, by the metric and the tags of their first text
    cdef Entry* entries
    cdef int32_t entry_room, entry_count, unused
    cdef int32_t last  # the entry that was looked up last; NONE at first
    cdef Series* series
    cdef int32_t series_room, series_count  # numbers ever given
    cdef int32_t* free_numbers
    cdef int32_t free_room, free_count
    cdef int32_t* fresh  # numbers assigned in C, each followed by its metric's
    cdef int32_t fresh_room, fresh_count
    cdef char* arena
    cdef uint64_t arena_room, arena_used, arena_dead
    cdef TagList wanted, other  # of the text that is looked up, and of one that it is compared with
    cdef ByteMap metrics  # each metric ever inserted → its number, from 1
    cdef uint32_t* metric_at  # by that number: its place in the map, counted in RECORD_UNITs
    cdef int32_t metric_room
    cdef object text_type, key_type

    def __cinit__(self, text_type, key_type):
        """`text_type` is made of metric and tags, `key_type` of the head and the tail of a series' key."""
        self.text_type, self.key_type = text_type, key_type
        seed = os.urandom(16)
        memcpy(&self.key, PyBytes_AS_STRING(seed), 16)
        self.unused = self.last = NONE
        self.metrics = ByteMap()
        if start_slots(&self.texts) != DONE or start_slots(&self.sets) != DONE:
            raise MemoryError

    def __dealloc__(self):
        free(self.texts.at)
        free(self.sets.at)
        free(self.entries)
        free(self.series)
        free(self.free_numbers)
        free(self.fresh)
        free(self.arena)
        free(self.metric_at)
        free(self.wanted.tags)
        free(self.other.tags)

    @property
    def held(self):
        """Bytes of memory."""
        return (
            (<uint64_t> self.texts.mask + self.sets.mask + 2) * sizeof(Slot) + self.entry_room * sizeof(Entry)
            + self.series_room * sizeof(Series) + self.arena_room
            + (<uint64_t> self.free_room + self.fresh_room) * sizeof(int32_t)
            + self.metric_room * sizeof(uint32_t) + self.metrics.held
        )

    def __len__(self):
        """Return how many numbers have a text."""
        return self.series_count - self.free_count

    @property
    def count(self):
        """An exclusive upper bound of all assigned numbers."""
        return self.series_count

    cdef inline uint32_t hash(self, const char* metric, Py_ssize_t m, const char* tags, Py_ssize_t t) noexcept nogil:
        return <uint32_t> hash_of(&self.key, metric, m, tags, t)

    cdef inline bint is_text(
        self, int32_t at, const char* metric, Py_ssize_t m, const char* tags, Py_ssize_t t
    ) noexcept nogil:
        """Return whether an entry in use is of a text."""
        cdef Entry* entry = &self.entries[at]
        return (
            entry.tag_bytes == <size_t> t
            and memcmp(self.arena + entry.at, tags, t) == 0
            and self.is_metric(entry.metric & METRIC, metric, m)
        )

    cdef inline bint has_tags(self, int32_t at, const char* tags, Py_ssize_t t) noexcept nogil:
        """Return whether an entry is in use and has these tags."""
        cdef Entry* entry = &self.entries[at]
        return (
            entry.metric & (LINKED | FIRST) != 0 and entry.tag_bytes == <size_t> t
            and memcmp(self.arena + entry.at, tags, t) == 0
        )

    cdef inline const Record* metric_record(self, uint32_t id) noexcept nogil:
        return <const Record*> (self.metrics.arena + <uint64_t> self.metric_at[id] * RECORD_UNIT)

    cdef inline bint is_metric(self, uint32_t id, const char* metric, Py_ssize_t m) noexcept nogil:
        cdef const Record* record = self.metric_record(id)
        return record.key_bytes == <size_t> m and memcmp(<const char*> record + sizeof(Record), metric, m) == 0

    cdef inline int64_t slot_of(
        self, uint32_t hash, const char* metric, Py_ssize_t m, const char* tags, Py_ssize_t t
    ) noexcept nogil:
        """Return the slot of a text, or NONE."""
        cdef Slots* slots = &self.texts
        cdef uint32_t at = hash & slots.mask
        while slots.at[at].item != NONE:
            if slots.at[at].hash == hash and self.is_text(slots.at[at].item, metric, m, tags, t):
                return at
            at = (at + 1) & slots.mask
        return NONE

    cdef inline int32_t number_of(self, const char* metric, Py_ssize_t m, const char* tags, Py_ssize_t t) noexcept nogil:
        cdef int64_t slot = self.slot_of(self.hash(metric, m, tags, t), metric, m, tags, t)
        return NONE if slot == NONE else self.entries[self.texts.at[slot].item].number

    cdef inline int32_t next_number(
        self, const char* metric, Py_ssize_t m, const char* tags, Py_ssize_t t
    ) noexcept nogil:
        """Return the number of a line's text, or NONE. Agents send their series in one order: most often it is the text
        that followed the last one before, and its memory is prefetched."""
        cdef int32_t at = NONE if self.last == NONE else self.entries[self.last].follower
        cdef int64_t slot
        if at == NONE or not self.entries[at].metric & LINKED or not self.is_text(at, metric, m, tags, t):
            slot = self.slot_of(self.hash(metric, m, tags, t), metric, m, tags, t)
            if slot == NONE:
                return NONE
            at = self.texts.at[slot].item
            self.follow(at)
        self.last = at
        at = self.entries[at].follower
        if at != NONE:  # the next lines are compared with these while they are read
            PREFETCH(self.arena + self.entries[at].at)
            PREFETCH(&self.entries[self.entries[at].follower])
        return self.entries[self.last].number

    cdef inline void follow(self, int32_t at) noexcept nogil:
        """Record that an entry followed the last one."""
        if self.last != NONE:
            self.entries[self.last].follower = at
        self.last = at

    cdef uint32_t set_hash(self, const char* metric, Py_ssize_t m, const TagList* list) noexcept nogil:
        """Return the hash of a metric and a set of tags, in any order."""
        cdef uint64_t sum = hash_of(&self.key, metric, m, NULL, 0)
        cdef Py_ssize_t at
        for at in range(list.count):
            sum += hash_of(
                &self.key, list.tags[at].key, list.tags[at].key_bytes, list.tags[at].value, list.tags[at].value_bytes
            )
        return <uint32_t> (sum >> 32)

    cdef int64_t set_slot(self, uint32_t hash, uint32_t metric) noexcept nogil:
        """Return the slot of the series with a metric number and the tags in `wanted`, or NONE."""
        cdef Slots* slots = &self.sets
        cdef uint32_t at = hash & slots.mask
        cdef Entry* entry
        while slots.at[at].item != NONE:
            if slots.at[at].hash == hash:
                entry = &self.entries[self.series[slots.at[at].item].entry]
                if (
                    entry.metric & METRIC == metric
                    and split_tags(self.arena + entry.at, entry.tag_bytes, &self.other, ANY_NUMBER) == DONE
                    and same_tags(&self.wanted, &self.other)
                ):
                    return at
            at = (at + 1) & slots.mask
        return NONE

    def find(self, bytes metric not None, bytes tags not None):
        """Return the number of a text, or -1."""
        return self.number_of(
            PyBytes_AS_STRING(metric), PyBytes_GET_SIZE(metric), PyBytes_AS_STRING(tags), PyBytes_GET_SIZE(tags)
        )

    def find_set(self, bytes metric not None, bytes tags not None):
        """Return the number of a well-formed text's series, in any order of its tags, or -1. Raise MemoryError."""
        cdef const char* m = PyBytes_AS_STRING(metric)
        cdef uint32_t id = self.metric_id(metric, enter=False)
        cdef int64_t slot
        if id == 0:
            return NONE
        must(split_tags(PyBytes_AS_STRING(tags), PyBytes_GET_SIZE(tags), &self.wanted, ANY_NUMBER))
        slot = self.set_slot(self.set_hash(m, PyBytes_GET_SIZE(metric), &self.wanted), id)
        return NONE if slot == NONE else self.sets.at[slot].item

    cdef int32_t new_entry(
        self, uint32_t id, const char* metric, Py_ssize_t m, const char* tags, Py_ssize_t t, int32_t number
    ) noexcept nogil:
        """Let a text with the metric number `id`, which leads to no number, lead to one. Return NONE, and change nothing,
        if there is no memory."""
        cdef int32_t at = self.unused
        cdef Entry* entry
        if self.make_entry_room(t) != DONE:
            return NONE
        if at == NONE:
            at = self.entry_count
            self.entry_count += 1
        else:
            self.unused = self.entries[at].number
        entry = &self.entries[at]
        entry.metric, entry.tag_bytes = id | LINKED, <uint32_t> t
        entry.number, entry.follower = number, NONE
        if self.last != NONE and self.last != at and self.has_tags(self.last, tags, t):
            entry.at = self.entries[self.last].at
        else:
            entry.at = self.arena_used
            memcpy(self.arena + entry.at, tags, t)
            self.arena_used += t
        place(&self.texts, self.hash(metric, m, tags, t), at)
        return at

    cdef int32_t new_series(
        self, uint32_t id, const char* metric, Py_ssize_t m, const char* tags, Py_ssize_t t, uint32_t set_hash
    ) noexcept nogil:
        """Assign a number to a text with a new set of tags. Return NONE, and change nothing, if there is no memory."""
        cdef int32_t at, number
        if self.make_series_room() != DONE:
            return NONE
        number = self.free_numbers[self.free_count - 1] if self.free_count else self.series_count
        at = self.new_entry(id, metric, m, tags, t, number)
        if at == NONE:
            return NONE
        if self.free_count:
            self.free_count -= 1
        else:
            self.series_count += 1
        self.entries[at].metric |= FIRST
        self.series[number].entry = at
        self.series[number].head_bytes = NO_KEY
        place(&self.sets, set_hash, number)
        return number

    def link(self, bytes metric not None, bytes tags not None, int32_t number):
        """Let another text, which leads to no number, lead to one. Raise MemoryError and change nothing then."""
        assert self.knows(number) and self.find(metric, tags) == NONE
        cdef int32_t at = self.new_entry(
            self.metric_id(metric, enter=True), PyBytes_AS_STRING(metric), PyBytes_GET_SIZE(metric), PyBytes_AS_STRING(tags), PyBytes_GET_SIZE(tags), number
        )
        if at == NONE:
            raise MemoryError

    def add(self, bytes metric not None, bytes tags not None):
        """Assign a number to a text of a new series. Raise MemoryError and change nothing then."""
        assert self.find(metric, tags) == NONE and self.find_set(metric, tags) == NONE  # which fills `wanted`
        cdef const char* m = PyBytes_AS_STRING(metric)
        cdef int32_t number, id = self.metric_id(metric, enter=True)
        must(split_tags(PyBytes_AS_STRING(tags), PyBytes_GET_SIZE(tags), &self.wanted, ANY_NUMBER))
        number = self.new_series(
            id, m, PyBytes_GET_SIZE(metric), PyBytes_AS_STRING(tags), PyBytes_GET_SIZE(tags),
            self.set_hash(m, PyBytes_GET_SIZE(metric), &self.wanted),
        )
        if number == NONE:
            raise MemoryError
        return number

    cdef int make_series_room(self) noexcept nogil:
        """Make room for one more series, and for its number in the list of free ones."""
        cdef int32_t room
        if self.series_count == self.series_room:
            if self.series_room >= 1 << 30:
                return NO_MEMORY
            room = <int32_t> larger(self.series_room, self.series_room + 1)
            if grow_kept(<void**> &self.series, room, sizeof(Series)):
                return NO_MEMORY
            self.series_room = room
        return room_for_one(&self.sets)

    cdef int make_entry_room(self, Py_ssize_t text_bytes) noexcept nogil:
        cdef int32_t room
        if self.make_arena_room(text_bytes) != DONE:
            return NO_MEMORY
        if self.unused == NONE and self.entry_count == self.entry_room:
            if self.entry_room >= 1 << 30:
                return NO_MEMORY
            room = <int32_t> larger(self.entry_room, self.entry_room + 1)
            if grow_kept(<void**> &self.entries, room, sizeof(Entry)):
                return NO_MEMORY
            self.entry_room = room
        return room_for_one(&self.texts)

    cdef int make_arena_room(self, Py_ssize_t size) noexcept nogil:
        cdef uint64_t room
        if self.arena_used + size > self.arena_room and self.arena_dead > MIN_DEAD + self.arena_used // 2:
            if self.pack() != DONE:
                return NO_MEMORY
        if self.arena_used + size > self.arena_room:
            room = larger(self.arena_room, self.arena_used + size)
            if grow_kept(<void**> &self.arena, room, 1):
                return NO_MEMORY
            self.arena_room = room
        return DONE

    cdef int pack(self) noexcept nogil:
        """Copy the live parts of the arena to a new one. Shared tags are copied again where an entry without them lies
        between two that have them."""
        cdef char* packed = NULL
        cdef uint64_t used = 0, room = 0, before
        cdef int32_t at
        cdef Entry* entry
        cdef Series* one
        before = NOWHERE
        for at in range(self.entry_count):
            entry = &self.entries[at]
            if entry.metric & (LINKED | FIRST) and entry.tag_bytes and entry.at != before:
                room += entry.tag_bytes
                before = entry.at
        for at in range(self.series_count):
            one = &self.series[at]
            if one.entry != NONE and one.head_bytes != NO_KEY:
                room += one.head_bytes + one.tail_bytes
        room = larger(room, 0)
        if grow_kept(<void**> &packed, room, 1):
            return NO_MEMORY
        before = NOWHERE
        for at in range(self.entry_count):
            entry = &self.entries[at]
            if entry.metric & (LINKED | FIRST) and entry.tag_bytes:
                if entry.at != before:
                    before = entry.at
                    memcpy(packed + used, self.arena + before, entry.tag_bytes)
                    used += entry.tag_bytes
                entry.at = used - entry.tag_bytes
        for at in range(self.series_count):
            one = &self.series[at]
            if one.entry != NONE and one.head_bytes != NO_KEY:
                memcpy(packed + used, self.arena + one.at, one.head_bytes + one.tail_bytes)
                one.at = used
                used += one.head_bytes + one.tail_bytes
        free(self.arena)
        self.arena, self.arena_room, self.arena_used, self.arena_dead = packed, room, used, 0
        return DONE

    cdef void unmark(self, int32_t at, uint32_t mark) noexcept:
        """Clear a flag of an entry; without flags it is free."""
        cdef Entry* entry = &self.entries[at]
        entry.metric &= ~mark
        if entry.metric & (LINKED | FIRST) == 0:
            if not self.shares_tags(at - 1, entry) and not self.shares_tags(at + 1, entry):
                self.arena_dead += entry.tag_bytes  # an estimate: other entries may share them
            entry.number = self.unused
            self.unused = at

    cdef inline bint shares_tags(self, int32_t at, const Entry* entry) noexcept nogil:
        """Return whether an entry, if there is one at `at`, is in use and has the tags of `entry` at the same place."""
        return (
            0 <= at < self.entry_count and self.entries[at].metric & (LINKED | FIRST) != 0
            and self.entries[at].at == entry.at
        )

    def unlink(self, bytes metric not None, bytes tags not None, int32_t number):
        """Unlink a text from a number, if it is linked to it."""
        cdef const char* m = PyBytes_AS_STRING(metric)
        cdef const char* t = PyBytes_AS_STRING(tags)
        cdef Py_ssize_t m_bytes = PyBytes_GET_SIZE(metric), t_bytes = PyBytes_GET_SIZE(tags)
        cdef int64_t slot = self.slot_of(self.hash(m, m_bytes, t, t_bytes), m, m_bytes, t, t_bytes)
        cdef int32_t entry
        if slot == NONE or self.entries[self.texts.at[slot].item].number != number:
            return
        entry = self.texts.at[slot].item
        if self.entries[entry].metric & FIRST:
            must(split_tags(t, t_bytes, &self.wanted, ANY_NUMBER))
            self.leave_set(number, self.set_hash(m, m_bytes, &self.wanted), self.entries[entry].metric & METRIC)
        remove(&self.texts, <uint32_t> slot)
        self.unmark(entry, LINKED)

    cdef void leave_set(self, int32_t number, uint32_t hash, uint32_t metric) noexcept:
        """Remove the set of tags in `wanted`, if it leads to this number."""
        cdef int64_t slot = self.set_slot(hash, metric)
        if slot != NONE and self.sets.at[slot].item == number:
            remove(&self.sets, <uint32_t> slot)

    def unlink_all(self):
        """Unlink every text from its number. Numbers keep their texts and keys."""
        cdef Slots texts, sets
        cdef int32_t at
        must(start_slots(&texts))
        if start_slots(&sets) != DONE:
            free(texts.at)
            raise MemoryError
        free(self.texts.at)
        free(self.sets.at)
        self.texts, self.sets = texts, sets
        for at in range(self.entry_count):
            if self.entries[at].metric & LINKED:
                self.unmark(at, LINKED)

    cdef bint knows(self, int64_t number) noexcept nogil:
        return 0 <= number < self.series_count and self.series[number].entry != NONE

    def text(self, int64_t number):
        """Return the first text of a number, or None if it is free."""
        cdef Entry* entry
        cdef const Record* metric
        if not self.knows(number):
            return None
        entry = &self.entries[self.series[number].entry]
        metric = self.metric_record(entry.metric & METRIC)
        return self.text_type(
            PyBytes_FromStringAndSize(<const char*> metric + sizeof(Record), metric.key_bytes),
            PyBytes_FromStringAndSize(self.arena + entry.at, entry.tag_bytes),
        )

    def numbers(self):
        """Return the numbers that have a text."""
        return [at for at in range(self.series_count) if self.series[at].entry != NONE]

    cdef char* new_key(self, int32_t number, Py_ssize_t head, Py_ssize_t tail) noexcept nogil:
        """Return where the key of a number is to be written, or NULL if there is no memory."""
        cdef Series* one
        if self.make_arena_room(head + tail) != DONE:
            return NULL
        one = &self.series[number]
        if one.head_bytes != NO_KEY:
            self.arena_dead += one.head_bytes + one.tail_bytes
        one.at = self.arena_used
        one.head_bytes, one.tail_bytes = <uint16_t> head, <uint16_t> tail
        self.arena_used += head + tail
        return self.arena + one.at

    def set_key(self, int64_t number, key):
        """Set the key of a number. Raise MemoryError and change nothing if there is no memory."""
        cdef bytes head, tail
        cdef char* at
        head, tail = key
        assert self.knows(number) and PyBytes_GET_SIZE(head) < NO_KEY and PyBytes_GET_SIZE(tail) < NO_KEY
        at = self.new_key(<int32_t> number, PyBytes_GET_SIZE(head), PyBytes_GET_SIZE(tail))
        if at == NULL:
            raise MemoryError
        memcpy(at, PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head))
        memcpy(at + PyBytes_GET_SIZE(head), PyBytes_AS_STRING(tail), PyBytes_GET_SIZE(tail))

    cdef inline bint has_key(self, int64_t number) noexcept nogil:
        return self.knows(number) and self.series[number].head_bytes != NO_KEY

    def key_of(self, int64_t number):
        """Return the key of a number, or None if it has none."""
        cdef Series* one
        if not self.has_key(number):
            return None
        one = &self.series[number]
        return self.key_type(
            PyBytes_FromStringAndSize(self.arena + one.at, one.head_bytes),
            PyBytes_FromStringAndSize(self.arena + one.at + one.head_bytes, one.tail_bytes),
        )

    def join_keys(self, const int32_t[::1] numbers, int64_t[::1] bounds not None):
        """Return the keys of numbers, joined. `bounds` (2 × numbers + 1) gets the ends of each head and tail; a number
        without a key has neither."""
        cdef Py_ssize_t at, count = numbers.shape[0]
        cdef int64_t used = 0
        cdef Series* one
        cdef bytes joined
        cdef char* to
        assert bounds.shape[0] == 2 * count + 1
        bounds[0] = 0
        for at in range(count):
            if self.has_key(numbers[at]):
                one = &self.series[numbers[at]]
                bounds[2 * at + 1] = used + one.head_bytes
                used += one.head_bytes + one.tail_bytes
            else:
                bounds[2 * at + 1] = used
            bounds[2 * at + 2] = used
        joined = PyBytes_FromStringAndSize(NULL, used)
        to = PyBytes_AS_STRING(joined)
        for at in range(count):
            if bounds[2 * at + 2] > bounds[2 * at]:
                if at + KEYS_AHEAD < count and self.knows(numbers[at + KEYS_AHEAD]):
                    PREFETCH(self.arena + self.series[numbers[at + KEYS_AHEAD]].at)
                memcpy(to + bounds[2 * at], self.arena + self.series[numbers[at]].at, bounds[2 * at + 2] - bounds[2 * at])
        return joined

    cdef int insert(
        self, const char* metric, Py_ssize_t m, const char* tags, Py_ssize_t t, const KeyBytes* key, int32_t* number
    ) noexcept:
        """Insert a series with its key; its text leads to none, and its tags are `wanted`. Return UNKNOWN, and change
        nothing, if it is known by another text; or NO_MEMORY."""
        cdef int32_t metric_id = self.id_of_metric(metric, m)
        cdef uint32_t hash = self.set_hash(metric, m, &self.wanted)
        cdef char* to
        if metric_id == NONE:
            return NO_MEMORY
        if self.set_slot(hash, metric_id) != NONE:
            return UNKNOWN
        if self.make_fresh_room() != DONE or self.make_arena_room(t + key.head_bytes + key.tail_bytes) != DONE:
            return NO_MEMORY
        number[0] = self.new_series(metric_id, metric, m, tags, t, hash)
        if number[0] == NONE:
            return NO_MEMORY
        to = self.new_key(number[0], key.head_bytes, key.tail_bytes)  # there is room
        memcpy(to, key.head, key.head_bytes)
        memcpy(to + key.head_bytes, key.tail, key.tail_bytes)
        self.note_fresh(number[0], metric_id)
        self.follow(self.series[number[0]].entry)
        return DONE

    def insert_all(self, list texts not None, bytes joined not None, const int64_t[::1] bounds not None):
        """Insert new series with their keys (`join_keys`). Return the places of texts that are known, or belong
        to known series; those without a key are skipped. Raise MemoryError."""
        cdef Py_ssize_t at
        cdef bytes metric, tags
        cdef const char* keys = PyBytes_AS_STRING(joined)
        cdef KeyBytes key
        cdef int32_t number
        cdef list left = []
        cdef int found
        assert bounds.shape[0] == 2 * len(texts) + 1 and bounds[2 * len(texts)] <= PyBytes_GET_SIZE(joined)
        for at in range(len(texts)):
            key.head, key.head_bytes = keys + bounds[2 * at], bounds[2 * at + 1] - bounds[2 * at]
            key.tail, key.tail_bytes = keys + bounds[2 * at + 1], bounds[2 * at + 2] - bounds[2 * at + 1]
            if key.head_bytes + key.tail_bytes == 0:
                continue
            assert 0 <= key.head_bytes < NO_KEY and 0 <= key.tail_bytes < NO_KEY
            metric, tags = texts[at]
            if self.find(metric, tags) == NONE:
                must(split_tags(PyBytes_AS_STRING(tags), PyBytes_GET_SIZE(tags), &self.wanted, ANY_NUMBER))
                found = self.insert(
                    PyBytes_AS_STRING(metric), PyBytes_GET_SIZE(metric), PyBytes_AS_STRING(tags),
                    PyBytes_GET_SIZE(tags), &key, &number,
                )
                if found != UNKNOWN:
                    must(found)
                    continue
            left.append(at)
        return left

    def drop(self, int64_t number):
        """Free a number whose texts are unlinked. Raise MemoryError and change nothing then."""
        cdef int32_t room
        if not self.knows(number):
            return
        cdef Series* one = &self.series[number]
        if self.free_count == self.free_room:
            room = <int32_t> larger(self.free_room, self.free_room + 1)
            must(grow_kept(<void**> &self.free_numbers, room, sizeof(int32_t)))
            self.free_room = room
        self.unmark(one.entry, FIRST)
        if one.head_bytes != NO_KEY:
            self.arena_dead += one.head_bytes + one.tail_bytes
        one.entry, one.head_bytes = NONE, NO_KEY
        self.free_numbers[self.free_count] = <int32_t> number
        self.free_count += 1

    cdef int32_t id_of_metric(self, const char* metric, Py_ssize_t size) noexcept:
        """Return the permanent number of a metric, from 1 on, or NONE if there is no memory."""
        cdef Record* record = self.metrics.look_up(metric, size)
        cdef int32_t number
        if record != NULL:
            memcpy(&number, value_of(record), sizeof(number))
            return number
        number = <int32_t> self.metrics.count + 1
        if <uint32_t> number == METRIC or self.metrics.used // RECORD_UNIT > <uint64_t> 0xFFFFFFFF:
            return NONE
        if number >= self.metric_room:
            if grow_kept(<void**> &self.metric_at, larger(self.metric_room, number + 1), sizeof(uint32_t)):
                return NONE
            self.metric_room = <int32_t> larger(self.metric_room, number + 1)
        self.metric_at[number] = <uint32_t> (self.metrics.used // RECORD_UNIT)
        return NONE if self.metrics.add(metric, size, <char*> &number, sizeof(number)) != DONE else number

    def metric_id(self, bytes metric not None, *, bint enter):
        """Return the permanent number of a metric, from 1 on. If it has none: 0, or with `enter` a new one. Raise
        MemoryError."""
        cdef Record* record = self.metrics.look_up(PyBytes_AS_STRING(metric), PyBytes_GET_SIZE(metric))
        cdef int32_t number
        if record == NULL and not enter:
            return 0
        number = self.id_of_metric(PyBytes_AS_STRING(metric), PyBytes_GET_SIZE(metric))
        if number == NONE:
            raise MemoryError
        return number

    def take_fresh(self):
        """Return the numbers that were assigned in C since the last call, each followed by its metric's, as bytes."""
        taken = PyBytes_FromStringAndSize(<const char*> self.fresh, self.fresh_count * sizeof(int32_t))
        self.fresh_count = 0
        return taken

    cdef int make_fresh_room(self) noexcept nogil:
        cdef int32_t room
        if self.fresh_count + 2 > self.fresh_room:
            room = <int32_t> larger(self.fresh_room, self.fresh_room + 2)
            if grow(<void**> &self.fresh, room, sizeof(int32_t)):
                return NO_MEMORY
            self.fresh_room = room
        return DONE

    cdef void note_fresh(self, int32_t number, int32_t metric) noexcept nogil:
        self.fresh[self.fresh_count] = number
        self.fresh[self.fresh_count + 1] = metric
        self.fresh_count += 2
