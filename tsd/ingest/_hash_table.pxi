# Hashes → items, a part of _rows.pyx: open addressing, whose items know how to be compared.

cdef struct Slot:
    uint32_t hash
    int32_t item  # NONE: empty

cdef struct Slots:
    Slot* at  # an item stands at its hash or behind it, with no gap between
    uint32_t mask  # there is a power of two of them
    uint32_t used


cdef int start_slots(Slots* slots) noexcept nogil:
    """Have some that are empty."""
    slots.at = new_slots(1024)
    slots.mask, slots.used = 1023, 0
    return NO_MEMORY if slots.at == NULL else TAKEN


cdef Slot* new_slots(uint64_t count) noexcept nogil:
    """Empty ones; NULL where there is no memory, or no number for them."""
    cdef Slot* slots = NULL if count > <uint64_t> 1 << 31 else <Slot*> malloc(count * sizeof(Slot))
    if slots != NULL:
        memset(slots, 0xFF, count * sizeof(Slot))  # NONE
    return slots


cdef int room_for_one(Slots* slots) noexcept nogil:
    """See that a third is empty with one more."""
    cdef Slots more
    cdef uint32_t at
    if (<uint64_t> slots.used + 1) * 3 <= (<uint64_t> slots.mask + 1) * 2:
        return TAKEN
    more.at = new_slots((<uint64_t> slots.mask + 1) * 2)
    more.mask, more.used = slots.mask * 2 + 1, 0
    if more.at == NULL:
        return NO_MEMORY
    for at in range(<uint64_t> slots.mask + 1):
        if slots.at[at].item != NONE:
            place(&more, slots.at[at].hash, slots.at[at].item)
    free(slots.at)
    slots[0] = more
    return TAKEN


cdef inline void place(Slots* slots, uint32_t hash, int32_t item) noexcept nogil:
    """Enter an item, for which there is room."""
    cdef uint32_t at = hash & slots.mask
    while slots.at[at].item != NONE:
        at = (at + 1) & slots.mask
    slots.at[at].hash, slots.at[at].item = hash, item
    slots.used += 1


cdef void remove(Slots* slots, uint32_t empty) noexcept nogil:
    """Take an item out: those behind it move up, each as far as its hash lets it."""
    cdef uint32_t at = empty
    slots.used -= 1
    while True:
        at = (at + 1) & slots.mask
        if slots.at[at].item == NONE:
            break
        if ((at - slots.at[at].hash) & slots.mask) >= ((at - empty) & slots.mask):
            slots.at[empty] = slots.at[at]
            empty = at
    slots.at[empty].item = NONE
