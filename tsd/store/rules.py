"""Cells of a put, cut into batches of whole rows."""

from collections.abc import Iterator, Sequence
from operator import itemgetter

from tsd.store import Put

_value = itemgetter(2)


def whole_rows(cells: Sequence[Put], *, most_cells: int, most_bytes: int) -> Iterator[Sequence[Put]]:
    """`cells` in slices of at most `most_cells` and `most_bytes` of values, in order; a row that is larger is a slice
    of its own. Cells of one row stand beside each other and stay in one slice.

    >>> cells = [Put(row, b"t:", bytes(9)) for row in (b"a", b"b", b"b", b"b", b"c")]
    >>> [len(part) for part in whole_rows(cells, most_cells=2, most_bytes=100)]
    [1, 3, 1]
    >>> [len(part) for part in whole_rows(cells, most_cells=5, most_bytes=40)]
    [1, 4]
    """
    start = 0
    while start < len(cells):
        end = _boundary(cells, start, min(start + most_cells, len(cells)))
        while sum(map(len, map(_value, cells[start:end]))) > most_bytes:
            half = _boundary(cells, start, start + max((end - start) // 2, 1))
            if half == end:
                break
            end = half
        yield cells[start:end]
        start = end


def _boundary(cells: Sequence[Put], start: int, at: int) -> int:
    """The last place after `start` and up to `at` where a row ends, or else the first one after `at`."""
    end = at
    while start < end < len(cells) and cells[end].row == cells[end - 1].row:
        end -= 1
    if end > start:
        return end
    while at < len(cells) and cells[at].row == cells[at - 1].row:
        at += 1
    return at
