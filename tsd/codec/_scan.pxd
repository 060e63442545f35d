# cython: language_level=3
"""The words of a put line → times, numbers and hashes, in C: what `tsd.codec.times` and `tsd.codec.words` say of them.

Each reader takes the plain forms alone and says of any other that it is odd: those go to `tsd.codec.putline`. A line
ends with its LF, which is in memory and neither a digit nor a blank, so that no reader looks beyond it.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

cdef extern from *:
    """
    #include <float.h>
    #include <locale.h>
    #include <math.h>
    #include <stdlib.h>
    #if defined(__APPLE__)
    #include <xlocale.h>
    #endif
    static const double tsd_tens[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                      1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    #if FLT_EVAL_METHOD == 0
    #define TSD_EXACT ((uint64_t) 1 << 53) /* doubles are computed as doubles */
    #else
    #define TSD_EXACT 0
    #endif
    static inline double tsd_strtod(const char* at, char** stop) {
        static locale_t c_locale = (locale_t) 0;
        if (!c_locale)
            c_locale = newlocale(LC_ALL_MASK, "C", (locale_t) 0);
        return c_locale ? strtod_l(at, stop, c_locale) : (*stop = (char*) at, 0.0);
    }
    """
    const double tsd_tens[23]
    const uint64_t TSD_EXACT
    const double FLT_MAX
    double tsd_strtod(const char* at, char** stop) noexcept nogil
    double fabs(double) noexcept nogil
    bint isinf(double) noexcept nogil

cdef enum:
    TAKEN = 0
    ODD = 1

cdef struct Key:
    uint64_t low
    uint64_t high

cdef struct State:
    uint64_t a
    uint64_t b
    uint64_t c
    uint64_t d


cdef inline uint64_t turned(uint64_t word, int bits) noexcept nogil:
    return word << bits | word >> (64 - bits)


cdef inline void stir(State* s) noexcept nogil:
    """A round of SipHash (Aumasson and Bernstein, 2012)."""
    s.a += s.b
    s.c += s.d
    s.b = turned(s.b, 13) ^ s.a
    s.d = turned(s.d, 16) ^ s.c
    s.a = turned(s.a, 32) + s.d
    s.c += s.b
    s.d = turned(s.d, 21) ^ s.a
    s.b = turned(s.b, 17) ^ s.c
    s.c = turned(s.c, 32)


cdef inline void take_word(State* s, uint64_t word) noexcept nogil:
    s.d ^= word
    stir(s)
    s.a ^= word


cdef inline uint64_t last_word(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """The last 0 to 7 bytes; for each size another word for other bytes."""
    cdef uint32_t low, high
    if size >= 4:
        memcpy(&low, at, 4)
        memcpy(&high, at + size - 4, 4)
        return <uint64_t> high << 32 | low
    if size:
        return <uint64_t> at[0] | <uint64_t> at[size >> 1] << 8 | <uint64_t> at[size - 1] << 16
    return 0


cdef inline void take_bytes(State* s, const char* text, Py_ssize_t size) noexcept nogil:
    cdef uint64_t word
    cdef const char* end = text + (size & ~<Py_ssize_t> 7)
    while text < end:
        memcpy(&word, text, 8)
        take_word(s, word)
        text += 8
    take_word(s, last_word(<const uint8_t*> text, size & 7))


cdef inline uint64_t hash_of(
    const Key* key, const char* metric, Py_ssize_t metric_bytes, const char* tags, Py_ssize_t tag_bytes
) noexcept nogil:
    """SipHash-1-3 of both texts and their lengths: who does not know the key cannot make texts that collide."""
    cdef State s
    s.a = key.low ^ 0x736F6D6570736575ULL
    s.b = key.high ^ 0x646F72616E646F6DULL
    s.c = key.low ^ 0x6C7967656E657261ULL
    s.d = key.high ^ 0x7465646279746573ULL
    take_bytes(&s, metric, metric_bytes)
    take_bytes(&s, tags, tag_bytes)
    take_word(&s, <uint64_t> metric_bytes << 32 | <uint32_t> tag_bytes)
    s.c ^= 0xFF
    stir(&s)
    stir(&s)
    stir(&s)
    return s.a ^ s.b ^ s.c ^ s.d


cdef inline int read_time(const char** place, int64_t* instant) noexcept nogil:
    """A time word and the blank behind it: digits, one dot at most. See `tsd.codec.times.parse_time`."""
    cdef const char* at = place[0]
    cdef const char* start = at
    cdef uint64_t number = 0, seconds
    cdef int digits, decimals = 0
    while <uint8_t> (at[0] - c"0") < 10:
        number = number * 10 + <uint8_t> (at[0] - c"0")
        at += 1
    digits = <int> min(at - start, 99)
    if at[0] == c".":
        seconds = number
        at += 1
        start = at
        while <uint8_t> (at[0] - c"0") < 10:
            number = number * 10 + <uint8_t> (at[0] - c"0")
            if at - start < 3:
                seconds = seconds * 10 + <uint8_t> (at[0] - c"0")
            at += 1
        digits += <int> min(at - start, 99)
        decimals = <int> min(at - start, 3)
        if digits > 18:  # so that nothing has overflowed
            return ODD
        if number >= <uint64_t> 1 << 32 and number <= 9999999999999ULL:
            number = seconds * (1 if decimals == 3 else 10 if decimals == 2 else 100 if decimals == 1 else 1000)
            if number < <uint64_t> 1 << 32:
                return ODD
    if at[0] != c" " or digits == 0 or digits > 18 or number == 0 or number > 4294969199999ULL:  # LAST_BASE_MS
        return ODD
    instant[0] = number << 1 | 1 if number >= <uint64_t> 1 << 32 else number * 2000
    place[0] = at + 1
    return TAKEN


cdef inline int read_float(
    const char* start, const char** place, bint negative, uint64_t number, Py_ssize_t digits, int* flags, int64_t* bits
) noexcept nogil:
    """The rest of a float whose digits before the dot were read. Rounded to the nearest double, as all of it is exact
    up to the last operation, or by the C library."""
    cdef const char* at = place[0]
    cdef const char* mark
    cdef char* stop = NULL
    cdef Py_ssize_t decimals = 0
    cdef int64_t exponent = 0
    cdef bint lowered = False
    cdef double result
    cdef float single
    cdef uint32_t short_bits
    if at[0] == c".":
        at += 1
        mark = at
        while <uint8_t> (at[0] - c"0") < 10:
            number = number * 10 + <uint8_t> (at[0] - c"0")
            at += 1
        decimals = at - mark
        digits += decimals
    if digits == 0:
        return ODD
    if at[0] | 0x20 == c"e":
        at += 1
        if at[0] == c"-" or at[0] == c"+":
            lowered = at[0] == c"-"
            at += 1
        mark = at
        while <uint8_t> (at[0] - c"0") < 10 and at - mark < 6:
            exponent = exponent * 10 + <uint8_t> (at[0] - c"0")
            at += 1
        if at == mark:
            return ODD
    if at[0] != c" ":
        return ODD
    exponent = (-exponent if lowered else exponent) - decimals
    if digits <= 19 and number <= TSD_EXACT and -22 <= exponent <= 22:
        result = <double> number
        result = result / tsd_tens[-exponent] if exponent < 0 else result * tsd_tens[exponent]
        if negative:
            result = -result
    else:
        result = tsd_strtod(start, &stop)  # reads what was read here, and ends at the blank
        if stop != at or isinf(result):
            return ODD
    memcpy(bits, &result, 8)
    flags[0] = 0xF
    if fabs(result) <= FLT_MAX:
        single = <float> result
        if <double> single == result:
            memcpy(&short_bits, &single, 4)
            bits[0] = short_bits
            flags[0] = 0xB
    place[0] = at + 1
    return TAKEN


cdef inline int read_value(const char** place, int* flags, int64_t* bits) noexcept nogil:
    """A value and the blank behind it. See `tsd.codec.putline.parse_value`."""
    cdef const char* at = place[0]
    cdef const char* start = at
    cdef const char* mark
    cdef bint negative = at[0] == c"-"
    cdef uint64_t number = 0
    cdef Py_ssize_t digits
    cdef int64_t value
    if negative or at[0] == c"+":
        at += 1
    mark = at
    while <uint8_t> (at[0] - c"0") < 10:
        number = number * 10 + <uint8_t> (at[0] - c"0")
        at += 1
    digits = at - mark
    if at[0] != c" ":
        place[0] = at
        return read_float(start, place, negative, number, digits, flags, bits)
    if digits == 0 or digits > 19 or number > (<uint64_t> 1 << 63) - 1 + negative:
        return ODD
    value = <int64_t> (-number if negative else number)
    if value == <signed char> value:
        flags[0] = 0
    elif value == <short> value:
        flags[0] = 1
    elif value == <int32_t> value:
        flags[0] = 3
    else:
        flags[0] = 7
    bits[0] = value
    place[0] = at + 1
    return TAKEN
