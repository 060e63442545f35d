"""Series → groups, and what the series of a group have in common (query.md §8)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsd.codec.uid import Widths


class CommonTags(NamedTuple):
    """Tags by UIDs: those that all series of a group share, and the names of those that they do not."""

    tags: Mapping[bytes, bytes]  # ascending by tag name
    aggregated: Sequence[bytes]  # ascending


def grouped(pairs: Sequence[bytes], widths: Widths, group_by: Sequence[bytes], *, each: bool) -> list[list[int]]:
    """The groups of series that are given by their tag pairs, in order: each a list of places in `pairs`.

    `each`: every series is a group of its own. Else by the values of the tag names `group_by`, which all series have.

    >>> two = [bytes.fromhex("000001000002"), bytes.fromhex("000001000001")]
    >>> grouped(two, Widths(), [bytes.fromhex("000001")], each=False), grouped(two, Widths(), [], each=False)
    ([[1], [0]], [[0, 1]])
    """
    if each:
        return [[place] for place in range(len(pairs))]
    if not group_by:
        return [list(range(len(pairs)))] if pairs else []
    groups: dict[bytes, list[int]] = {}
    wanted = frozenset(group_by)
    width, tagk = widths.pair, widths.tagk
    for place, joined in enumerate(pairs):
        values = [
            joined[at + tagk : at + width] for at in range(0, len(joined), width) if joined[at : at + tagk] in wanted
        ]
        groups.setdefault(b"".join(values), []).append(place)
    return [groups[values] for values in sorted(groups)]


def common_tags(pairs: Sequence[bytes], widths: Widths) -> CommonTags:
    """What series share: a tag name whose value is the same in all that have the name.

    >>> both = common_tags([bytes.fromhex("000001000001000002000001"), bytes.fromhex("000001000002")], Widths())
    >>> {tagk.hex(): tagv.hex() for tagk, tagv in both.tags.items()}, [tagk.hex() for tagk in both.aggregated]
    ({'000002': '000001'}, ['000001'])
    """
    found: dict[bytes, bytes] = {}
    differing: set[bytes] = set()
    for part in _alike(pairs):
        for tagk, tagv, same in _columns(part, widths):
            if not same or found.setdefault(tagk, tagv) != tagv:
                differing.add(tagk)
    tags = {tagk: found[tagk] for tagk in sorted(found) if tagk not in differing}
    return CommonTags(tags, sorted(differing))


def _alike(pairs: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Series with as many tags together."""
    sizes = set(map(len, pairs))
    if len(sizes) < 2:
        yield pairs
        return
    for size in sizes:
        yield [one for one in pairs if len(one) == size]


def _columns(pairs: Sequence[bytes], widths: Widths) -> Iterator[tuple[bytes, bytes, bool]]:
    """Of series with as many tags: each tag name, a value of it, and whether that is the only one."""
    if len(pairs) == 1 or len(set(pairs)) == 1:
        [joined] = set(pairs)
        for at in range(0, len(joined), widths.pair):
            yield joined[at : at + widths.tagk], joined[at + widths.tagk : at + widths.pair], True
        return
    if not pairs or not pairs[0]:
        return
    table = np.frombuffer(b"".join(pairs), np.uint8).reshape(len(pairs), -1)
    for at in range(0, table.shape[1], widths.pair):
        names, values = table[:, at : at + widths.tagk], table[:, at + widths.tagk : at + widths.pair]
        if _all_equal(names):
            yield names[0].tobytes(), values[0].tobytes(), _all_equal(values)
        else:
            for name, value in {(n.tobytes(), v.tobytes()) for n, v in zip(names, values, strict=True)}:
                yield name, value, True


def _all_equal(rows: NDArray[np.uint8]) -> bool:
    return bool((rows == rows[0]).all())
