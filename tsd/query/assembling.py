"""The series of a sub query → its groups, merged, in order and with names (query.md §1 steps 4, 6 and 7; §8)."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tsd.codec.annotation import Annotation
from tsd.codec.rowkey import Layout, salt_of
from tsd.codec.uid import Kind
from tsd.query.answers import Group
from tsd.query.gathering import Gathered
from tsd.query.groups import CommonTags, common_tags, grouped
from tsd.query.merge import Merged, merge
from tsd.query.model import Query
from tsd.query.names import NONE
from tsd.query.notes import in_order
from tsd.query.plan import Plan
from tsd.query.points import Points
from tsd.query.ranges import ScanRange
from tsd.query.rate import Rates, rate
from tsd.query.selecting import by_key
from tsd.uids import Uids

SLICE_POINTS = 500_000  # merged in one go
GROUP_POINTS = 50  # that to merge a group takes the time of, beside its points


class _Found(NamedTuple):
    """A group, before its tags have names."""

    members: list[bytes]  # tag pairs of its series with points, in order
    common: CommonTags
    merged: Merged
    notes: list[Annotation] | None


class Assembly:
    """The groups of one sub query, as they come together: `sort_out` says which they are, `slices` are
    worked off, their names are learnt, and then they are there. All but the names may be done in a thread."""

    def __init__(
        self,
        query: Query,
        plan: Plan,
        pairs: Sequence[bytes],
        gathered: Gathered,
        layout: Layout,
        check: Callable[[], None],
    ) -> None:
        """`pairs` are the joined tag pairs of each series, by number; `check` is called often and raises what is to end
        the work."""
        self._check = check
        self._query = query
        self._plan = plan
        self._pairs = pairs
        self._gathered = gathered
        self._layout = layout
        self._groups: list[list[int]] = []
        self._found: list[_Found] = []
        self._key_names: dict[bytes, str] = {}
        self._value_names: dict[bytes, str] = {}
        self.resolved = 0  # UIDs whose names were asked for

    def slices(self) -> Iterator[tuple[int, Callable[[], None]]]:
        """The work there is, in parts: about how many points each has, and what does it. One after the other."""
        counts, series = self._gathered.counts, self._gathered.series
        part: list[list[int]] = []
        size = 0
        for group in self._groups:
            part.append(group)
            size += GROUP_POINTS + sum([len(series[number].times) for number in group if counts[number]])
            if size >= SLICE_POINTS:
                yield size, lambda part=part: self._merge(part)  # type: ignore[misc]
                part, size = [], 0
        if part:
            yield size, lambda: self._merge(part)

    def sort_out(self) -> int:
        """Find the numbers of each group's series, all in order; how many groups there are."""
        layout, pairs, metric = self._layout, self._pairs, self._plan.metric or b""
        salts = [b""] * len(pairs)
        if layout.salt_width:
            salts = [salt_of(metric, one, layout.salt_width, layout.salt_buckets) for one in pairs]
        order = by_key(pairs, salts)
        each = self._plan.sub.aggregator == NONE
        places = grouped([pairs[number] for number in order], layout.widths, self._plan.group_by, each=each)
        self._groups = [[order[place] for place in group] for group in places]
        return len(self._groups)

    def _merge(self, groups: Sequence[Sequence[int]]) -> None:
        """Merge some groups. One whose rows held neither points nor notes is none."""
        query, sub, gathered = self._query, self._plan.sub, self._gathered
        scan = gathered.scan or self._plan.scan
        for group in groups:
            alive = [number for number in group if gathered.counts[number]]
            notes = [note for number in group for note in gathered.notes.get(number, ())] if gathered.notes else []
            if not alive and not notes:
                continue
            points = [gathered.series[number] for number in alive]
            rates = self._rates(points, scan) if sub.rate else None
            merged = merge(
                rates or points, sub.aggregator, scan, rate=sub.rate, corrected=query.corrected, check=self._check
            )
            members = [self._pairs[number] for number in alive]
            ordered = in_order(notes, corrected=query.corrected) if notes else None
            self._found.append(_Found(members, common_tags(members, self._layout.widths), merged, ordered))

    def _rates(self, series: Sequence[Points], scan: ScanRange) -> list[Rates]:
        options, corrected = self._plan.sub.rate_options, self._query.corrected
        return [rate(points, options, scan.start_ms, corrected=corrected) for points in series]

    async def learn(self, uids: Uids, nameless: dict[bytes, None]) -> None:
        """Look up the names of the groups' tags; UIDs that have none go into `nameless`. Raises StoreError."""
        tagks = dict.fromkeys(uid for one in self._found for uid in (*one.common.tags, *one.common.aggregated))
        tagvs = dict.fromkeys(uid for one in self._found for uid in one.common.tags.values())
        self._key_names = await names_of(uids, Kind.TAGK, list(tagks), nameless)
        self._value_names = await names_of(uids, Kind.TAGV, list(tagvs), nameless)
        self.resolved += len(tagks) + len(tagvs)

    def groups(self, metric: str) -> list[Group]:
        """The groups with their names."""
        keys, values = self._key_names, self._value_names
        with_tsuids = self._query.show_tsuids
        return [
            Group(
                metric if one.members else "",
                {keys[tagk]: values[tagv] for tagk, tagv in one.common.tags.items()},
                [keys[tagk] for tagk in one.common.aggregated],
                tsuids=[(self._plan.metric or b"") + pairs for pairs in one.members] if with_tsuids else (),
                points=one.merged.points,
                annotations=one.notes,
                tag_uids=one.common.tags,
                aggregate_tag_uids=one.common.aggregated,
                interpolated=one.merged.interpolated,
            )
            for one in self._found
        ]


async def names_of(uids: Uids, kind: Kind, wanted: Sequence[bytes], nameless: dict[bytes, None]) -> dict[bytes, str]:
    """The name of each UID; of one without name the UID itself in hex, and it is noted."""
    found: dict[bytes, str] = {}
    for uid, name in (await uids.names(kind, wanted)).items():
        if isinstance(name, bytes):
            found[uid] = name.decode("latin-1")
        else:
            found[uid] = uid.hex().upper()
            nameless[uid] = None
    return found
