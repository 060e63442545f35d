# The look-up of series, a part of _rows.pyx: one piece with the loop over lines, which it is compiled into.

cdef enum:
    NO_MEMORY = 4
    NONE = -1
    UNSETTLED = 0xFFFF
    RECORD_UNIT = 4  # of a ByteMap
    FEWEST_DEAD = 1 << 20  # bytes of the arena for which it is not worth to be packed

cdef uint32_t LINKED = 1 << 30  # a mark: lines find it
cdef uint32_t FIRST = 1 << 31  # a mark: a number shows it
cdef uint32_t METRIC = LINKED - 1  # what is left for a metric's number

cdef struct Entry:
    uint64_t at  # of the tags in the arena
    uint32_t tag_bytes
    uint32_t metric  # its number, and the marks; without any it is unused
    int32_t number  # of an unused one: the next unused
    int32_t follower  # the entry that was looked up after this one, when last it was; NONE, or one that is unused by now

cdef struct Series:
    uint64_t at  # of its key parts in the arena
    uint16_t before_bytes  # UNSETTLED: it has none
    uint16_t after_bytes
    int32_t entry  # of its first text; NONE: the number is free


cdef inline int grow(void** array, Py_ssize_t items, Py_ssize_t size) noexcept nogil:
    """Make room for so many items; what there was stays, also where there is no memory."""
    cdef void* moved = realloc(array[0], items * size)
    if moved == NULL:
        return NO_MEMORY
    array[0] = moved
    return TAKEN


cdef class Texts:
    """Series texts → numbers; numbers → their first text and their key parts. Each byte of a text is held once.

    A series is also found by its set of tags, in whatever order and however often a text has them."""

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
    cdef int32_t* fresh  # numbers that the loop over lines gave, and their metrics'
    cdef int32_t fresh_room, fresh_count
    cdef char* arena
    cdef uint64_t arena_room, arena_used, arena_dead
    cdef TagList wanted, met  # of the text that is looked up, and of one that it is held against
    cdef ByteMap metrics  # each metric that was ever entered: a number, from 1
    cdef uint32_t* metric_at  # by that number: where it stands in their map, counted in RECORD_UNITs
    cdef int32_t metric_room
    cdef object text_type, parts_type, tags_type

    def __cinit__(self, text_type, parts_type, tags_type):
        """`text_type` is made of metric and tags, `parts_type` of what stands before and behind the base time,
        `tags_type` of the numbers and the tag pairs of some series."""
        self.text_type, self.parts_type, self.tags_type = text_type, parts_type, tags_type
        seed = os.urandom(16)
        memcpy(&self.key, PyBytes_AS_STRING(seed), 16)
        self.unused = self.last = NONE
        self.metrics = ByteMap()
        if start_slots(&self.texts) != TAKEN or start_slots(&self.sets) != TAKEN:
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
        free(self.met.tags)

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
        """How many numbers have a text."""
        return self.series_count - self.free_count

    @property
    def count(self):
        """Numbers ever given: all are below."""
        return self.series_count

    cdef inline uint32_t hash(self, const char* metric, Py_ssize_t m, const char* tags, Py_ssize_t t) noexcept nogil:
        return <uint32_t> hash_of(&self.key, metric, m, tags, t)

    cdef inline bint is_text(
        self, int32_t at, const char* metric, Py_ssize_t m, const char* tags, Py_ssize_t t
    ) noexcept nogil:
        """Whether an entry in use is of a text."""
        cdef Entry* entry = &self.entries[at]
        return (
            entry.tag_bytes == <size_t> t
            and memcmp(self.arena + entry.at, tags, t) == 0
            and self.is_metric(entry.metric & METRIC, metric, m)
        )

    cdef inline const Record* metric_record(self, uint32_t id) noexcept nogil:
        return <const Record*> (self.metrics.arena + <uint64_t> self.metric_at[id] * RECORD_UNIT)

    cdef inline bint is_metric(self, uint32_t id, const char* metric, Py_ssize_t m) noexcept nogil:
        cdef const Record* record = self.metric_record(id)
        return record.key_bytes == <size_t> m and memcmp(<const char*> record + sizeof(Record), metric, m) == 0

    cdef inline int64_t slot_of(
        self, uint32_t hash, const char* metric, Py_ssize_t m, const char* tags, Py_ssize_t t
    ) noexcept nogil:
        """The slot of a text; of one that is not there NONE."""
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
        """The number of a text that a line brings. Agents send their series in one order: most often it is the one that
        came after the last one before, and its place in memory is at hand."""
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
        if at != NONE:  # memory brings what the next lines are held against while they are read
            PREFETCH(self.arena + self.entries[at].at)
            PREFETCH(&self.entries[self.entries[at].follower])
        return self.entries[self.last].number

    cdef inline void follow(self, int32_t at) noexcept nogil:
        """Expect an entry after the last one."""
        if self.last != NONE:
            self.entries[self.last].follower = at
        self.last = at

    cdef uint32_t set_hash(self, const char* metric, Py_ssize_t m, const TagList* list) noexcept nogil:
        """Of a metric and a set of tags, in whatever order."""
        cdef uint64_t sum = hash_of(&self.key, metric, m, NULL, 0)
        cdef Py_ssize_t at
        for at in range(list.count):
            sum += hash_of(
                &self.key, list.tags[at].key, list.tags[at].key_bytes, list.tags[at].value, list.tags[at].value_bytes
            )
        return <uint32_t> (sum >> 32)

    cdef int64_t set_slot(self, uint32_t hash, uint32_t metric) noexcept nogil:
        """The slot of the series with a metric (its number) and the tags in `wanted`; NONE where there is none."""
        cdef Slots* slots = &self.sets
        cdef uint32_t at = hash & slots.mask
        cdef Entry* entry
        while slots.at[at].item != NONE:
            if slots.at[at].hash == hash:
                entry = &self.entries[self.series[slots.at[at].item].entry]
                if (
                    entry.metric & METRIC == metric
                    and split_tags(self.arena + entry.at, entry.tag_bytes, &self.met, ANY_NUMBER) == TAKEN
                    and same_tags(&self.wanted, &self.met)
                ):
                    return at
            at = (at + 1) & slots.mask
        return NONE

    def find(self, bytes metric not None, bytes tags not None):
        """The number a text leads to, -1 for none."""
        return self.number_of(
            PyBytes_AS_STRING(metric), PyBytes_GET_SIZE(metric), PyBytes_AS_STRING(tags), PyBytes_GET_SIZE(tags)
        )

    def find_set(self, bytes metric not None, bytes tags not None):
        """The number of the series that a well-formed text names, however the text is written that leads to it; -1 for
        none. Raises MemoryError."""
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
        """Have a text, whose metric has the number `id`, and which leads to none, lead to a number; NONE where there is
        no memory, and nothing has changed."""
        cdef int32_t at = self.unused
        cdef Entry* entry
        if self.make_entry_room(t) != TAKEN:
            return NONE
        if at == NONE:
            at = self.entry_count
            self.entry_count += 1
        else:
            self.unused = self.entries[at].number
        entry = &self.entries[at]
        entry.at = self.arena_used
        entry.metric, entry.tag_bytes = id | LINKED, <uint32_t> t
        entry.number, entry.follower = number, NONE
        memcpy(self.arena + entry.at, tags, t)
        self.arena_used += t
        place(&self.texts, self.hash(metric, m, tags, t), at)
        return at

    cdef int32_t new_series(
        self, uint32_t id, const char* metric, Py_ssize_t m, const char* tags, Py_ssize_t t, uint32_t set_hash
    ) noexcept nogil:
        """A number for a text whose set of tags has none; NONE where there is no memory, and nothing has changed."""
        cdef int32_t at, number
        if self.make_series_room() != TAKEN:
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
        self.series[number].before_bytes = UNSETTLED
        place(&self.sets, set_hash, number)
        return number

    def link(self, bytes metric not None, bytes tags not None, int32_t number):
        """Have another text, which leads to none, lead to a number. Raises MemoryError, and then nothing has changed."""
        assert self.knows(number) and self.find(metric, tags) == NONE
        cdef int32_t at = self.new_entry(
            self.metric_id(metric, enter=True), PyBytes_AS_STRING(metric), PyBytes_GET_SIZE(metric), PyBytes_AS_STRING(tags), PyBytes_GET_SIZE(tags), number
        )
        if at == NONE:
            raise MemoryError

    def add(self, bytes metric not None, bytes tags not None):
        """A number for a text that leads to none, nor does another of its tags. Raises MemoryError, and then nothing
        has changed."""
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
        """For one more, and for its number when it is free again."""
        cdef int32_t room
        if self.series_count == self.series_room:
            if self.series_room >= 1 << 30:
                return NO_MEMORY
            room = <int32_t> larger(self.series_room, self.series_room + 1)
            if grow(<void**> &self.series, room, sizeof(Series)):
                return NO_MEMORY
            self.series_room = room
        return room_for_one(&self.sets)

    cdef int make_entry_room(self, Py_ssize_t text_bytes) noexcept nogil:
        cdef int32_t room
        if self.make_arena_room(text_bytes) != TAKEN:
            return NO_MEMORY
        if self.unused == NONE and self.entry_count == self.entry_room:
            if self.entry_room >= 1 << 30:
                return NO_MEMORY
            room = <int32_t> larger(self.entry_room, self.entry_room + 1)
            if grow(<void**> &self.entries, room, sizeof(Entry)):
                return NO_MEMORY
            self.entry_room = room
        return room_for_one(&self.texts)

    cdef int make_arena_room(self, Py_ssize_t size) noexcept nogil:
        cdef uint64_t room
        if self.arena_used + size > self.arena_room and self.arena_dead > FEWEST_DEAD + self.arena_used // 2:
            if self.pack() != TAKEN:
                return NO_MEMORY
        if self.arena_used + size > self.arena_room:
            room = larger(self.arena_room, self.arena_used + size)
            if grow(<void**> &self.arena, room, 1):
                return NO_MEMORY
            self.arena_room = room
        return TAKEN

    cdef int pack(self) noexcept nogil:
        """Give up what nobody uses of the arena."""
        cdef char* packed = NULL
        cdef uint64_t used = 0, room = larger(self.arena_used - self.arena_dead, 0)
        cdef int32_t at
        cdef Entry* entry
        cdef Series* one
        if grow(<void**> &packed, room, 1):
            return NO_MEMORY
        for at in range(self.entry_count):
            entry = &self.entries[at]
            if entry.metric & (LINKED | FIRST):
                memcpy(packed + used, self.arena + entry.at, entry.tag_bytes)
                entry.at = used
                used += entry.tag_bytes
        for at in range(self.series_count):
            one = &self.series[at]
            if one.entry != NONE and one.before_bytes != UNSETTLED:
                memcpy(packed + used, self.arena + one.at, one.before_bytes + one.after_bytes)
                one.at = used
                used += one.before_bytes + one.after_bytes
        free(self.arena)
        self.arena, self.arena_room, self.arena_used, self.arena_dead = packed, room, used, 0
        return TAKEN

    cdef void unmark(self, int32_t at, uint32_t mark) noexcept:
        """Take a mark from an entry, which ends with its last."""
        cdef Entry* entry = &self.entries[at]
        entry.metric &= ~mark
        if entry.metric & (LINKED | FIRST) == 0:
            self.arena_dead += entry.tag_bytes
            entry.number = self.unused
            self.unused = at

    def unlink(self, bytes metric not None, bytes tags not None, int32_t number):
        """Have a text lead nowhere, if it leads to this number."""
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
        """Have the tags in `wanted` lead nowhere, if they lead to this number."""
        cdef int64_t slot = self.set_slot(hash, metric)
        if slot != NONE and self.sets.at[slot].item == number:
            remove(&self.sets, <uint32_t> slot)

    def unlink_all(self):
        """Have every text lead nowhere; numbers keep what they have."""
        cdef Slots texts, sets
        cdef int32_t at
        must(start_slots(&texts))
        if start_slots(&sets) != TAKEN:
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
        """The first text of a number; None where it is free."""
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
        """The numbers that have a text."""
        return [at for at in range(self.series_count) if self.series[at].entry != NONE]

    cdef char* settled(self, int32_t number, Py_ssize_t before, Py_ssize_t after) noexcept nogil:
        """Where the key parts of a number are to be written; NULL where there is no memory."""
        cdef Series* one
        if self.make_arena_room(before + after) != TAKEN:
            return NULL
        one = &self.series[number]
        if one.before_bytes != UNSETTLED:
            self.arena_dead += one.before_bytes + one.after_bytes
        one.at = self.arena_used
        one.before_bytes, one.after_bytes = <uint16_t> before, <uint16_t> after
        self.arena_used += before + after
        return self.arena + one.at

    def settle(self, int64_t number, parts):
        """Give a number key parts, which a row key has room for (tsd.codec.rowkey.LONGEST_KEY). Raises MemoryError, and
        then nothing has changed."""
        cdef bytes before, after
        cdef char* at
        before, after = parts
        assert self.knows(number) and PyBytes_GET_SIZE(before) < UNSETTLED and PyBytes_GET_SIZE(after) < UNSETTLED
        at = self.settled(<int32_t> number, PyBytes_GET_SIZE(before), PyBytes_GET_SIZE(after))
        if at == NULL:
            raise MemoryError
        memcpy(at, PyBytes_AS_STRING(before), PyBytes_GET_SIZE(before))
        memcpy(at + PyBytes_GET_SIZE(before), PyBytes_AS_STRING(after), PyBytes_GET_SIZE(after))

    def parts(self, int64_t number):
        """Its key parts; None where it has none."""
        cdef Series* one
        if not self.knows(number) or self.series[number].before_bytes == UNSETTLED:
            return None
        one = &self.series[number]
        return self.parts_type(
            PyBytes_FromStringAndSize(self.arena + one.at, one.before_bytes),
            PyBytes_FromStringAndSize(self.arena + one.at + one.before_bytes, one.after_bytes),
        )

    def tags_of(self, const int32_t[::1] numbers, Py_ssize_t ahead):
        """Of those series that have key parts, by metric UID, the numbers and joined tag pairs; `ahead` bytes of salt
        stand before a metric's UID."""
        cdef Series* one
        cdef Py_ssize_t at
        cdef bytes metric
        cdef dict found = {}
        for at in range(numbers.shape[0]):
            if not self.knows(numbers[at]) or self.series[numbers[at]].before_bytes == UNSETTLED:
                continue
            one = &self.series[numbers[at]]
            metric = PyBytes_FromStringAndSize(self.arena + one.at + ahead, max(one.before_bytes - ahead, 0))
            some = found.get(metric)
            if some is None:
                some = found[metric] = self.tags_type([], [])
            (<list> some[0]).append(numbers[at])
            (<list> some[1]).append(PyBytes_FromStringAndSize(self.arena + one.at + one.before_bytes, one.after_bytes))
        return found

    def drop(self, int64_t number):
        """Free a number; its texts were unlinked before. Raises MemoryError, and then nothing has changed."""
        cdef int32_t room
        if not self.knows(number):
            return
        cdef Series* one = &self.series[number]
        if self.free_count == self.free_room:
            room = <int32_t> larger(self.free_room, self.free_room + 1)
            must(grow(<void**> &self.free_numbers, room, sizeof(int32_t)))
            self.free_room = room
        self.unmark(one.entry, FIRST)
        if one.before_bytes != UNSETTLED:
            self.arena_dead += one.before_bytes + one.after_bytes
        one.entry, one.before_bytes = NONE, UNSETTLED
        self.free_numbers[self.free_count] = <int32_t> number
        self.free_count += 1

    cdef int32_t id_of_metric(self, const char* metric, Py_ssize_t size) noexcept:
        """A number for a metric, from 1 on, which it keeps; NONE where there is no memory."""
        cdef Record* record = self.metrics.look_up(metric, size)
        cdef int32_t number
        if record != NULL:
            memcpy(&number, value_of(record), sizeof(number))
            return number
        number = <int32_t> self.metrics.count + 1
        if <uint32_t> number == METRIC or self.metrics.used // RECORD_UNIT > <uint64_t> 0xFFFFFFFF:
            return NONE
        if number >= self.metric_room:
            if grow(<void**> &self.metric_at, larger(self.metric_room, number + 1), sizeof(uint32_t)):
                return NONE
            self.metric_room = <int32_t> larger(self.metric_room, number + 1)
        self.metric_at[number] = <uint32_t> (self.metrics.used // RECORD_UNIT)
        return NONE if self.metrics.add(metric, size, <char*> &number, sizeof(number)) != TAKEN else number

    def metric_id(self, bytes metric not None, *, bint enter):
        """The number of a metric, from 1 on, which it keeps; of one that has none 0, unless it is to be entered. Raises
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
        """The numbers that the loop over lines gave since this was last asked, each with its metric's, as bytes."""
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
        return TAKEN

    cdef void note_fresh(self, int32_t number, int32_t metric) noexcept nogil:
        self.fresh[self.fresh_count] = number
        self.fresh[self.fresh_count + 1] = metric
        self.fresh_count += 2


cdef inline int must(int found) except -1:
    if found == NO_MEMORY:
        raise MemoryError
    assert found == TAKEN, found
    return found


cdef inline uint64_t larger(uint64_t room, uint64_t wanted) noexcept nogil:
    """The next size of an array: half as much again, and at least what is wanted."""
    return max(room + (room >> 1), wanted, 1024)
