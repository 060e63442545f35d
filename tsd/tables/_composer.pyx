# cython: language_level=3
"""The base of a layout's `KeyComposer`: the compiled parser calls it for series that it does not know."""

from tsd.codec._arrays cimport UNKNOWN


cdef class KeyComposer:
    """Composes keys of well-formed series whose names are all cached. This base knows none."""

    cdef int compose(self, const char* metric, Py_ssize_t m, const TagList* tags, KeyBytes* key) noexcept:
        """Return DONE with the key of a series, UNKNOWN if a name is not cached, or NO_MEMORY."""
        return UNKNOWN
