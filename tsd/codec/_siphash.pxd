# cython: language_level=3
"""SipHash (Aumasson and Bernstein, 2012) with 1 and 3 rounds: without its key it is infeasible to construct
collisions."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy


cdef struct Key:
    uint64_t low
    uint64_t high

cdef struct State:
    uint64_t a
    uint64_t b
    uint64_t c
    uint64_t d


cdef inline uint64_t rotated(uint64_t word, int bits) noexcept nogil:
    return word << bits | word >> (64 - bits)


cdef inline void mix(State* s) noexcept nogil:
    """Do one round."""
    s.a += s.b
    s.c += s.d
    s.b = rotated(s.b, 13) ^ s.a
    s.d = rotated(s.d, 16) ^ s.c
    s.a = rotated(s.a, 32) + s.d
    s.c += s.b
    s.d = rotated(s.d, 21) ^ s.a
    s.b = rotated(s.b, 17) ^ s.c
    s.c = rotated(s.c, 32)


cdef inline void start(State* s, const Key* key) noexcept nogil:
    s.a = key.low ^ 0x736F6D6570736575ULL
    s.b = key.high ^ 0x646F72616E646F6DULL
    s.c = key.low ^ 0x6C7967656E657261ULL
    s.d = key.high ^ 0x7465646279746573ULL


cdef inline void add_word(State* s, uint64_t word) noexcept nogil:
    s.d ^= word
    mix(s)
    s.a ^= word


cdef inline uint64_t last_word(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """Return the last 0 to 7 bytes as a word. Different bytes of one size give different words."""
    cdef uint32_t low, high
    if size >= 4:
        memcpy(&low, at, 4)
        memcpy(&high, at + size - 4, 4)
        return <uint64_t> high << 32 | low
    if size:
        return <uint64_t> at[0] | <uint64_t> at[size >> 1] << 8 | <uint64_t> at[size - 1] << 16
    return 0


cdef inline void add_bytes(State* s, const char* text, Py_ssize_t size) noexcept nogil:
    """Add a text. The caller adds its size too: texts of different sizes may give the same words."""
    cdef uint64_t word
    cdef const char* end = text + (size & ~<Py_ssize_t> 7)
    while text < end:
        memcpy(&word, text, 8)
        add_word(s, word)
        text += 8
    add_word(s, last_word(<const uint8_t*> text, size & 7))


cdef inline uint64_t finish(State* s, uint64_t mark) noexcept nogil:
    """Return a hash of the state. Other values of `mark` give independent further hashes."""
    s.c ^= mark
    mix(s)
    mix(s)
    mix(s)
    return s.a ^ s.b ^ s.c ^ s.d


cdef inline uint64_t hash_of(
    const Key* key, const char* first, Py_ssize_t first_bytes, const char* second, Py_ssize_t second_bytes
) noexcept nogil:
    """Return the hash of a pair of texts."""
    cdef State s
    start(&s, key)
    add_bytes(&s, first, first_bytes)
    add_bytes(&s, second, second_bytes)
    add_word(&s, <uint64_t> first_bytes << 32 | <uint32_t> second_bytes)
    return finish(&s, 0xFF)
