# Writes times and values as JSON. Included by _loops.pyx.

cdef extern from *:
    """
    static const uint64_t decimal_powers[20] = {
        1u, 10u, 100u, 1000u, 10000u, 100000u, 1000000u, 10000000u, 100000000u, 1000000000u, 10000000000u,
        100000000000u, 1000000000000u, 10000000000000u, 100000000000000u, 1000000000000000u, 10000000000000000u,
        100000000000000000u, 1000000000000000000u, 10000000000000000000u,
    };
    static const char digit_pairs[201] =
        "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849"
        "5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";
    /* The fewest digits of a double from 1e-3 to below 1e7 that has 15 of them or more, and how many are decimals; -1
       if the nearest number with some digits is not clear. The double is m / 2^k: all numbers are exact. */
    static int long_decimals(double size, int64_t *digits) {
    #ifdef __SIZEOF_INT128__
        uint64_t m;
        memcpy(&m, &size, 8);
        const int k = 1075 - (int) (m >> 52);
        m = (m & (((uint64_t) 1 << 52) - 1)) | (uint64_t) 1 << 52;
        if (m == (uint64_t) 1 << 52) return -1; /* the next lower double is nearer */
        int decimals = 17; /* with 15 digits */
        for (double below = 1e-2; below <= size; below *= 10) decimals--;
        for (const int most = decimals + 2; decimals <= most; decimals++) {
            const uint64_t power = decimal_powers[decimals], one = (uint64_t) 1 << k;
            const unsigned __int128 exact = (unsigned __int128) m * power;
            uint64_t whole = (uint64_t) (exact >> k), rest = (uint64_t) exact & (one - 1);
            if (rest == one >> 1) return -1;
            if (rest > one >> 1) {
                whole++;
                rest = one - rest;
            }
            if (2 * rest == power) return -1;
            if (2 * rest < power) { /* nearer to this double than to another one */
                *digits = (int64_t) whole;
                return decimals;
            }
        }
    #endif
        return -1;
    }
    static inline int digits_of(uint64_t number) {
        const int bits = 64 - __builtin_clzll(number | 1), least = bits * 1233 >> 12; /* log10(2) is 1233 / 4096 */
        return least + (number >= decimal_powers[least]);
    }
    static inline int64_t nearest(double size) {
        const double added = 6755399441055744.0; /* 1.5 * 2^52: the sum has no binary decimals */
        return (int64_t) (size + added - added);
    }
    """
    const uint64_t[20] decimal_powers
    const char* digit_pairs
    int64_t nearest(double size) nogil  # ties to even, below 2^51
    int digits_of(uint64_t number) nogil  # 0 for 0
    int long_decimals(double size, int64_t* digits) nogil

cdef int64_t EXPONENT = <int64_t> 0x7FF << 52  # of infinite values and NaN

cdef enum:
    KEY_BYTES = 20  # of any 64-bit integer, with its sign
    NUMBER_BYTES = 26  # of a number with up to 17 digits, with sign, point and zeros
    OTHER = -1  # decimals of a double that is written elsewhere
    INTEGER = -2  # decimals of an integer
    LEFT_OUT = -3  # decimals of a point that is not written
    MOST_DECIMALS = 15
    SEPARATOR_BYTES = 4  # most bytes of a separator
    SLACK = 64  # bytes that may be written after the text

cdef double[MOST_DECIMALS + 1] POWERS = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
]


cdef int decimals_of(double value, int64_t* digits) noexcept nogil:
    """Return how many decimals a double has, at least 1, and its digits as an integer; OTHER if they are not found
    here, or Java writes it with an exponent.

    Any two numbers of 15 digits are different doubles. So digits that give the double are the fewest that do, once
    zeros at their end are removed.
    """
    cdef double size = fabs(value)
    cdef int decimals = 2  # as most values have at most
    cdef int64_t whole
    if size == 0.0:
        digits[0] = 0
        return 1
    if not 1e-3 <= size < 1e7:
        return OTHER
    whole = nearest(size * 100.0)
    if <double> whole / 100.0 != size:
        decimals = 8 if size >= 1e3 else 12 if size >= 1.0 else MOST_DECIMALS
        whole = nearest(size * POWERS[decimals])
        if <double> whole / POWERS[decimals] != size:
            decimals = long_decimals(size, &whole)
            if decimals < 0:
                return OTHER
    while decimals > 4 and whole % 10_000 == 0:
        whole //= 10_000
        decimals -= 4
    while decimals > 1 and whole % 10 == 0:
        whole //= 10
        decimals -= 1
    digits[0] = whole
    return decimals


cdef inline char* put_digits(char* to, uint64_t number, int least) noexcept nogil:
    """Write a number with `least` digits or more. Return the end."""
    cdef int digits = digits_of(number)
    cdef char* end = to + (digits if digits > least else least)
    cdef char* at = end
    while number >= 10:
        at -= 2
        memcpy(at, &digit_pairs[number % 100 * 2], 2)
        number //= 100
    while at > to:
        at -= 1
        at[0] = <char> (48 + number)
        number = 0
    return end


cdef inline char* put_integer(char* to, int64_t number) noexcept nogil:
    if number < 0:
        to[0] = b"-"
        return put_digits(to + 1, 0 - <uint64_t> number, 1)
    return put_digits(to, <uint64_t> number, 1)


cdef inline char* put_double(char* to, double value, int64_t digits, int decimals) noexcept nogil:
    cdef uint64_t power = decimal_powers[decimals], number = <uint64_t> digits
    if signbit(value):
        to[0] = b"-"
        to += 1
    to = put_digits(to, number // power, 1)
    to[0] = b"."
    return put_digits(to + 1, number % power, decimals)


cdef inline char* put_value(char* to, const char* bits, int64_t digits, int decimals) noexcept nogil:
    """Write a value with these digits. Return the end."""
    cdef double value
    if decimals == INTEGER:
        return put_integer(to, digits)
    memcpy(&value, bits, 8)
    return put_double(to, value, digits, decimals)


cdef struct Separators:  # texts before a key, and between it and its value
    char[SEPARATOR_BYTES] before
    char[SEPARATOR_BYTES] between
    Py_ssize_t left, middle


cdef struct Points:  # arrays, with the bytes from one element to the next
    const char* times
    const char* bits
    const char* floats
    Py_ssize_t times_step, bits_step, floats_step


def write_points(
    const int64_t[:] times, const int64_t[:] bits, const uint8_t[:] floats, int64_t divisor, bint last_only,
    bytes before not None, bytes between not None, others_of,
):
    """Return the text of points: `before`, a key, `between` and the value, for each. A key is a time, not negative,
    without the remainder of its division. `last_only`: of points with the same key only the last is written.
    Separators have four bytes at most. `others_of` returns the texts of the values at some indexes: doubles with an
    exponent, NaN, infinite ones, even of points that are left out, and some of many digits. Raise MemoryError and what
    `others_of` raises."""
    cdef Points points = Points(
        <const char*> &times[0], <const char*> &bits[0], <const char*> &floats[0],
        times.strides[0], bits.strides[0], floats.strides[0],
    )
    return written(&points, 0, times.shape[0], divisor, last_only, b"", before, 0, between, b"", others_of)


def write_only(
    all_times, all_bits, all_floats, int64_t first_ms, int64_t last_ms, int64_t least_ms, int64_t most_ms, bint is_sum,
    int64_t divisor, bint last_only, bytes head not None, bytes before not None, Py_ssize_t skipped,
    bytes between not None, bytes tail not None, bytes empty not None, others_of,
):
    """Return the text of the points of a group's only series from `first_ms` to `last_ms`, with `head` and `tail`,
    without the `skipped` first bytes, which are no more than those of `head`; `empty` if there are none. None if the
    points as aggregated may differ: of integers and doubles, for infinite values and NaN, for -0.0 if `is_sum`, and if
    times do not ascend from `least_ms` to `most_ms` at most.

    The arrays are contiguous in memory. `others_of`: see `write_points`."""
    cdef Py_buffer[3] views
    cdef Points points
    cdef int got = 0
    cdef Py_ssize_t count, at, first, stop
    cdef const int64_t* times
    cdef const int64_t* bits
    cdef const uint8_t* floats
    cdef bint is_plain = True
    try:
        for array in (all_times, all_bits, all_floats):
            PyObject_GetBuffer(array, &views[got], PyBUF_SIMPLE)
            got += 1
        count = views[2].len
        if views[0].len != count * 8 or views[1].len != count * 8:
            raise ValueError("arrays of other lengths")
        times, bits = <const int64_t*> views[0].buf, <const int64_t*> views[1].buf
        floats = <const uint8_t*> views[2].buf
        first = stop = 0
        for at in range(count):
            is_plain &= floats[at] == floats[0] and (at == 0 or times[at] > times[at - 1])
            first += times[at] < first_ms
            stop += times[at] <= last_ms
        if count and floats[0]:
            for at in range(count):
                is_plain &= (bits[at] & EXPONENT) != EXPONENT and not (is_sum and bits[at] == <int64_t> 1 << 63)
        if not is_plain or (count and (times[0] < least_ms or times[count - 1] > most_ms)):
            return None
        if first >= stop:
            return empty
        points = Points(<const char*> times, <const char*> bits, <const char*> floats, 8, 8, 1)
        return written(&points, first, stop, divisor, last_only, head, before, skipped, between, tail, others_of)
    finally:
        for at in range(got):
            PyBuffer_Release(&views[at])


cdef bytes written(
    const Points* points, Py_ssize_t start, Py_ssize_t stop, int64_t divisor, bint last_only, bytes head, bytes before,
    Py_ssize_t skipped, bytes between, bytes tail, others_of,
):
    """Return the text of the points from index `start` to before `stop`."""
    cdef Py_ssize_t count = stop - start, at, size, other = 0
    cdef Py_ssize_t ahead = PyBytes_GET_SIZE(head), behind = PyBytes_GET_SIZE(tail)
    cdef Separators separators
    cdef const char* times = points.times + start * points.times_step
    cdef const char* bits = points.bits + start * points.bits_step
    cdef const char* floats = points.floats + start * points.floats_step
    cdef double value
    cdef char* to
    cdef char* block = NULL
    cdef int64_t key, later, time
    cdef int64_t* digits = <int64_t*> malloc((count + 1) * (2 * sizeof(int64_t) + 1))
    cdef int64_t* keys = digits + count
    cdef int8_t* decimals = <int8_t*> (keys + count)
    cdef list texts = []
    separators.left, separators.middle = PyBytes_GET_SIZE(before), PyBytes_GET_SIZE(between)
    try:
        if separators.left > SEPARATOR_BYTES or separators.middle > SEPARATOR_BYTES or skipped > ahead:
            raise ValueError("long separators")
        if digits == NULL:
            raise MemoryError
        memcpy(separators.before, PyBytes_AS_STRING(before), separators.left)
        memcpy(separators.between, PyBytes_AS_STRING(between), separators.middle)
        with nogil:
            key = -1
            for at in range(count - 1, -1, -1):
                later = key
                time = (<const int64_t*> (times + at * points.times_step))[0]
                key = time // 1000 if divisor == 1000 else time // divisor  # a constant takes a tenth
                keys[at] = key
                if floats[at * points.floats_step]:
                    memcpy(&value, bits + at * points.bits_step, 8)
                    if last_only and key == later and not isinf(value):
                        decimals[at] = LEFT_OUT
                        continue
                    decimals[at] = <int8_t> decimals_of(value, &digits[at])
                    other += decimals[at] == OTHER
                elif last_only and key == later:
                    decimals[at] = LEFT_OUT
                else:
                    decimals[at] = INTEGER
                    memcpy(&digits[at], bits + at * points.bits_step, 8)
        size = ahead + behind + count * (separators.left + separators.middle + KEY_BYTES + NUMBER_BYTES) + SLACK
        if other:
            texts = others_of([start + at for at in range(count) if decimals[at] == OTHER])
            size += sum(map(len, texts))
        block = <char*> malloc(size)
        if block == NULL:
            raise MemoryError
        to = block + ahead - skipped  # what is skipped is overwritten
        if not other:
            with nogil:
                for at in range(count):
                    if decimals[at] != LEFT_OUT:
                        to = put_point(to, &separators, keys[at])
                        to = put_value(to, bits + at * points.bits_step, digits[at], decimals[at])
        else:
            other = 0
            for at in range(count):
                if decimals[at] == LEFT_OUT:
                    continue
                to = put_point(to, &separators, keys[at])
                if decimals[at] == OTHER:
                    size = PyBytes_GET_SIZE(texts[other])
                    memcpy(to, PyBytes_AS_STRING(texts[other]), size)
                    to += size
                    other += 1
                else:
                    to = put_value(to, bits + at * points.bits_step, digits[at], decimals[at])
        memcpy(block, PyBytes_AS_STRING(head), ahead)
        memcpy(to, PyBytes_AS_STRING(tail), behind)
        return PyBytes_FromStringAndSize(block, to + behind - block)
    finally:
        free(digits)
        free(block)


cdef inline char* put_point(char* to, const Separators* separators, int64_t key) noexcept nogil:
    """Write what is before a value. Return the end."""
    memcpy(to, separators.before, SEPARATOR_BYTES)
    to = put_integer(to + separators.left, key)
    memcpy(to, separators.between, SEPARATOR_BYTES)
    return to + separators.middle
