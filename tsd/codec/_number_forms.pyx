# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled choice of the form of each row's values (see tsd.codec.number_columns). It gives the GIL back."""

from libc.math cimport fabs, rint
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

cdef enum:  # as in tsd.codec.number_columns
    INTEGERS
    DECIMALS
    DOUBLES
    MIXED


cdef inline bint has_bits(double value, int64_t bits) noexcept nogil:
    cdef int64_t own
    memcpy(&own, &value, 8)
    return own == bits


cdef bint scale_row(const int64_t* bits, Py_ssize_t count, double power, double bound, int64_t* numbers) noexcept nogil:
    """Write decimal numbers as integers. Return False if one of them would not give its bits back."""
    cdef Py_ssize_t at
    cdef double value
    cdef int64_t whole
    for at in range(count):
        memcpy(&value, bits + at, 8)
        value = rint(value * power)
        if not fabs(value) < bound:  # or it is not a number
            return False
        whole = <int64_t> value
        if not has_bits((<double> whole) / power, bits[at]):
            return False
        numbers[at] = whole
    return True


cdef bint has_small_steps(const int64_t* numbers, Py_ssize_t count) noexcept nogil:
    """Return whether the differences of neighbours are smaller than the distances from the first value."""
    cdef double steps = 0, distances = 0
    cdef Py_ssize_t at
    for at in range(1, count):
        steps += fabs(<double> <int64_t> (<uint64_t> numbers[at] - <uint64_t> numbers[at - 1]))
        distances += fabs(<double> <int64_t> (<uint64_t> numbers[at] - <uint64_t> numbers[0]))
    return count > 1 and steps <= 0.5 * distances


def choose(
    const int64_t[::1] bits, const uint8_t[::1] floats, const int64_t[::1] starts, const double[::1] powers,
    double bound, uint8_t[::1] form, uint8_t[::1] decimals, uint8_t[::1] steps, int64_t[::1] numbers,
):
    """Fill in the form of each row, its decimals, whether its steps are small, and the stored number of each point. `powers` of ten are tried in turn; numbers from `bound` on are not stored as decimals."""
    cdef Py_ssize_t row, first, count, at, are_floats, places
    with nogil:
        for row in range(form.shape[0]):
            first, count = starts[row], starts[row + 1] - starts[row]
            are_floats = 0
            for at in range(first, first + count):
                are_floats += floats[at] != 0
            decimals[row] = 0
            form[row] = INTEGERS if are_floats == 0 else DOUBLES if are_floats == count else MIXED
            if form[row] == DOUBLES:
                for places in range(powers.shape[0]):
                    if scale_row(&bits[first], count, powers[places], bound, &numbers[first]):
                        form[row], decimals[row] = DECIMALS, <uint8_t> places
                        break
            if form[row] != DECIMALS:
                memcpy(&numbers[first], &bits[first], count * sizeof(int64_t))
            steps[row] = has_small_steps(&numbers[first], count)
