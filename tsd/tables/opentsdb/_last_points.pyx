# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Compiled loop that records the newest points of a window (see `tsd.tables.opentsdb.last_point_cache`)."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from tsd.codec._arrays cimport PREFETCH
from tsd.codec._columns cimport wide_value

cdef enum:
    FLOAT_BIT = 8  # of a value's flags; the others are its bytes, minus one
    AHEAD = 16  # runs to prefetch


def record(
    const int64_t[::1] instants, const uint8_t[::1] flags, const int64_t[::1] bits, const int64_t[::1] ends,
    const int32_t[::1] numbers, const int64_t[::1] generations, const int64_t[::1] known, const int32_t[::1] slots,
    int64_t[::1] times_ms, int64_t[::1] values, uint8_t[::1] floats, uint8_t[::1] held, bint is_held,
):
    """Record the points of series that have slots, and return the indexes of the other runs.

    A run of points ends at each of `ends`. It is of the series with the next of `numbers` and `generations`, which has
    a slot if `known` has the same generation for its number. `known` and `slots` are by number, and have room for each
    of them; the next four are by slot."""
    cdef list others = []
    cdef Py_ssize_t run, at = 0
    cdef int32_t number, slot
    cdef int64_t time_ms
    for run in range(ends.shape[0]):
        if run + 2 * AHEAD < ends.shape[0]:
            number = numbers[run + 2 * AHEAD]
            PREFETCH(&known[number])
            PREFETCH(&slots[number])
            number = numbers[run + AHEAD]
            slot = slots[number]  # 0 if it has none
            PREFETCH(&times_ms[slot])
            PREFETCH(&values[slot])
            PREFETCH(&floats[slot])
            PREFETCH(&held[slot])
        number = numbers[run]
        if known[number] != generations[run]:
            others.append(run)
            at = ends[run] + 1
            continue
        slot = slots[number]
        while at <= ends[run]:
            time_ms = instants[at] >> 1
            if time_ms >= times_ms[slot]:
                times_ms[slot], held[slot] = time_ms, is_held
                floats[slot] = (flags[at] & FLOAT_BIT) != 0
                values[slot] = wide_value(flags[at], bits[at])
            at += 1
    return others
