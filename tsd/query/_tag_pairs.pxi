# Compares the tags of series. Included by _loops.pyx.


def same_tags(
    list series_pairs, const int64_t[::1] members, const int64_t[::1] bounds, Py_ssize_t width, Py_ssize_t tagk,
    uint8_t[:, ::1] values,
):
    """Return whether all members of groups have the tag names of the first one, in its order. Then `values` says for
    each group and tag whether all its members have the same value there. `members` has the index of each member; those
    of a group are from one of `bounds` to before the next one, one or more. A pair of ids has `width` bytes, its name
    `tagk` of them."""
    cdef Py_ssize_t group, i, at, tag, tags = values.shape[1]
    cdef bytes first, one
    cdef const char* names
    cdef const char* begin
    cdef const char* text
    if not members.shape[0]:
        return True
    first = series_pairs[members[0]]
    names = PyBytes_AS_STRING(first)
    values[:] = 1
    for group in range(values.shape[0]):
        one = series_pairs[members[bounds[group]]]
        begin = PyBytes_AS_STRING(one)
        for i in range(bounds[group], bounds[group + 1]):
            one = series_pairs[members[i]]
            if PyBytes_GET_SIZE(one) != tags * width:
                return False
            text = PyBytes_AS_STRING(one)
            for tag in range(tags):
                at = tag * width
                if memcmp(text + at, names + at, tagk):
                    return False
                if values[group, tag] and memcmp(text + at + tagk, begin + at + tagk, width - tagk):
                    values[group, tag] = 0
    return True


def values_as_numbers(list series_pairs, const int64_t[::1] places, Py_ssize_t size, uint64_t[::1] found):
    """Write the joined values of `size` bytes at some places of each series as a number, big-endian."""
    cdef Py_ssize_t i, place, at
    cdef const uint8_t* text
    cdef bytes one
    cdef uint64_t number
    for i in range(len(series_pairs)):
        one = series_pairs[i]
        text = <const uint8_t*> PyBytes_AS_STRING(one)
        number = 0
        for place in range(places.shape[0]):
            for at in range(places[place], places[place] + size):
                number = number << 8 | text[at]
        found[i] = number
