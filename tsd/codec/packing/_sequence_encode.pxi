# Encodes a sequence, as tsd.codec.packing.sequence does. Included by _packing.pyx.

cdef inline uint64_t zigzag(int64_t number) noexcept nogil:
    return (<uint64_t> number << 1) ^ <uint64_t> (number >> 63)


cdef inline int64_t unzigzag(uint64_t number) noexcept nogil:
    return <int64_t> (number >> 1) ^ -<int64_t> (number & 1)


cdef inline int64_t rounded(int64_t number, int64_t by) noexcept nogil:
    """Return the quotient by a small positive number, rounded to the nearest integer, halves upwards."""
    cdef int64_t result = number / by, rest = number % by
    if rest < 0:
        rest += by
        result -= 1
    return result + (2 * rest >= by)


cdef inline uint8_t* put_varint(uint8_t* to, uint64_t number) noexcept nogil:
    while number > 127:
        to[0] = <uint8_t> (number & 127 | 128)
        to += 1
        number >>= 7
    to[0] = <uint8_t> number
    return to + 1


cdef inline uint8_t* put_bits(uint8_t* to, const uint64_t* numbers, Py_ssize_t count, int width) noexcept nogil:
    """Write numbers of at most `width` bits, from the lowest bit of the first byte on."""
    cdef uint64_t held = 0, number
    cdef int have = 0
    cdef uint64_t mask = (<uint64_t> 1 << width) - 1 if width < 64 else <uint64_t> -1
    cdef Py_ssize_t i
    if width == 0:
        return to
    for i in range(count):
        number = numbers[i] & mask
        held |= number << have
        if have + width >= 64:
            memcpy(to, &held, 8)
            to += 8
            held = number >> (64 - have) if have else 0
            have += width - 64
        else:
            have += width
    memcpy(to, &held, 8)  # there is room for it
    return to + (have + 7) / 8


cdef Py_ssize_t take_rests(const int64_t* of, Py_ssize_t count, int order, int64_t step, int64_t* to) noexcept nogil:
    """Compute the remainders of an order. Return their number."""
    cdef Py_ssize_t i
    cdef const uint64_t* from_ = <const uint64_t*> of
    cdef uint64_t* out = <uint64_t*> to
    if order == 0:
        memcpy(to, of, count * 8)
        return count
    if order == 1:
        for i in range(count - 1):
            out[i] = from_[i + 1] - from_[i]
        return count - 1
    if order == 2:
        for i in range(count - 2):
            out[i] = from_[i + 2] - 2 * from_[i + 1] + from_[i]
        return count - 2
    for i in range(count - 1):
        out[i] = from_[i + 1] - from_[0] - <uint64_t> step * <uint64_t> (i + 1)
    return count - 1


cdef int64_t step_of(const int64_t* of, Py_ssize_t count) noexcept nogil:
    cdef int64_t whole = <int64_t> (<uint64_t> of[count - 1] - <uint64_t> of[0])
    if whole < 0 or whole >= <int64_t> 1 << 62:
        return 0
    return (whole + (count - 1) / 2) / (count - 1)


cdef int64_t reference(const int64_t* of, Py_ssize_t count, int order) noexcept nogil:
    """Return the approximate centre of an order's remainders."""
    cdef uint64_t total = 0
    cdef Py_ssize_t i
    if order == 0:
        for i in range(count):
            total += <uint64_t> of[i] - <uint64_t> of[0]
        return <int64_t> (<uint64_t> of[0] + <uint64_t> rounded(<int64_t> total, count))
    if order == 1:
        return rounded(<int64_t> (<uint64_t> of[count - 1] - <uint64_t> of[0]), count - 1)
    return 0


cdef uint64_t cost_of(const int64_t* rests, Py_ssize_t count, int64_t around) noexcept nogil:
    """Estimate the bits of remainders from a sample."""
    cdef Py_ssize_t i = 0, stride = 1 + count // 128
    cdef uint64_t bits = 0, number
    cdef int64_t off
    while i < count:
        off = <int64_t> (<uint64_t> rests[i] - <uint64_t> around)
        number = <uint64_t> off if off >= 0 else 0 - <uint64_t> off
        if number > <uint64_t> 1 << 48:
            number = <uint64_t> 1 << 48
        bits += BITS(number)
        i += stride
    return bits


cdef uint64_t quotients(const uint64_t* numbers, Py_ssize_t count, int k) noexcept nogil:
    cdef uint64_t total = 0
    cdef Py_ssize_t i
    for i in range(count):
        total += numbers[i] >> k
    return total


cdef int best_k(const uint64_t* numbers, Py_ssize_t count, uint64_t* total) noexcept nogil:
    """Find the parameter by which numbers take the fewest bits, and the sum of their quotients."""
    cdef uint64_t whole = quotients(numbers, count, 0), found, cost, least = 0
    cdef int k, best = -1, around = BITS(whole // count) if count else 0
    total[0] = 0
    for k in range(max(around - 2, 0), around + 1):
        found = whole if k == 0 else quotients(numbers, count, k)
        cost = found + <uint64_t> count * (k + 1)
        if best < 0 or cost < least:
            best, least, total[0] = k, cost, found
    return best


cdef inline uint64_t rice_bytes(Py_ssize_t count, int k, uint64_t total) noexcept nogil:
    return (count + total + 7) // 8 + (<uint64_t> count * k + 7) // 8


cdef uint8_t* put_rice(uint8_t* to, const uint64_t* numbers, Py_ssize_t count, int k, uint64_t total) noexcept nogil:
    cdef uint64_t at = 0, size = (count + total + 7) // 8
    cdef Py_ssize_t i
    to[0] = k
    to = put_varint(to + 1, total)
    memset(to, 0, size)
    for i in range(count):
        at += numbers[i] >> k
        to[at >> 3] |= <uint8_t> (1 << (at & 7))
        at += 1
    return put_bits(to + size, numbers, count, k)


cdef int majority(const int64_t* rests, Py_ssize_t count, int64_t* value) noexcept nogil:
    """Return the number of remainders that differ from the most frequent one, or -1 if they are more than a third."""
    cdef Py_ssize_t i, alike = 0, others = 0
    cdef int64_t held = 0, votes = 0
    for i in range(count - 1):
        alike += rests[i] == rests[i + 1]
    if 3 * alike + 3 < count:
        return -1
    for i in range(count):
        if votes == 0:
            held, votes = rests[i], 1
        elif rests[i] == held:
            votes += 1
        else:
            votes -= 1
    for i in range(count):
        others += rests[i] != held
    value[0] = held
    return <int> others if 3 * others <= count else -1


cdef uint8_t* put_sequence(
    uint8_t* to, Scratch* room, const int64_t* of, Py_ssize_t count, const int* orders, int choices
) noexcept nogil:
    """Write a sequence of one number or more in the order that takes the fewest bytes."""
    cdef int order = -1, only = 0, i, k, k_mean, k_gaps = 0, k_steps = 0, coder = FIXED, others
    cdef int64_t step = 0, least, most, mean, common = 0
    cdef uint64_t cost, lowest = 0, span, total = 0, total_mean = 0, total_gaps = 0, total_steps = 0, size, best
    cdef Py_ssize_t m = 0, at, last, z = 0
    cdef int64_t* rests = room.rests
    if count < FEW:
        orders, choices = &only, 1
    else:
        step = step_of(of, count)
    for i in range(choices):
        m = take_rests(of, count, orders[i], step, rests)
        cost = cost_of(rests, m, reference(of, count, orders[i]))
        if order < 0 or cost < lowest:
            order, lowest = orders[i], cost
    if order != orders[choices - 1]:
        m = take_rests(of, count, order, step, rests)
    least = most = rests[0]
    for at in range(1, m):
        least = min(least, rests[at])
        most = max(most, rests[at])
    span = <uint64_t> most - <uint64_t> least
    k = BITS(span)
    best = (<uint64_t> m * k + 7) // 8
    k_mean = others = -1
    mean = least
    if span == 0:  # times at an even pace: to tell the least is all there is to it
        pass
    elif span < WIDE:
        total = 0
        for at in range(m):
            room.some[at] = <uint64_t> rests[at] - <uint64_t> least
            total += room.some[at]
        mean = least + <int64_t> ((total + m // 2) // m)
        k_mean = best_k(room.some, m, &total)
        size = rice_bytes(m, k_mean, total)
        if size < best:
            coder, k, best = FROM_LEAST, k_mean, size
        for at in range(m):
            room.more[at] = zigzag(rests[at] - mean)
        k_mean = best_k(room.more, m, &total_mean)
        size = rice_bytes(m, k_mean, total_mean)
        if size < best:
            coder, k, best, total = FROM_MEAN, k_mean, size, total_mean
        others = majority(rests, m, &common)
    else:
        for at in range(m):
            room.some[at] = <uint64_t> rests[at] - <uint64_t> least
    if others >= 0:
        z = 0
        last = -1
        for at in range(m):
            if rests[at] != common:
                room.gaps[z] = at - last - 1
                room.steps[z] = zigzag(rests[at] - common) - 1
                z += 1
                last = at
        k_gaps = best_k(room.gaps, z, &total_gaps)
        k_steps = best_k(room.steps, z, &total_steps)
        size = 3 + rice_bytes(z, k_gaps, total_gaps) + rice_bytes(z, k_steps, total_steps)
        if size < best:
            coder = SPARSE
    to[0] = order | coder << 2
    to += 1
    if order:
        to = put_varint(to, zigzag(of[0]))
    if order == 2:
        to = put_varint(to, zigzag(<int64_t> (<uint64_t> of[1] - <uint64_t> of[0])))
    elif order == 3:
        to = put_varint(to, zigzag(step))
    to = put_varint(to, zigzag(common if coder == SPARSE else mean if coder == FROM_MEAN else least))
    if coder == FIXED:
        to[0] = k
        return put_bits(to + 1, room.some, m, k)
    if coder == FROM_LEAST:
        return put_rice(to, room.some, m, k, total)
    if coder == FROM_MEAN:
        return put_rice(to, room.more, m, k, total)
    to = put_varint(to, z)
    to = put_rice(to, room.gaps, z, k_gaps, total_gaps)
    return put_rice(to, room.steps, z, k_steps, total_steps)
