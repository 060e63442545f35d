# Decodes a packed cell, as tsd.codec.packing.cell does. Included by _packing.pyx.

cdef inline uint8_t* put_number(uint8_t* to, int flags, uint64_t bits) noexcept nogil:
    """Write the low bytes of a number, as many as the flags say. Up to eight bytes are written."""
    bits = SWAP64(bits << 8 * (7 - (flags & 7)))
    memcpy(to, &bits, 8)
    return to + (flags & 7) + 1


cdef Py_ssize_t put_integers(uint8_t* to, Scratch* room, Cell* cell) noexcept nogil:
    """Write the flags and bytes of integers. Return the number of bytes, or -1 if an integer breaks the rule."""
    cdef uint8_t* start = to
    cdef int flags
    cdef Py_ssize_t i
    for i in range(cell.count):
        flags = shortest_flags(room.numbers[i])
        if cell.rule < SHORTEST:
            if flags > cell.rule:
                return -1
            flags = cell.rule
        room.flags[i] = flags
        to = put_number(to, flags, <uint64_t> room.numbers[i])
    return to - start


cdef inline double as_double(int64_t number, int kind, double power) noexcept nogil:
    cdef double found
    if kind == DECIMAL:
        return <double> number / power
    number ^= number >> 63 & <int64_t> 0x7FFFFFFFFFFFFFFFLL
    memcpy(&found, &number, 8)
    return found


cdef Py_ssize_t put_floats(uint8_t* to, Scratch* room, Cell* cell, int kind, int rule) noexcept nogil:
    """Write the flags and bytes of numbers of which some are floats. Return the number of bytes. `kind` and `rule` are
    the cell's, constants where inlined."""
    cdef uint8_t* start = to
    cdef double power = POWERS[cell.decimals], number
    cdef float single
    cdef uint64_t long_word
    cdef uint32_t word
    cdef int flags
    cdef Py_ssize_t i
    for i in range(cell.count):
        number = as_double(room.numbers[i], kind, power)
        single = <float> number
        memcpy(&long_word, &number, 8)
        memcpy(&word, &single, 4)
        flags = rule
        if rule >= SHORTEST:
            flags = SINGLE_FLAGS if <double> single == number else DOUBLE_FLAGS
            if rule == WHOLE and is_whole(number):
                long_word = <uint64_t> <int64_t> number
                flags = shortest_flags(<int64_t> number)
        room.flags[i] = flags
        to = put_number(to, flags, word if flags == SINGLE_FLAGS else long_word)
    return to - start


cdef Py_ssize_t put_singles(uint8_t* to, Scratch* room, Cell* cell) noexcept nogil:
    """Write the flags and bytes of singles, given by their bits. Return the number of bytes."""
    cdef uint8_t* start = to
    cdef int64_t bits
    cdef Py_ssize_t i
    for i in range(cell.count):
        bits = room.numbers[i]
        room.flags[i] = SINGLE_FLAGS
        to = put_number(to, SINGLE_FLAGS, <uint64_t> (bits ^ (bits >> 63 & <int64_t> 0x7FFFFFFF)))
    return to - start


cdef Py_ssize_t put_values(uint8_t* to, Scratch* room, Cell* cell) noexcept nogil:
    """Write the flags and the value of a cell. Return the size of the value in bytes, or -1 if its numbers break the
    rule. There is room for eight bytes a number and eight more."""
    cdef Py_ssize_t size
    if cell.kind == INTEGER:
        size = put_integers(to, room, cell)
    elif cell.kind == SINGLE:
        size = put_singles(to, room, cell)
    elif cell.kind == DECIMAL and cell.rule == SHORTEST:
        size = put_floats(to, room, cell, DECIMAL, SHORTEST)
    else:
        size = put_floats(to, room, cell, cell.kind, cell.rule)
    if size >= 0 and cell.tail:
        to[size] = cell.tail - 1
        size += 1
    return size


cdef int write_qualifier(uint8_t* to, Scratch* room, Cell* cell) noexcept nogil:
    """Return whether a time is outside of an hour's row."""
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
    if take_varint(source, &count) or count < LEAST_POINTS or count > MOST_POINTS or (count == 1 and cell.tail):
        return -1
    cell.count = count
    return 0
