# A packed form → its cell, as tsd.codec.packed has it. Included by _packed.pyx.

cdef Py_ssize_t to_flags(Scratch* room, Cell* cell) noexcept nogil:
    """Numbers from the integers, and flags by the rule; how many bytes the numbers take, -1 where they break it."""
    cdef Py_ssize_t i, size = 0
    cdef double power = POWERS[cell.decimals], number
    cdef int64_t bits
    cdef int flags
    if cell.kind == INTEGER:
        for i in range(cell.count):
            flags = shortest_flags(room.numbers[i])
            if cell.rule < SHORTEST:
                if flags > cell.rule:
                    return -1
                flags = cell.rule
            room.flags[i] = flags
            size += flags + 1
        return size
    if cell.kind == DECIMAL:
        for i in range(cell.count):
            room.doubles[i] = <double> room.numbers[i] / power
    elif cell.kind == DOUBLE:
        for i in range(cell.count):
            bits = room.numbers[i]
            bits ^= bits >> 63 & <int64_t> 0x7FFFFFFFFFFFFFFFLL
            room.numbers[i] = bits
            memcpy(room.doubles + i, &bits, 8)
    else:
        for i in range(cell.count):
            bits = room.numbers[i]
            room.numbers[i] = bits ^ (bits >> 63 & <int64_t> 0x7FFFFFFF)
    if cell.rule < SHORTEST:
        memset(room.flags, cell.rule, cell.count)
        return cell.count * ((cell.rule & 7) + 1)
    for i in range(cell.count):
        number = room.doubles[i]
        if cell.rule == WHOLE and is_whole(number):
            flags = shortest_flags(<int64_t> number)
        else:
            flags = SINGLE_FLAGS if <double> <float> number == number else DOUBLE_FLAGS
        room.flags[i] = flags
        size += (flags & 7) + 1
    return size


cdef int write_qualifier(uint8_t* to, Scratch* room, Cell* cell) noexcept nogil:
    """Whether a time is none of an hour's row."""
    cdef Py_ssize_t i
    cdef uint32_t word, high = 0
    cdef uint64_t beyond = 0
    if cell.in_ms:
        for i in range(cell.count):
            beyond |= <uint64_t> room.times[i] >> 22
            word = SWAP32(<uint32_t> 0xF0000000UL | <uint32_t> room.times[i] << 6 | room.flags[i])
            memcpy(to + 4 * i, &word, 4)
        return beyond != 0
    for i in range(cell.count):
        beyond |= <uint64_t> room.times[i] >> 12
        word = SWAP16((<uint32_t> room.times[i] << 4 | room.flags[i]) & 0xFFFF)
        memcpy(to + 2 * i, &word, 2)
        high = max(high, <uint32_t> room.times[i])
    return beyond != 0 or high >= 0xF00


cdef void write_values(uint8_t* to, Scratch* room, Cell* cell) noexcept nogil:
    cdef Py_ssize_t i
    cdef int flags
    cdef uint64_t long_word
    cdef uint32_t word
    cdef float single
    cdef int64_t whole
    for i in range(cell.count):
        flags = room.flags[i]
        if flags == DOUBLE_FLAGS:
            if cell.kind == DOUBLE:
                long_word = <uint64_t> room.numbers[i]
            else:
                memcpy(&long_word, room.doubles + i, 8)
            long_word = SWAP64(long_word)
            memcpy(to, &long_word, 8)
            to += 8
        elif flags == SINGLE_FLAGS:
            if cell.kind == SINGLE:
                word = <uint32_t> room.numbers[i]
            else:
                single = <float> room.doubles[i]
                memcpy(&word, &single, 4)
            word = SWAP32(word)
            memcpy(to, &word, 4)
            to += 4
        else:
            whole = room.numbers[i] if cell.kind == INTEGER else <int64_t> room.doubles[i]
            long_word = SWAP64(<uint64_t> whole)
            memcpy(to, <uint8_t*> &long_word + 7 - flags, flags + 1)
            to += flags + 1
    if cell.tail:
        to[0] = cell.tail - 1


cdef int read_head(Source* source, Cell* cell) noexcept nogil:
    cdef uint64_t count
    cdef int what
    if source.end - source.at < 5 or source.at[0] != FORM:
        return -1
    what = source.at[1]
    cell.in_ms, cell.tail, cell.kind = what & 1, what >> 1 & 3, what >> 3
    cell.rule, cell.decimals = source.at[2], source.at[3]
    source.at += 4
    if cell.tail > 2 or cell.kind > SINGLE or cell.decimals > MOST_DECIMALS or cell.rule > WHOLE:
        return -1
    if cell.rule < SHORTEST and not 0x888B >> cell.rule & 1:
        return -1
    if cell.kind == INTEGER and cell.rule != SHORTEST and cell.rule > 7:
        return -1
    if cell.kind != INTEGER and cell.rule < SINGLE_FLAGS:
        return -1
    if cell.kind == SINGLE and cell.rule != SINGLE_FLAGS or cell.kind == DOUBLE and cell.rule == SINGLE_FLAGS:
        return -1
    if take_varint(source, &count) or count < LEAST_POINTS or count > MOST_POINTS:
        return -1
    cell.count = count
    return 0
