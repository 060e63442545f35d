"""Groups series by their tags, and finds the tags that all series of a group share (docs/compat/query.md §8).

Series are given by their tag pairs, joined as in row keys.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tsd.codec.names import Widths
from tsd.codec.points import Bool, Int64, starts_of
from tsd.query.row_buckets import HAS_LOOP

if HAS_LOOP:
    from tsd.query import _loops

GroupValues: TypeAlias = NDArray[np.bytes_ | np.uint64]

AT_ONCE = 20_000  # series that are compared in one call: it keeps the interpreter's lock
_NUMBER_BYTES = 8  # longest values that are compared as numbers


class CommonTags(NamedTuple):
    """Tags by ids: those that all series of a group share, and the names of the others."""

    tags: Mapping[bytes, bytes]  # ascending by tag name
    aggregated: Sequence[bytes]  # ascending


def grouped(series_pairs: Sequence[bytes], widths: Widths, group_by: Sequence[bytes], *, each: bool) -> list[Int64]:
    """Group series, given by their tag pairs in order; each group is the places of its series in `series_pairs`.

    `each`: every series is its own group. Otherwise group by the values of the tag names `group_by`.

    >>> two = [bytes.fromhex("000001000002"), bytes.fromhex("000001000001")]
    >>> [group.tolist() for group in grouped(two, Widths(), [bytes.fromhex("000001")], each=False)]
    [[1], [0]]
    >>> [group.tolist() for group in grouped(two, Widths(), [], each=False)]
    [[0, 1]]
    """
    if each:
        return list(np.arange(len(series_pairs)).reshape(-1, 1))
    if not group_by or not series_pairs:
        return [np.arange(len(series_pairs))] if series_pairs else []
    values = group_values(series_pairs, widths, group_by)
    if values is not None:
        found, group_of = np.unique(values, return_inverse=True)
        order = np.argsort(group_of, kind="stable")
        return split_at(order, np.cumsum(np.bincount(group_of, minlength=len(found))))
    groups: dict[bytes, list[int]] = {}
    width, tagk = widths.pair, widths.tagk
    for place, joined in enumerate(series_pairs):
        own = [
            joined[at + tagk : at + width] for at in range(0, len(joined), width) if joined[at : at + tagk] in group_by
        ]
        groups.setdefault(b"".join(own), []).append(place)
    return [np.array(groups[own]) for own in sorted(groups)]


def split_at(numbers: Int64, ends: Int64) -> list[Int64]:
    """Split an array at the end of each part; `np.split` takes ten times as long.

    >>> [part.tolist() for part in split_at(np.arange(3), np.array([2, 3]))]
    [[0, 1], [2]]
    """
    return [numbers[first:stop] for first, stop in pairwise([0, *ends.tolist()])]


def group_values(
    series_pairs: Sequence[bytes], widths: Widths, group_by: Collection[bytes], *, compiled: bool = HAS_LOOP
) -> GroupValues | None:
    """Return the joined values of some tag names of each series, in their order; None if the series have different tag
    names, or lack one of them."""
    size = len(series_pairs[0])
    if compiled and len(group_by) * widths.tagv <= _NUMBER_BYTES:
        every, first = list(series_pairs), series_pairs[0]
        if _same_values(every, np.arange(len(every)), np.array((0, len(every))), widths) is None:
            return None
        places = [at + widths.tagk for at in range(0, size, widths.pair) if first[at : at + widths.tagk] in group_by]
        if len(places) != len(group_by):
            return None
        numbers, starts = np.empty(len(every), np.uint64), np.array(places, np.int64)
        for at in range(0, len(every), AT_ONCE):
            some = slice(at, at + AT_ONCE)
            _loops.values_as_numbers(every[some], starts, widths.tagv, numbers[some])
        return numbers
    if not size or set(map(len, series_pairs)) != {size}:
        return None
    table = np.frombuffer(b"".join(series_pairs), np.uint8).reshape(len(series_pairs), size)
    chosen = []
    for at in range(0, size, widths.pair):
        names = table[:, at : at + widths.tagk]
        if not _all_equal(names):
            return None
        if names[0].tobytes() in group_by:
            chosen.append(table[:, at + widths.tagk : at + widths.pair])
    if len(chosen) != len(group_by):
        return None
    values = np.concatenate(chosen, axis=1)
    length = values.shape[1]
    if length > _NUMBER_BYTES:
        return values.view(f"S{length}")[:, 0]
    wide = np.zeros((len(values), _NUMBER_BYTES), np.uint8)
    wide[:, _NUMBER_BYTES - length :] = values
    return wide.view(">u8")[:, 0].astype(np.uint64)


def _same_values(series_pairs: list[bytes], members: Int64, bounds: Int64, widths: Widths) -> Bool | None:
    """Return for each group and tag whether all series of the group have the same value there: (groups, tags). None if
    a series has other tag names than the first one, or if there are none. `members` are the places of the series in
    `series_pairs`: those of a group are from one of `bounds` to before the next one, one or more."""
    tags, rest = divmod(len(series_pairs[int(members[0])]), widths.pair)
    if not tags or rest:
        return None
    if np.diff(bounds).max() > AT_ONCE + 1:
        return _same_values_of_parts(series_pairs, members, bounds, widths)
    are_same = np.empty((len(bounds) - 1, tags), np.uint8)
    steps = [0, len(are_same)]
    if len(members) > AT_ONCE:
        steps = np.unique(np.searchsorted(bounds[:-1], np.arange(0, len(members) + AT_ONCE, AT_ONCE))).tolist()
    for first, stop in pairwise(steps):
        some, to = bounds[first : stop + 1], are_same[first:stop]
        if not _loops.same_tags(series_pairs, members, some, widths.pair, widths.tagk, to):
            return None
    return are_same.view(np.bool_)


def _same_values_of_parts(series_pairs: list[bytes], members: Int64, bounds: Int64, widths: Widths) -> Bool | None:
    """Do what `_same_values` does, with large groups in parts: a call of compiled code lets no other thread run. A part
    shares a series with the next one, so what is the same in each is the same in all."""
    parts: list[Int64] = []
    first_parts: list[int] = []
    for first, stop in pairwise(bounds.tolist()):
        first_parts.append(len(parts))
        parts += [members[at : min(at + AT_ONCE + 1, stop)] for at in range(first, max(stop - 1, first + 1), AT_ONCE)]
    found = _same_values(series_pairs, np.concatenate(parts), starts_of([*map(len, parts)]), widths)
    return None if found is None else np.logical_and.reduceat(found, first_parts)


def common_tags_of(
    series_pairs: list[bytes], groups: Sequence[Int64], widths: Widths, *, compiled: bool = HAS_LOOP
) -> list[CommonTags]:
    """Return the common tags of groups, each given by the places of its series in `series_pairs`."""
    found = _common_tags_together(series_pairs, groups, widths) if compiled and all(map(len, groups)) else None
    if found is not None:
        return found
    return [_common_tags_of_one(series_pairs, group, widths, compiled=compiled) for group in groups]


def _common_tags_of_one(series_pairs: list[bytes], group: Int64, widths: Widths, *, compiled: bool) -> CommonTags:
    found = _common_tags_together(series_pairs, [group], widths) if compiled and len(group) else None
    return found[0] if found is not None else common_tags([series_pairs[place] for place in group.tolist()], widths)


def _common_tags_together(
    series_pairs: list[bytes], groups: Sequence[Int64], widths: Widths
) -> list[CommonTags] | None:
    """Return the common tags of groups of one or more series; None if these have different tag names."""
    if not groups:
        return []
    members, bounds = np.concatenate(groups), starts_of([*map(len, groups)])
    are_same = _same_values(series_pairs, members, bounds, widths)
    pairs = series_pairs[int(members[0])]
    names = [pairs[at : at + widths.tagk] for at in range(0, len(pairs), widths.pair)]
    if are_same is None or len(set(names)) < len(names):  # as in a damaged key
        return None
    tags = sorted(zip(names, range(widths.tagk, len(pairs), widths.pair), range(len(names)), strict=True))
    found = []
    for place, same in zip(members[bounds[:-1]].tolist(), are_same.tolist(), strict=True):
        one = series_pairs[place]
        common = {name: one[at : at + widths.tagv] for name, at, tag in tags if same[tag]}
        found.append(CommonTags(common, [name for name, _, tag in tags if not same[tag]]))
    return found


def common_tags(series_pairs: Sequence[bytes], widths: Widths) -> CommonTags:
    """Return the common tags: the names whose value is the same in all series with the name.

    >>> both = common_tags([bytes.fromhex("000001000001000002000001"), bytes.fromhex("000001000002")], Widths())
    >>> {tagk.hex(): tagv.hex() for tagk, tagv in both.tags.items()}, [tagk.hex() for tagk in both.aggregated]
    ({'000002': '000001'}, ['000001'])
    """
    if len(series_pairs) == 1:
        only = widths.tags(series_pairs[0])
        if len(only) * widths.pair == len(series_pairs[0]):  # no tag name is repeated, as in a damaged key
            return CommonTags(dict(sorted(only.items())), [])
    found: dict[bytes, bytes] = {}
    differing: set[bytes] = set()
    for tagk, tagv, is_same in chain.from_iterable(_columns(part, widths) for part in _alike(series_pairs)):
        if not is_same or found.setdefault(tagk, tagv) != tagv:
            differing.add(tagk)
    tags = {tagk: found[tagk] for tagk in sorted(found) if tagk not in differing}
    return CommonTags(tags, sorted(differing))


def _alike(series_pairs: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Split series by their number of tags."""
    sizes = set(map(len, series_pairs))
    if len(sizes) < 2:
        yield series_pairs
        return
    for size in sizes:
        yield [one for one in series_pairs if len(one) == size]


def _columns(series_pairs: Sequence[bytes], widths: Widths) -> Iterator[tuple[bytes, bytes, bool]]:
    """Yield each tag name of series with equally many tags, with a value, and whether that is the only one."""
    if series_pairs and series_pairs.count(series_pairs[0]) == len(series_pairs):
        joined = series_pairs[0]
        for at in range(0, len(joined), widths.pair):
            yield joined[at : at + widths.tagk], joined[at + widths.tagk : at + widths.pair], True
        return
    if not series_pairs or not series_pairs[0]:
        return
    table = np.frombuffer(b"".join(series_pairs), np.uint8).reshape(len(series_pairs), -1)
    for at in range(0, table.shape[1], widths.pair):
        names, values = table[:, at : at + widths.tagk], table[:, at + widths.tagk : at + widths.pair]
        if _all_equal(names):
            yield names[0].tobytes(), values[0].tobytes(), _all_equal(values)
        else:
            for name, value in {(n.tobytes(), v.tobytes()) for n, v in zip(names, values, strict=True)}:
                yield name, value, True


def _all_equal(rows: NDArray[np.uint8]) -> bool:
    return bool((rows[-1] == rows[0]).all() and (rows == rows[0]).all())
