"""Arrays and maps that are kept for long lie outside of the heaps, where glibc reports the bytes in use."""

import ctypes
from collections.abc import Callable

import numpy as np
import pytest

from tsd.codec.bytemap import ByteMap
from tsd.codec.kept_arrays import grown, kept_zeros
from tsd.ingest.series import SeriesTable
from tsd.tables.writing import SeriesKey, SeriesText

COUNT = 100_000
LIBRARY = ctypes.CDLL(None)


class Mallinfo(ctypes.Structure):
    """malloc.h's `struct mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    )


def bytes_in_heaps() -> int:
    """Return how many bytes of the heaps are in use, without blocks that are mapped separately."""
    LIBRARY.mallinfo2.restype = Mallinfo
    used: int = LIBRARY.mallinfo2().uordblks
    return used


def _array() -> object:
    array = kept_zeros(10, np.int64)
    for size in range(1000, 8 * COUNT, 1000):
        array = grown(array, size)
    return array


def _map() -> object:
    made = ByteMap()
    for number in range(COUNT):
        made.put_number(b"%d" % number, number)
    return made


def _series() -> object:
    table = SeriesTable()
    for number in range(COUNT):
        table.insert(SeriesText(b"m", b"host=%d" % number), SeriesKey(b"head", b"%d" % number))
    return table


@pytest.fixture
def large_heap_blocks() -> None:
    """Let malloc take blocks of megabytes from its heaps, as it does after it has freed a block with a mapping. Before
    that, it maps every block of 128 KiB and more apart, and an array of numpy would pass as well."""
    block = np.zeros(24 << 20, np.int8)
    del block


@pytest.mark.skipif(not hasattr(LIBRARY, "mallinfo2"), reason="malloc is not that of glibc 2.33 or newer")
@pytest.mark.usefixtures("large_heap_blocks")
@pytest.mark.parametrize("make", [_array, _map, _series])
def test_what_is_kept_lies_outside_of_the_heaps(make: Callable[[], object]) -> None:
    before = bytes_in_heaps()
    made = make()
    assert bytes_in_heaps() - before < 1 << 20
    del made
    assert bytes_in_heaps() - before < 1 << 20


def test_grown_arrays_keep_their_numbers_and_have_zeros_behind_them() -> None:
    array = kept_zeros(3, np.int32)
    for size in (5, 1000, COUNT, COUNT + 1):
        array[:] = np.arange(1, len(array) + 1)
        more = grown(array, size)
        assert len(more) >= size
        assert (more[: len(array)] == array).all()
        assert not more[len(array) :].any()
        array = more
    assert grown(array, COUNT) is array
