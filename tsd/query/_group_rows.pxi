# Adds the rows of a table to the rows of their groups. Included by _loops.pyx.

cdef extern from *:
    """
    static int add_row(int function, Py_ssize_t width, const int64_t* bits, const uint8_t* floats,
                       double* doubles, int64_t* integers, uint8_t* kinds) {
        /* Return whether a value is NaN. */
        const double* values = (const double*) bits;
        int nan = 0, low = function == 1;
        Py_ssize_t i;
        if (!memchr(floats, 0, width)) {
            if (function == 0)
                for (i = 0; i < width; i++) { doubles[i] += values[i]; nan |= values[i] != values[i]; }
            else
                for (i = 0; i < width; i++) {
                    if (low ? values[i] < doubles[i] : values[i] > doubles[i]) doubles[i] = values[i];
                    nan |= values[i] != values[i];
                }
            for (i = 0; i < width; i++) kinds[i] |= 1;
            return nan;
        }
        for (i = 0; i < width; i++) {
            double value = floats[i] ? values[i] : (double) bits[i];
            nan |= value != value;
            if (function == 0) doubles[i] += value;
            else if (low ? value < doubles[i] : value > doubles[i]) doubles[i] = value;
            kinds[i] |= floats[i] ? 1 : 2;
            if (floats[i]) continue;
            if (function == 0) integers[i] = (int64_t) ((uint64_t) integers[i] + (uint64_t) bits[i]);
            else if (low ? bits[i] < integers[i] : bits[i] > integers[i]) integers[i] = bits[i];
        }
        return nan;
    }
    """
    int add_row(
        int function, Py_ssize_t width, const int64_t* bits, const uint8_t* floats,
        double* doubles, int64_t* integers, uint8_t* kinds,
    ) noexcept nogil


def add_rows(
    int function, const int64_t[:, ::1] bits, const uint8_t[:, ::1] floats, const int64_t[::1] groups,
    double[:, ::1] doubles, int64_t[:, ::1] integers, uint8_t[:, ::1] kinds,
):
    """Add each row of a table to the row of its group, in order: the sum (SUM), or the lowest or highest value.

    Values are read as doubles, and integers as such, too. `kinds` gets 1 where a value is a double and 2 where one is an
    integer. Return whether no value is NaN.
    """
    cdef Py_ssize_t row, width = bits.shape[1]
    cdef int64_t group
    cdef int nan = 0
    if not width:
        return True
    with nogil:
        for row in range(groups.shape[0]):
            group = groups[row]
            nan |= add_row(
                function, width, &bits[row, 0], &floats[row, 0],
                &doubles[group, 0], &integers[group, 0], &kinds[group, 0],
            )
    return not nan
