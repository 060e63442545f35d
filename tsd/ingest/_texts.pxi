# The look-up of series, a part of _rows.pyx: one piece with the loop over lines, which it is compiled into.

cdef enum:
    LINKED = 1  # lines find it
    FIRST = 2  # a number shows it
    NO_MEMORY = 4
    NONE = -1
    FEWEST_DEAD = 1 << 20  # bytes of the arena for which it is not worth to be packed

cdef struct Entry:
    uint64_t at  # in the arena: the metric, then the tags
    uint32_t metric_bytes
    uint32_t tag_bytes
    int32_t number  # of an unused one: the next unused
    uint32_t marks  # 0: unused
    int32_t follower  # the entry that was looked up after this one, when last it was; NONE, or one that is unused by now

cdef struct Slot:
    uint32_t hash
    int32_t entry  # NONE: empty

cdef struct Series:
    uint64_t at  # of its key parts in the arena
    uint16_t before_bytes
    uint16_t after_bytes
    int32_t entry  # of its first text; NONE: the number is free
    bint settled


cdef inline int grow(void** array, Py_ssize_t items, Py_ssize_t size) noexcept nogil:
    """Make room for so many items; what there was stays, also where there is no memory."""
    cdef void* moved = realloc(array[0], items * size)
    if moved == NULL:
        return NO_MEMORY
    array[0] = moved
    return TAKEN


cdef class Texts:
    """Series texts → numbers; numbers → their first text and their key parts. Each byte of a text is held once."""

    cdef Key key
    cdef Slot* slots  # open addressing, a power of two; the entry stands at its hash or behind it, with no gap between
    cdef uint32_t mask
    cdef uint32_t linked
    cdef Entry* entries
    cdef int32_t entry_room, entry_count, unused
    cdef int32_t last  # the entry that was looked up last; NONE at first
    cdef Series* series
    cdef int32_t series_room, series_count
    cdef char* arena
    cdef uint64_t arena_room, arena_used, arena_dead
    cdef object text_type, parts_type

    def __cinit__(self, text_type, parts_type):
        """`text_type` is made of metric and tags, `parts_type` of what stands before and behind the base time."""
        self.text_type, self.parts_type = text_type, parts_type
        seed = os.urandom(16)
        memcpy(&self.key, PyBytes_AS_STRING(seed), 16)
        self.unused = self.last = NONE
        self.slots = new_slots(1024)
        if self.slots == NULL:
            raise MemoryError
        self.mask = 1023

    def __dealloc__(self):
        free(self.slots)
        free(self.entries)
        free(self.series)
        free(self.arena)

    @property
    def held(self):
        """Bytes of memory."""
        return (
            (<uint64_t> self.mask + 1) * sizeof(Slot) + self.entry_room * sizeof(Entry)
            + self.series_room * sizeof(Series) + self.arena_room
        )

    cdef inline uint32_t hash(self, const char* metric, Py_ssize_t m, const char* tags, Py_ssize_t t) noexcept nogil:
        return <uint32_t> hash_of(&self.key, metric, m, tags, t)

    cdef inline bint is_text(
        self, int32_t at, const char* metric, Py_ssize_t m, const char* tags, Py_ssize_t t
    ) noexcept nogil:
        """Whether an entry in use is of a text."""
        cdef Entry* entry = &self.entries[at]
        return (
            entry.metric_bytes == <size_t> m
            and entry.tag_bytes == <size_t> t
            and memcmp(self.arena + entry.at, metric, m) == 0
            and memcmp(self.arena + entry.at + m, tags, t) == 0
        )

    cdef inline int64_t slot_of(
        self, uint32_t hash, const char* metric, Py_ssize_t m, const char* tags, Py_ssize_t t
    ) noexcept nogil:
        """The slot of a text; of one that is not there NONE."""
        cdef uint32_t at = hash & self.mask
        while self.slots[at].entry != NONE:
            if self.slots[at].hash == hash and self.is_text(self.slots[at].entry, metric, m, tags, t):
                return at
            at = (at + 1) & self.mask
        return NONE

    cdef inline int32_t number_of(self, const char* metric, Py_ssize_t m, const char* tags, Py_ssize_t t) noexcept nogil:
        cdef int64_t slot = self.slot_of(self.hash(metric, m, tags, t), metric, m, tags, t)
        return NONE if slot == NONE else self.entries[self.slots[slot].entry].number

    cdef inline int32_t next_number(
        self, const char* metric, Py_ssize_t m, const char* tags, Py_ssize_t t
    ) noexcept nogil:
        """The number of a text that a line brings. Agents send their series in one order: most often it is the one that
        came after the last one before, and its place in memory is at hand."""
        cdef int32_t at = NONE if self.last == NONE else self.entries[self.last].follower
        cdef int64_t slot
        if at == NONE or not self.entries[at].marks & LINKED or not self.is_text(at, metric, m, tags, t):
            slot = self.slot_of(self.hash(metric, m, tags, t), metric, m, tags, t)
            if slot == NONE:
                return NONE
            at = self.slots[slot].entry
            if self.last != NONE:
                self.entries[self.last].follower = at
        self.last = at
        return self.entries[at].number

    def find(self, bytes metric not None, bytes tags not None):
        """The number a text leads to, -1 for none."""
        return self.number_of(
            PyBytes_AS_STRING(metric), PyBytes_GET_SIZE(metric), PyBytes_AS_STRING(tags), PyBytes_GET_SIZE(tags)
        )

    def link(self, bytes metric not None, bytes tags not None, int32_t number, bint first):
        """Have a text, which leads to none, lead to a number; `first`: the number shows it. Raises MemoryError, and
        then nothing has changed."""
        assert number >= 0 and self.find(metric, tags) == NONE and not (first and self.knows(number))
        cdef Py_ssize_t m = PyBytes_GET_SIZE(metric), t = PyBytes_GET_SIZE(tags)
        self.make_room(m + t, number)
        cdef int32_t at = self.unused
        cdef Entry* entry
        if at == NONE:
            at = self.entry_count
            self.entry_count += 1
        else:
            self.unused = self.entries[at].number
        entry = &self.entries[at]
        entry.at = self.arena_used
        entry.metric_bytes, entry.tag_bytes = <uint32_t> m, <uint32_t> t
        entry.number, entry.marks, entry.follower = number, LINKED, NONE
        memcpy(self.arena + entry.at, PyBytes_AS_STRING(metric), m)
        memcpy(self.arena + entry.at + m, PyBytes_AS_STRING(tags), t)
        self.arena_used += m + t
        place(self.slots, self.mask, self.hash(PyBytes_AS_STRING(metric), m, PyBytes_AS_STRING(tags), t), at)
        self.linked += 1
        if first:
            entry.marks |= FIRST
            self.series[number].entry = at

    cdef int make_room(self, Py_ssize_t text_bytes, int32_t number) except -1:
        """For a text, and for a number; and for the text's slot, so that a third of all are empty."""
        cdef Slot* slots
        cdef uint32_t at
        self.make_arena_room(text_bytes)
        if self.unused == NONE and self.entry_count == self.entry_room:
            if self.entry_room >= 1 << 30 or grow(
                <void**> &self.entries, larger(self.entry_room, self.entry_room + 1), sizeof(Entry)
            ):
                raise MemoryError
            self.entry_room = <int32_t> larger(self.entry_room, self.entry_room + 1)
        if number >= self.series_room:
            if grow(<void**> &self.series, larger(self.series_room, number + 1), sizeof(Series)):
                raise MemoryError
            self.series_room = <int32_t> larger(self.series_room, number + 1)
        while self.series_count <= number:
            self.series[self.series_count].entry = NONE
            self.series[self.series_count].settled = False
            self.series_count += 1
        if (<uint64_t> self.linked + 1) * 3 > (<uint64_t> self.mask + 1) * 2:
            slots = new_slots((<uint64_t> self.mask + 1) * 2)
            if slots == NULL:
                raise MemoryError
            for at in range(self.mask + 1):
                if self.slots[at].entry != NONE:
                    place(slots, self.mask * 2 + 1, self.slots[at].hash, self.slots[at].entry)
            free(self.slots)
            self.slots, self.mask = slots, self.mask * 2 + 1
        return 0

    cdef int make_arena_room(self, Py_ssize_t size) except -1:
        cdef uint64_t room
        if self.arena_used + size > self.arena_room and self.arena_dead > FEWEST_DEAD + self.arena_used // 2:
            self.pack()
        if self.arena_used + size > self.arena_room:
            room = larger(self.arena_room, self.arena_used + size)
            if grow(<void**> &self.arena, room, 1):
                raise MemoryError
            self.arena_room = room
        return 0

    cdef int pack(self) except -1:
        """Give up what nobody uses of the arena."""
        cdef char* packed = NULL
        cdef uint64_t used = 0, room = larger(self.arena_used - self.arena_dead, 0)
        cdef int32_t at
        cdef Entry* entry
        cdef Series* one
        if grow(<void**> &packed, room, 1):
            raise MemoryError
        for at in range(self.entry_count):
            entry = &self.entries[at]
            if entry.marks:
                memcpy(packed + used, self.arena + entry.at, entry.metric_bytes + entry.tag_bytes)
                entry.at = used
                used += entry.metric_bytes + entry.tag_bytes
        for at in range(self.series_count):
            one = &self.series[at]
            if one.settled:
                memcpy(packed + used, self.arena + one.at, one.before_bytes + one.after_bytes)
                one.at = used
                used += one.before_bytes + one.after_bytes
        free(self.arena)
        self.arena, self.arena_room, self.arena_used, self.arena_dead = packed, room, used, 0
        return 0

    cdef void unmark(self, int32_t at, uint32_t mark) noexcept:
        """Take a mark from an entry, which ends with its last."""
        cdef Entry* entry = &self.entries[at]
        entry.marks &= ~mark
        if entry.marks == 0:
            self.arena_dead += entry.metric_bytes + entry.tag_bytes
            entry.number = self.unused
            self.unused = at

    def unlink(self, bytes metric not None, bytes tags not None, int32_t number):
        """Have a text lead nowhere, if it leads to this number."""
        cdef const char* m = PyBytes_AS_STRING(metric)
        cdef const char* t = PyBytes_AS_STRING(tags)
        cdef Py_ssize_t m_bytes = PyBytes_GET_SIZE(metric), t_bytes = PyBytes_GET_SIZE(tags)
        cdef int64_t slot = self.slot_of(self.hash(m, m_bytes, t, t_bytes), m, m_bytes, t, t_bytes)
        cdef uint32_t empty, at
        if slot == NONE or self.entries[self.slots[slot].entry].number != number:
            return
        self.unmark(self.slots[slot].entry, LINKED)
        self.linked -= 1
        empty = at = <uint32_t> slot
        while True:  # those behind it move up, each as far as its hash lets it
            at = (at + 1) & self.mask
            if self.slots[at].entry == NONE:
                break
            if ((at - self.slots[at].hash) & self.mask) >= ((at - empty) & self.mask):
                self.slots[empty] = self.slots[at]
                empty = at
        self.slots[empty].entry = NONE

    def unlink_all(self):
        """Have every text lead nowhere; numbers keep what they have."""
        cdef Slot* slots = new_slots(1024)
        cdef int32_t at
        if slots == NULL:
            raise MemoryError
        free(self.slots)
        self.slots, self.mask, self.linked = slots, 1023, 0
        for at in range(self.entry_count):
            if self.entries[at].marks & LINKED:
                self.unmark(at, LINKED)

    cdef bint knows(self, int64_t number) noexcept:
        return 0 <= number < self.series_count and self.series[number].entry != NONE

    def text(self, int64_t number):
        """The first text of a number; None where it is free."""
        cdef Entry* entry
        if not self.knows(number):
            return None
        entry = &self.entries[self.series[number].entry]
        return self.text_type(
            PyBytes_FromStringAndSize(self.arena + entry.at, entry.metric_bytes),
            PyBytes_FromStringAndSize(self.arena + entry.at + entry.metric_bytes, entry.tag_bytes),
        )

    def numbers(self):
        """The numbers that have a text."""
        return [at for at in range(self.series_count) if self.series[at].entry != NONE]

    def settle(self, int64_t number, parts):
        """Give a number key parts. Raises MemoryError, and then nothing has changed."""
        cdef bytes before, after
        before, after = parts
        cdef Py_ssize_t b = PyBytes_GET_SIZE(before), a = PyBytes_GET_SIZE(after)
        assert self.knows(number) and b < 1 << 16 and a < 1 << 16
        self.make_arena_room(b + a)
        cdef Series* one = &self.series[number]
        if one.settled:
            self.arena_dead += one.before_bytes + one.after_bytes
        one.at = self.arena_used
        one.before_bytes, one.after_bytes, one.settled = <uint16_t> b, <uint16_t> a, True
        memcpy(self.arena + one.at, PyBytes_AS_STRING(before), b)
        memcpy(self.arena + one.at + b, PyBytes_AS_STRING(after), a)
        self.arena_used += b + a

    def parts(self, int64_t number):
        """Its key parts; None where it has none."""
        cdef Series* one
        if not self.knows(number) or not self.series[number].settled:
            return None
        one = &self.series[number]
        return self.parts_type(
            PyBytes_FromStringAndSize(self.arena + one.at, one.before_bytes),
            PyBytes_FromStringAndSize(self.arena + one.at + one.before_bytes, one.after_bytes),
        )

    def drop(self, int64_t number):
        """Free a number; its texts were unlinked before."""
        if not self.knows(number):
            return
        cdef Series* one = &self.series[number]
        self.unmark(one.entry, FIRST)
        if one.settled:
            self.arena_dead += one.before_bytes + one.after_bytes
        one.entry, one.settled = NONE, False


cdef Slot* new_slots(uint64_t count) noexcept:
    """Empty ones; NULL where there is no memory, or no number for them."""
    cdef Slot* slots = NULL if count > <uint64_t> 1 << 31 else <Slot*> calloc(count, sizeof(Slot))
    cdef uint64_t at
    if slots != NULL:
        for at in range(count):
            slots[at].entry = NONE
    return slots


cdef inline void place(Slot* slots, uint32_t mask, uint32_t hash, int32_t entry) noexcept nogil:
    cdef uint32_t at = hash & mask
    while slots[at].entry != NONE:
        at = (at + 1) & mask
    slots[at].hash, slots[at].entry = hash, entry


cdef inline uint64_t larger(uint64_t room, uint64_t wanted) noexcept nogil:
    """The next size of an array: half as much again, and at least what is wanted."""
    return max(room + (room >> 1), wanted, 1024)
