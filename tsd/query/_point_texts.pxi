# Writes times and values as JSON. Included by _loops.pyx.

cdef extern from *:
    """
    static const uint64_t decimal_powers[20] = {
        1u, 10u, 100u, 1000u, 10000u, 100000u, 1000000u, 10000000u, 100000000u, 1000000000u, 10000000000u,
        100000000000u, 1000000000000u, 10000000000000u, 100000000000000u, 1000000000000000u, 10000000000000000u,
        100000000000000000u, 1000000000000000000u, 10000000000000000000u,
    };
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
    """
    const uint64_t[20] decimal_powers
    int long_decimals(double size, int64_t* digits) nogil

cdef enum:
    KEY_BYTES = 20  # of any 64-bit integer, with its sign
    NUMBER_BYTES = 26  # of a number with up to 17 digits, with sign, point and zeros
    OTHER = -1  # decimals of a double that is written elsewhere
    INTEGER = -2  # decimals of an integer
    LEFT_OUT = -3  # decimals of a point that is not written
    MOST_DECIMALS = 15

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
    cdef int decimals = 8 if size >= 1e3 else 12 if size >= 1.0 else MOST_DECIMALS
    cdef int64_t whole
    if size == 0.0:
        digits[0] = 0
        return 1
    if not 1e-3 <= size < 1e7:
        return OTHER
    whole = <int64_t> rint(size * POWERS[decimals])
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
    cdef char[KEY_BYTES] text
    cdef int at = KEY_BYTES
    while number > 0 or KEY_BYTES - at < least:
        at -= 1
        text[at] = <char> (48 + number % 10)
        number //= 10
    memcpy(to, &text[at], KEY_BYTES - at)
    return to + KEY_BYTES - at


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


def write_points(
    const int64_t[:] times, const int64_t[:] bits, const uint8_t[:] floats, int64_t divisor, bint last_only,
    bytes before not None, bytes between not None, others_of,
):
    """Return the text of points: `before`, a key, `between` and the value, for each. A key is a time, not negative,
    without the remainder of its division. `last_only`: of points with the same key only the last is written.
    `others_of` returns the texts of the values at some indexes: doubles with an exponent, NaN, infinite ones, even of
    points that are left out, and some of many digits. Raise MemoryError and what `others_of` raises."""
    cdef Py_ssize_t count = times.shape[0], at, size, other = 0, left = PyBytes_GET_SIZE(before)
    cdef Py_ssize_t middle = PyBytes_GET_SIZE(between)
    cdef const char* first = PyBytes_AS_STRING(before)
    cdef const char* second = PyBytes_AS_STRING(between)
    cdef const char* text
    cdef double value
    cdef char* to
    cdef char* block = NULL
    cdef int64_t key, later
    cdef int64_t* digits = <int64_t*> malloc((count + 1) * (2 * sizeof(int64_t) + 1))
    cdef int64_t* keys = digits + count
    cdef int8_t* decimals = <int8_t*> (keys + count)
    cdef list texts = []
    try:
        if digits == NULL:
            raise MemoryError
        with nogil:
            key = -1
            for at in range(count - 1, -1, -1):
                later = key
                key = times[at] / divisor
                keys[at] = key
                if floats[at]:
                    memcpy(&value, &bits[at], 8)
                    if last_only and key == later and not isinf(value):
                        decimals[at] = LEFT_OUT
                        continue
                    decimals[at] = <int8_t> decimals_of(value, &digits[at])
                    other += decimals[at] == OTHER
                elif last_only and key == later:
                    decimals[at] = LEFT_OUT
                else:
                    decimals[at] = INTEGER
        size = count * (left + middle + KEY_BYTES + NUMBER_BYTES)
        if other:
            texts = others_of([at for at in range(count) if decimals[at] == OTHER])
            size += sum(map(len, texts))
        block = <char*> malloc(size + 1)
        if block == NULL:
            raise MemoryError
        to = block
        if not other:
            with nogil:
                for at in range(count):
                    if decimals[at] == LEFT_OUT:
                        continue
                    to = put_point(to, first, left, second, middle, keys[at])
                    if decimals[at] == INTEGER:
                        to = put_integer(to, bits[at])
                    else:
                        memcpy(&value, &bits[at], 8)
                        to = put_double(to, value, digits[at], decimals[at])
        else:
            other = 0
            for at in range(count):
                if decimals[at] == LEFT_OUT:
                    continue
                to = put_point(to, first, left, second, middle, keys[at])
                if decimals[at] == OTHER:
                    size = PyBytes_GET_SIZE(texts[other])
                    memcpy(to, PyBytes_AS_STRING(texts[other]), size)
                    to += size
                    other += 1
                elif decimals[at] == INTEGER:
                    to = put_integer(to, bits[at])
                else:
                    memcpy(&value, &bits[at], 8)
                    to = put_double(to, value, digits[at], decimals[at])
        return PyBytes_FromStringAndSize(block, to - block)
    finally:
        free(digits)
        free(block)


cdef inline char* put_point(
    char* to, const char* before, Py_ssize_t left, const char* between, Py_ssize_t middle, int64_t key
) noexcept nogil:
    """Write what is before a value. Return the end."""
    memcpy(to, before, left)
    to = put_integer(to + left, key)
    memcpy(to, between, middle)
    return to + middle
