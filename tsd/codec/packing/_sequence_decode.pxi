# Decodes a sequence, as tsd.codec.packing.sequence does. Included by _packing.pyx.

cdef struct Source:
    const uint8_t* at
    const uint8_t* end


cdef inline int take_varint(Source* source, uint64_t* number) noexcept nogil:
    cdef int shift = 0
    cdef uint8_t byte
    number[0] = 0
    while source.at < source.end and shift < 64:
        byte = source.at[0]
        source.at += 1
        number[0] |= <uint64_t> (byte & 127) << shift
        if byte < 128:
            return 0
        shift += 7
    return -1


cdef inline uint64_t word_at(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Return the next eight bytes, or those before the end."""
    cdef uint64_t word = 0
    if end - at >= 8:
        memcpy(&word, at, 8)
    elif end > at:
        memcpy(&word, at, end - at)
    return word


cdef int take_bits(Source* source, uint64_t* numbers, Py_ssize_t count, int width, bint add) noexcept nogil:
    """Read numbers of `width` bits. With `add` they are the low bits of the present numbers."""
    cdef uint64_t bit = 0, number, mask = (<uint64_t> 1 << width) - 1 if width < 64 else <uint64_t> -1
    cdef const uint8_t* at
    cdef Py_ssize_t i, near = 0, size = (count * width + 7) // 8
    if width > 64 or source.end - source.at < size:
        return -1
    if not add and not width:
        memset(numbers, 0, count * 8)
    if 0 < width <= 57 and source.end - source.at >= 8:  # up to `near` eight bytes are there, and hold a number whole
        near = min(count, (source.end - source.at - 8) * 8 // width)
        at = source.at
        if add:
            for i in range(near):
                memcpy(&number, at + (bit >> 3), 8)
                numbers[i] = numbers[i] << width | number >> (bit & 7) & mask
                bit += width
        else:
            for i in range(near):
                memcpy(&number, at + (bit >> 3), 8)
                numbers[i] = number >> (bit & 7) & mask
                bit += width
    if width:
        for i in range(near, count):
            at = source.at + (bit >> 3)
            number = word_at(at, source.end) >> (bit & 7)
            if width + (bit & 7) > 64:
                number |= <uint64_t> at[8] << (64 - (bit & 7))
            numbers[i] = numbers[i] << (width & 63) | number & mask if add else number & mask
            bit += width
    source.at += size
    return 0


cdef int take_rice(Source* source, uint64_t* numbers, Py_ssize_t count) noexcept nogil:
    cdef uint64_t total, bits, at = 0, word, quotient = 0
    cdef int zeros, used = 0
    cdef Py_ssize_t done = 0
    cdef const uint8_t* end
    cdef int k
    if source.at >= source.end or source.at[0] > 47:
        return -1
    k = source.at[0]
    source.at += 1
    if take_varint(source, &total) or total > <uint64_t> 1 << 32 or (total and not count):
        return -1
    bits = total + count
    if (bits + 7) // 8 > <uint64_t> (source.end - source.at):
        return -1
    end = source.at + (bits + 7) // 8
    while done < count:
        word = word_at(source.at + at, end)
        if at * 8 >= bits:
            return -1
        if word == 0:
            quotient += 64
            at += 8
            continue
        used = 0
        while word and done < count:
            zeros = ZEROS(word)
            numbers[done] = quotient + zeros
            done += 1
            quotient = 0
            used += zeros + 1
            word = word >> zeros >> 1
        quotient = 64 - used
        at += 8
    if count and (at - 8) * 8 + used != bits:
        return -1
    source.at = end
    return take_bits(source, numbers, count, k, True)


cdef int take_rests_back(Source* source, Scratch* room, int coder, int64_t* rests, Py_ssize_t m) noexcept nogil:
    cdef uint64_t number, z, base
    cdef int width
    cdef Py_ssize_t i, at = -1
    cdef uint64_t* out = <uint64_t*> rests
    if take_varint(source, &number):
        return -1
    base = <uint64_t> unzigzag(number)
    if coder == FIXED:
        if source.at >= source.end:
            return -1
        width = source.at[0]
        source.at += 1
        if take_bits(source, room.some, m, width, False):
            return -1
        for i in range(m):
            out[i] = base + room.some[i]
        return 0
    if coder != SPARSE:
        if take_rice(source, room.some, m):
            return -1
        if coder == FROM_LEAST:
            for i in range(m):
                out[i] = base + room.some[i]
        else:
            for i in range(m):
                out[i] = base + <uint64_t> unzigzag(room.some[i])
        return 0
    if take_varint(source, &z) or z > <uint64_t> m:
        return -1
    if take_rice(source, room.gaps, z) or take_rice(source, room.steps, z):
        return -1
    for i in range(m):
        out[i] = base
    for i in range(<Py_ssize_t> z):
        if room.gaps[i] >= <uint64_t> (m - at - 1):
            return -1
        at += 1 + room.gaps[i]
        out[at] = base + <uint64_t> unzigzag(room.steps[i] + 1)
    return 0


cdef int take_sequence(Source* source, Scratch* room, int64_t* numbers, Py_ssize_t count) noexcept nogil:
    """Read a sequence of `count` numbers, one or more. Return whether its bytes are invalid."""
    cdef int order, coder
    cdef uint64_t first = 0, step = 0, value
    cdef uint64_t* out = <uint64_t*> numbers
    cdef Py_ssize_t i
    if source.at >= source.end or source.at[0] > 15:
        return -1
    order, coder = source.at[0] & 3, source.at[0] >> 2
    source.at += 1
    if order == 2 and count == 1:
        return -1
    if order == 0:
        return take_rests_back(source, room, coder, numbers, count)
    if take_varint(source, &value):
        return -1
    first = <uint64_t> unzigzag(value)
    if order > 1:
        if take_varint(source, &value):
            return -1
        step = <uint64_t> unzigzag(value)
    out[0] = first
    if order == 2:
        if take_rests_back(source, room, coder, numbers + 2, count - 2):
            return -1
        out[1] = first = first + step
        for i in range(2, count):
            step += out[i]
            first += step
            out[i] = first
        return 0
    if take_rests_back(source, room, coder, numbers + 1, count - 1):
        return -1
    if order == 1:
        for i in range(1, count):
            first += out[i]
            out[i] = first
    else:
        for i in range(1, count):
            out[i] += first + step * <uint64_t> i
    return 0
