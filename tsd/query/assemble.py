"""Assembles groups from the series of a sub query: merged, in order, with names and annotations.

docs/compat/query.md §1 (steps 4, 6 and 7), §8 and §14.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tsd.codec.metadata import Annotation
from tsd.codec.names import Kind
from tsd.codec.points import Bool, Int64, Points
from tsd.codec.putline import FIRST_MS
from tsd.query.align import Rates
from tsd.query.collect import Collected, ReadCounts
from tsd.query.columns import Chosen
from tsd.query.merge import MergedPoints, merge, rate, rate_table
from tsd.query.model import NONE, Query, SubQuery
from tsd.query.plan import Plan
from tsd.query.result import Group, SubAnswer
from tsd.query.same_times import summed_groups
from tsd.query.tag_groups import CommonTags, common_tags_of, grouped
from tsd.query.workers import check_cancelled
from tsd.tables.quirks import OPENTSDB, Quirks
from tsd.tables.reading import PointReader, ScanRange


def start_ms(note: Annotation) -> int:
    """Return the start time of an annotation in ms."""
    return note.start_time if note.start_time >= FIRST_MS else note.start_time * 1000


def notes_within(notes: Iterable[Annotation], first_ms: int, last_ms: int) -> list[Annotation]:
    """Return the annotations that start in a range, both ends included.

    >>> [n.start_time for n in notes_within([Annotation(5), Annotation(6), Annotation(7)], 6000, 6500)]
    [6]
    """
    return [note for note in notes if first_ms <= start_ms(note) <= last_ms]


def in_order(notes: Iterable[Annotation], *, quirks: Quirks = OPENTSDB) -> list[Annotation]:
    """Sort annotations by start time. OpenTSDB sorts by the number, whatever its unit: those in ms are last.

    >>> [n.start_time for n in in_order([Annotation(7_000_000_000), Annotation(8_000_000)])]
    [8000000, 7000000000]
    """
    return sorted(notes, key=(lambda note: note.start_time) if quirks.annotations_by_number else start_ms)


async def global_annotations(reader: PointReader, first_ms: int, last_ms: int, *, quirks: Quirks) -> list[Annotation]:
    """Return the global annotations of a range, in order. Raise StoreError.

    OpenTSDB compares an annotation's times, whatever their unit, with seconds: it never finds one that ends in ms.
    Corrected: those that start in the range.
    """
    first_s, last_s = first_ms // 1000, last_ms // 1000
    found = in_order(await reader.global_annotations(first_s, last_s), quirks=quirks)
    if quirks.annotations_by_number:
        return [note for note in found if note.start_time >= first_s and note.end_time <= last_s]
    return notes_within(found, first_ms, last_ms)


ANSWER_BYTES = 17  # of a point in an answer
GROUP_BYTES = 1500  # of a group in an answer, in addition to its points
SLICE_POINTS = 500_000  # merged without a pause
GROUP_POINTS = 50  # a group costs as much time to merge as this many points, in addition to its points


def merge_chosen(
    chosen: Chosen, sub: SubQuery, scan: ScanRange, *, quirks: Quirks, check: Callable[[], None] = lambda: None
) -> MergedPoints:
    """Merge the series of a group, in their order, as a sub query says; see `merge`."""
    series: Chosen | list[Rates] = chosen
    if sub.rate:
        columns, numbers = chosen
        options = sub.rate_options
        table = rate_table(chosen, options, scan.start_ms, check) if len(numbers) > 1 else None
        series = table or [rate(columns[at], options, scan.start_ms, quirks=quirks) for at in numbers.tolist()]
    return merge(series, sub.aggregator, scan, quirks=quirks, check=check)


class _UnnamedGroup(NamedTuple):
    """A merged group, before its names are looked up."""

    numbers: Int64  # of its series with points, in order
    common: CommonTags
    merged: MergedPoints
    notes: list[Annotation] | None


class Assembly:
    """Assembles the groups of one sub query. Call `form_groups`, run all `slices`, then call `look_up_names` and
    `groups`. All but `look_up_names` may run in a thread."""

    def __init__(self, query: Query, plan: Plan, collected: Collected) -> None:
        self._query = query
        self._plan = plan
        self._series = plan.selection.series
        self._collected = collected
        self._has_points: Bool = collected.counts > 0  # of each series
        self._have_all_points = False  # whether all series have points
        self._groups: list[Int64] = []  # numbers of their series, in order
        self._sizes: list[int] = []  # points of each
        self._is_ordered = False  # whether the series are numbered in order
        self._found: list[_UnnamedGroup] = []
        self._tagks: dict[bytes, None] = {}  # of all groups' tags
        self._tagvs: dict[bytes, None] = {}
        self._key_names: dict[bytes, str] = {}
        self._value_names: dict[bytes, str] = {}
        self.resolved = 0  # names looked up

    def slices(self) -> Iterator[tuple[int, Callable[[], None]]]:
        """Yield slices of the work, each with its number of points. Run them in this order."""
        if len(self._series.series_pairs) == 1:
            first, stop = self._collected.series.bounds.tolist()
            yield GROUP_POINTS + stop - first, lambda: self._merge(self._groups)
            return
        if self._collected.sums is not None:
            yield GROUP_POINTS * len(self._groups) + self._collected.sums.size, lambda: self._merge(self._groups)
            return
        part: list[Int64] = []
        size = 0
        for group, points in zip(self._groups, self._sizes, strict=True):
            part.append(group)
            size += GROUP_POINTS + points
            if size >= SLICE_POINTS:
                yield size, lambda part=part: self._merge(part)  # type: ignore[misc]
                part, size = [], 0
        if part:
            yield size, lambda: self._merge(part)

    def form_groups(self) -> int:
        """Divide the series into groups. Return the number of groups."""
        series = self._series
        self._have_all_points = bool(self._has_points.all())
        if len(series.series_pairs) == 1:
            self._groups = [np.zeros(1, np.int64)]
            return 1
        sums = self._collected.sums
        order = sums.order if sums is not None else series.order(range(len(series.series_pairs)))
        each = self._plan.sub.aggregator == NONE
        self._is_ordered = isinstance(order, range)
        if self._is_ordered and sums is not None:
            self._groups = sums.groups()
            return len(self._groups)
        series_pairs = series.series_pairs if self._is_ordered else [series.series_pairs[number] for number in order]
        places = grouped(series_pairs, series.widths, series.group_by, each=each)
        ordered = None if self._is_ordered else np.array(order, np.int64)
        self._groups = places if ordered is None else [ordered[group] for group in places]
        if self._groups and sums is None:
            points = np.where(self._has_points, np.diff(self._collected.series.bounds), 0)[np.concatenate(self._groups)]
            firsts = np.cumsum([0, *map(len, self._groups[:-1])])
            self._sizes = np.add.reduceat(points, firsts).tolist()
        return len(self._groups)

    def _merge(self, groups: Sequence[Int64]) -> None:
        """Merge some groups. A group without points and annotations is dropped."""
        query, sub, collected = self._query, self._plan.sub, self._collected
        scan = collected.scan or self._plan.scan
        alive = groups if self._have_all_points else [group[self._has_points[group]] for group in groups]
        notes = [self._notes(group) for group in groups] if collected.annotations else [[]] * len(groups)
        found = [place for place in range(len(groups)) if len(alive[place]) or notes[place]]
        series = self._series
        alive = [alive[place] for place in found]
        common = common_tags_of(series.series_pairs, alive, series.widths)
        summed: Sequence[Points | None] = [None] * len(alive)
        if len(alive) > 1 and not sub.rate and collected.sums is None and all(map(len, alive)):
            summed = summed_groups(collected.series, alive, sub.aggregator, scan)
        for place, members, tags, points in zip(found, alive, common, summed, strict=True):
            if collected.sums is not None:
                merged = MergedPoints(collected.sums.points_of(int(members[0])), 0)
            elif points is not None:
                merged = MergedPoints(points, 0)
            else:
                chosen = Chosen(collected.series, members)
                merged = merge_chosen(chosen, sub, scan, quirks=query.quirks, check=check_cancelled)
            ordered = in_order(notes[place], quirks=query.quirks) if notes[place] else None
            self._found.append(_UnnamedGroup(members, tags, merged, ordered))
            self._tagks.update(dict.fromkeys(tags.tags))
            self._tagks.update(dict.fromkeys(tags.aggregated))
            self._tagvs.update(dict.fromkeys(tags.tags.values()))

    def _notes(self, group: Int64) -> list[Annotation]:
        """Return the annotations of the series of a group."""
        return [note for number in group.tolist() for note in self._collected.annotations.get(number, ())]

    async def look_up_names(self) -> None:
        """Look up the names of the groups' tags. Raise StoreError."""
        self._key_names = await self._series.names(Kind.TAGK, list(self._tagks))
        self._value_names = await self._series.names(Kind.TAGV, list(self._tagvs))
        self.resolved += len(self._tagks) + len(self._tagvs)

    @property
    def members(self) -> list[Int64]:
        """The numbers of the series of each group that have points."""
        return [one.numbers for one in self._found]

    def groups(self, metric: str) -> list[Group]:
        """Return the groups with their names."""
        keys, values = self._key_names, self._value_names
        with_tsuids, tsuid, every = self._query.show_tsuids, self._series.tsuid, self._series.series_pairs
        return [
            Group(
                metric if len(one.numbers) else "",
                {keys[tagk]: values[tagv] for tagk, tagv in one.common.tags.items()},
                [keys[tagk] for tagk in one.common.aggregated],
                tsuids=[tsuid(every[number]) for number in one.numbers.tolist()] if with_tsuids else (),
                points=one.merged.points,
                annotations=one.notes,
                tag_uids=one.common.tags,
                aggregate_tag_uids=one.common.aggregated,
                interpolated=one.merged.interpolated,
            )
            for one in self._found
        ]


def sub_answer_of(
    plan: Plan,
    groups: list[Group],
    read: ReadCounts,
    *,
    table: str = "raw",
    stats: dict[str, Any],
    members: Sequence[Int64] = (),
) -> SubAnswer:
    """Return the answer with its groups and statistics; `table` is the one that was read."""
    return SubAnswer(
        plan.sub,
        groups,
        filter_tagks=plan.selection.filter_tagks,
        rollup_table=table,
        warnings=[*read.warnings, *plan.selection.series.warnings()],
        duplicates=read.duplicates,
        stats=stats,
        members=members,
    )


def counts_of(read: ReadCounts, resolved: int) -> dict[str, Any]:
    """Return the counts of a read under OpenTSDB's names."""
    return {
        "rowsPreFilter": read.rows_read,
        "rowsPostFilter": read.rows_wanted,
        "dpsPreFilter": read.points,
        "dpsPostFilter": read.points,
        "bytesFetched": read.size,
        "uidPairsResolved": resolved,
    }


def answer_bytes(groups: Iterable[Group]) -> int:
    """Return the bytes of groups in an answer."""
    return sum(len(group.points.times) * ANSWER_BYTES + GROUP_BYTES for group in groups)
