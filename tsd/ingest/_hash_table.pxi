# Hashes → items, a part of _parser.pyx: open addressing. The caller compares the items.

cdef struct Slot:
    uint32_t hash
    int32_t item  # NONE: empty

cdef struct Slots:
    Slot* at  # an item is at its hash or behind it, with no gap between
    uint32_t mask  # there is a power of two of them
    uint32_t used


cdef int start_slots(Slots* slots) noexcept nogil:
    """Allocate empty slots."""
    slots.at = new_slots(1024)
    slots.mask, slots.used = 1023, 0
    return NO_MEMORY if slots.at == NULL else DONE


cdef Slot* new_slots(uint64_t count) noexcept nogil:
    """Return empty slots, or NULL if there is no memory or there would be too many."""
    cdef Slot* slots = NULL if count > <uint64_t> 1 << 31 else <Slot*> tsd_kept(count * sizeof(Slot))
    if slots != NULL:
        memset(slots, 0xFF, count * sizeof(Slot))  # NONE
    return slots


cdef int room_for_one(Slots* slots) noexcept nogil:
    """Grow the slots if less than a third would be empty with one more item."""
    cdef Slots more
    cdef uint32_t at
    if (<uint64_t> slots.used + 1) * 3 <= (<uint64_t> slots.mask + 1) * 2:
        return DONE
    more.at = new_slots((<uint64_t> slots.mask + 1) * 2)
    more.mask, more.used = slots.mask * 2 + 1, 0
    if more.at == NULL:
        return NO_MEMORY
    for at in range(<uint64_t> slots.mask + 1):
        if slots.at[at].item != NONE:
            place(&more, slots.at[at].hash, slots.at[at].item)
    free(slots.at)
    slots[0] = more
    return DONE


cdef inline void place(Slots* slots, uint32_t hash, int32_t item) noexcept nogil:
    """Insert an item, for which there is room."""
    cdef uint32_t at = hash & slots.mask
    while slots.at[at].item != NONE:
        at = (at + 1) & slots.mask
    slots.at[at].hash, slots.at[at].item = hash, item
    slots.used += 1


cdef void remove(Slots* slots, uint32_t empty) noexcept nogil:
    """Remove an item. Those behind it move up, each as far as its hash allows."""
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
