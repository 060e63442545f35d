# Encodes a cell, as tsd.codec.packing.cell does. Included by _packing.pyx.

cdef inline int shortest_flags(int64_t number) noexcept nogil:
    if number == <signed char> number:
        return 0
    if number == <short> number:
        return 1
    return 3 if number == <int32_t> number else 7


cdef inline bint is_whole(double number) noexcept nogil:
    return fabs(number) < BEYOND and <double> <int64_t> number == number


cdef int read_times(const uint8_t* qualifier, Py_ssize_t size, Scratch* room, Cell* cell) noexcept nogil:
    """Read times and flags. Return whether all qualifiers have one width and no reserved bits."""
    cdef Py_ssize_t i
    cdef const uint8_t* at = qualifier
    cdef uint32_t word
    if cell.in_ms:
        for i in range(cell.count):
            memcpy(&word, at, 4)
            word = SWAP32(word)
            if word >> 28 != 15 or word & 0x30:
                return -1
            room.times[i] = word >> 6 & 0x3FFFFF
            room.flags[i] = word & 15
            at += 4
        return 0
    for i in range(cell.count):
        if at[0] >= 0xF0:
            return -1
        room.times[i] = <int64_t> at[0] << 4 | at[1] >> 4
        room.flags[i] = at[1] & 15
        at += 2
    return 0


cdef int read_values(const uint8_t* value, Py_ssize_t size, Scratch* room, Cell* cell) noexcept nogil:
    """Read numbers as integers and doubles, and find the rule of their flags. Return whether there is one."""
    cdef Py_ssize_t i, at = 0
    cdef int seen = 0, flags
    cdef bint shortest = True, wholes = True
    cdef double number
    cdef float single
    cdef int64_t whole
    cdef uint64_t long_word
    cdef uint32_t word
    for i in range(cell.count):
        at += (room.flags[i] & 7) + 1
        seen |= 1 << room.flags[i]
    if seen & ~0x888B or size < at or size > at + (cell.count > 1) or (size > at and value[at] > 1):
        return -1
    cell.tail = 0 if size == at else value[at] + 1
    for i in range(cell.count):
        flags = room.flags[i]
        if flags == DOUBLE_FLAGS:
            memcpy(&long_word, value, 8)
            long_word = SWAP64(long_word)
            memcpy(&number, &long_word, 8)
            room.numbers[i] = <int64_t> long_word
            room.doubles[i] = number
            single = <float> number
            shortest &= not (<double> single == number)
            wholes &= not is_whole(number)
            value += 8
        elif flags == SINGLE_FLAGS:
            memcpy(&word, value, 4)
            word = SWAP32(word)
            memcpy(&single, &word, 4)
            number = single
            room.numbers[i] = <int32_t> word
            room.doubles[i] = number
            shortest &= number == number
            wholes &= not is_whole(number)
            value += 4
        else:
            if flags == 0:
                whole = <signed char> value[0]
            elif flags == 1:
                whole = <short> (<uint32_t> value[0] << 8 | value[1])
            elif flags == 3:
                memcpy(&word, value, 4)
                whole = <int32_t> SWAP32(word)
            else:
                memcpy(&long_word, value, 8)
                whole = <int64_t> SWAP64(long_word)
            room.numbers[i] = whole
            room.doubles[i] = <double> whole
            shortest &= shortest_flags(whole) == flags
            wholes &= whole < <int64_t> 1 << 53 and whole > -(<int64_t> 1 << 53)
            value += flags + 1
    if seen & (seen - 1) == 0:
        cell.rule = room.flags[0]
    elif not shortest:
        return -1
    elif seen & 0x8800 == 0 or seen & 0x8B == 0:
        cell.rule = SHORTEST
    elif wholes:
        cell.rule = WHOLE
    else:
        return -1
    cell.kind = INTEGER if seen & 0x8800 == 0 else DECIMAL
    return 0


cdef inline bint try_decimal(double number, double power, bint single, int64_t* found) noexcept nogil:
    """Return whether a number is exactly an integer divided by a power of ten."""
    cdef double scaled = number * power, back
    cdef float short_back, short_number
    if not fabs(scaled) < BEYOND:
        return False
    found[0] = NEAREST(scaled)
    back = <double> found[0] / power
    if single:
        short_back, short_number = <float> back, <float> number
        return memcmp(&short_back, &short_number, 4) == 0
    return memcmp(&back, &number, 8) == 0


cdef bint to_decimals(Scratch* room, Cell* cell) noexcept nogil:
    """Set the integers to the numbers times the least power of ten that is exact. Return whether there is one."""
    cdef bint single = cell.rule == SINGLE_FLAGS
    cdef int decimals = 0
    cdef Py_ssize_t i = 0, since = 0
    cdef int64_t found = 0
    while i < cell.count:
        if try_decimal(room.doubles[i], POWERS[decimals], single, &found):
            room.rests[i] = found
            i += 1
            continue
        while True:
            decimals += 1
            if decimals > MOST_DECIMALS:
                return False
            if try_decimal(room.doubles[i], POWERS[decimals], single, &found):
                break
        since = i
    for i in range(since):
        if not try_decimal(room.doubles[i], POWERS[decimals], single, &found):
            return False
        room.rests[i] = found
    memcpy(room.numbers, room.rests, cell.count * 8)
    cell.decimals = decimals
    return True


cdef void to_bits(Scratch* room, Cell* cell) noexcept nogil:
    """Set the integers to the numbers' bits, which sort like the numbers."""
    cdef Py_ssize_t i
    cdef int64_t bits
    cdef double number
    if cell.rule == SINGLE_FLAGS:
        cell.kind = SINGLE
        for i in range(cell.count):
            bits = room.numbers[i]
            room.numbers[i] = bits ^ (bits >> 63 & <int64_t> 0x7FFFFFFF)
        return
    cell.kind = DOUBLE
    for i in range(cell.count):
        if cell.rule == DOUBLE_FLAGS:
            bits = room.numbers[i]
        else:
            number = room.doubles[i]
            memcpy(&bits, &number, 8)
        room.numbers[i] = bits ^ (bits >> 63 & <int64_t> 0x7FFFFFFFFFFFFFFFLL)


cdef Py_ssize_t pack_into(
    uint8_t* to, const uint8_t* qualifier, Py_ssize_t size, const uint8_t* value, Py_ssize_t value_size,
    Scratch* room, Cell* cell,
) noexcept nogil:
    """Return the size of a packed cell in bytes, or -1 if it has no packed form."""
    cdef int[2] of_times
    cdef int[3] of_numbers
    cdef uint8_t* start = to
    of_times[0], of_times[1] = 1, 3
    of_numbers[0], of_numbers[1], of_numbers[2] = 0, 1, 2
    if read_times(qualifier, size, room, cell) or read_values(value, value_size, room, cell):
        return -1
    cell.decimals = 0
    if cell.kind != INTEGER and not to_decimals(room, cell):
        to_bits(room, cell)
    to[0] = FORM
    to[1] = cell.in_ms | cell.tail << 1 | cell.kind << 3
    to[2] = cell.rule
    to[3] = cell.decimals
    to = put_varint(to + 4, cell.count)
    to = put_sequence(to, room, room.times, cell.count, of_times, 2)
    to = put_sequence(to, room, room.numbers, cell.count, of_numbers, 3)
    return to - start
