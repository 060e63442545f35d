# cython: language_level=3
"""Compiled parsers for timestamps and values of put lines, with the results of `tsd.codec.putline` and
`tsd.codec.text`.

Each parser accepts only the usual forms and returns ODD for any other; `tsd.codec.putline` then parses the line. The LF
of a line must be in memory: it is neither a digit nor a space, so no parser reads beyond it.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

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
    TAKEN = 0  # parsed
    ODD = 1  # not a usual form


cdef inline int read_time(const char** place, int64_t* instant) noexcept nogil:
    """Parse a timestamp of digits with at most one dot, and the space after it. See `tsd.codec.putline.parse_time`."""
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
        if digits > 18:  # the number may have overflowed
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
    """Parse the rest of a float after the digits before its dot. The result is the nearest double: only the last
    operation rounds, or the C library parses the number."""
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
        result = tsd_strtod(start, &stop)  # must end at the same space
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
    """Parse a value and the space after it. See `tsd.codec.putline.parse_value`."""
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
