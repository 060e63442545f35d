"""Requests for series → conditions on the UIDs in row keys, and the series that match them (docs/compat/query.md §4,
§6).

Each series is tested once, and each name of a tag value is looked up once.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, islice
from operator import lt
from typing import NamedTuple

import numpy as np
import trio
from numpy.typing import NDArray

from tsd.codec.names import Kind, Widths, show_uid
from tsd.codec.opentsdb.rowkey import KeyLayout, Series, salt_of, split_tsuid
from tsd.codec.points import Bool
from tsd.codec.text import encode_name
from tsd.errors import BadLine, BadQuery, NoSuchName, TsdError, UnknownName
from tsd.tables.filters import LITERAL_OR, Filter, Matcher, matcher_of
from tsd.tables.opentsdb.tag_table import (
    FAILED,
    PASSED,
    UNTESTED,
    TagColumn,
    TagTable,
    TagTests,
    uid_bytes,
)
from tsd.tables.opentsdb.uids import Uids
from tsd.tables.quirks import Quirks
from tsd.tables.reading import UNWANTED, Places, SeriesRequest

_HEX = re.compile("[0-9a-fA-F]*")
YIELD_NAMES = 16  # names tested between two trio checkpoints: a pattern may be slow
YIELD_S = 0.002  # time for testing names between two trio checkpoints
NAMES_AT_ONCE = 1000  # looked up without a checkpoint
FEW_NEW = 32  # new series that are matched one by one, at most
LARGE_TABLE = 20_000  # series whose columns are made in a thread
KEPT_REQUESTS, SHORT_REQUEST = 1000, 300  # resolved requests that are kept, and the characters of each
SHOWN_NAMELESS = 20  # most UIDs without a name in the warnings of one answer


@dataclass(frozen=True)
class Condition:
    """The condition on the value of one tag name: all filters on that name combined."""

    tagk: bytes
    literals: frozenset[bytes] | None = None  # allowed UIDs of the value; None: any
    matchers: tuple[Matcher, ...] = ()  # the name of the value must match all of them
    required: bool = True  # the series must have the tag name
    absent: bool = False  # the series must not have the tag name


class ResolvedRequest(NamedTuple):
    """A request in UIDs."""

    metric: bytes | None  # None: TSUIDs of a metric that does not exist
    name: str  # of the metric
    conditions: tuple[Condition, ...] = ()  # by ascending UID of their tag name
    group_by: tuple[bytes, ...] = ()  # UIDs of tag names, ascending
    filter_tagks: tuple[bytes, ...] | None = None  # UIDs, ascending
    series_pairs: tuple[bytes, ...] | None = None  # the only series to read, by their joined tag pairs
    explicit: bool = False  # series have the tag names of the conditions and no others
    fuzzy: bool = False  # reproduce the side effects of OpenTSDB's filter for explicit tags (§6.4)
    impossible: bool = False  # no series can match

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read."""
        return self.metric is None or self.impossible


class FilterRules(NamedTuple):
    """How filters are resolved."""

    expansion_limit: int = 4096
    skip_unresolved_tagvs: bool = False
    fuzzy_filter: bool = True


class FilterResolver:
    """Resolves requests with one UID table."""

    def __init__(self, uids: Uids, widths: Widths, rules: FilterRules) -> None:
        self._uids = uids
        self._widths = widths
        self._rules = rules
        self._kept: dict[SeriesRequest, _KeptRequest] = {}  # the oldest first
        self._kept_at = uids.changes

    async def resolve(self, request: SeriesRequest) -> ResolvedRequest:
        """Resolve names and filters. Raise BadQuery in OpenTSDB's words, StoreError.

        Clients repeat their queries: short ones are kept until names leave the caches.
        """
        if request.tsuids:
            return await self._by_tsuids(request)
        key = request if not request.delete else request._replace(delete=False)
        if (changes := self._uids.changes) != self._kept_at:
            self._kept_at = changes
            self._kept.clear()
        if (kept := self._kept.get(key)) is not None:
            self._uids.count_hits(kept.names)
            return kept.resolved
        resolved = await self._by_metric(request)
        if changes == self._uids.changes == self._kept_at and self._is_short(request):
            self._kept[key] = _KeptRequest(resolved, self._names_in(request))
            if len(self._kept) > KEPT_REQUESTS:
                del self._kept[next(iter(self._kept))]
        return resolved

    def _is_short(self, request: SeriesRequest) -> bool:
        """Return whether to keep a request. A name without a UID may get one, so it must be looked up each time."""
        size = len(request.metric) + sum(len(each.expression) for each in request.filters)
        return size <= SHORT_REQUEST and not self._rules.skip_unresolved_tagvs

    def _names_in(self, request: SeriesRequest) -> Mapping[Kind, int]:
        """Return how many names of each kind are looked up for a request."""
        literals = [len(matcher_of(each).literals) for each in request.filters if each.type == LITERAL_OR]
        tagvs = sum(count for count in literals if count <= self._rules.expansion_limit)
        return {Kind.METRIC: 1, Kind.TAGK: len(request.filters), Kind.TAGV: tagvs}

    async def _by_metric(self, request: SeriesRequest) -> ResolvedRequest:
        """Resolve a request for a metric and filters."""
        metric = await self._uid(Kind.METRIC, request.metric)
        resolved = [
            _ResolvedFilter(await self._uid(Kind.TAGK, each.tagk), each, await self._requirement(each, request.quirks))
            for each in request.filters
        ]
        resolved.sort(key=lambda one: one.tagk)
        tagks = tuple(dict.fromkeys(one.tagk for one in resolved))
        explicit = request.explicit_tags and bool(request.filters)  # without filters no series could match
        conditions = tuple(_conditions(resolved, forgets_literals=request.quirks.forgets_literals))
        return ResolvedRequest(
            metric,
            request.metric,
            conditions,
            group_by=tuple(dict.fromkeys(one.tagk for one in resolved if one.filter.group_by)),
            filter_tagks=tagks or None,
            explicit=explicit,
            fuzzy=explicit and request.fuzzy_filter and self._rules.fuzzy_filter and request.quirks.fuzzy_filter,
            impossible=any(one.required and one.absent for one in conditions),
        )

    async def _uid(self, kind: Kind, name: str) -> bytes:
        """Return the UID of a name that must have one."""
        found = await self._find(kind, [name])
        uid = found[name]
        if isinstance(uid, bytes):
            return uid
        raise UnknownName(kind.value, name)

    async def _find(self, kind: Kind, names: Iterable[str]) -> dict[str, bytes | None]:
        """Return the UIDs of names, None for a name without one. Raise BadQuery for a damaged UID, StoreError."""
        encoded: dict[str, bytes | None] = {}
        for name in names:
            try:
                encoded[name] = encode_name(name)
            except BadLine:  # no stored name has such characters
                encoded[name] = None
        found = await self._uids.find(kind, [name for name in encoded.values() if name])
        uids: dict[str, bytes | None] = {}
        for name, text in encoded.items():
            uid = found.get(text) if text else None
            if isinstance(uid, TsdError) and not isinstance(uid, NoSuchName):
                raise BadQuery(str(uid)) from uid
            uids[name] = uid if isinstance(uid, bytes) else None
        return uids

    async def _requirement(self, each: Filter, quirks: Quirks) -> frozenset[bytes] | Matcher:
        """Return the requirement of a filter: a set of allowed UIDs, or a test of the name."""
        test = matcher_of(each, loose_wildcards=quirks.loose_wildcards)
        if each.type != LITERAL_OR or len(test.literals) > self._rules.expansion_limit:
            return test
        uids = await self._find(Kind.TAGV, test.literals)
        if not self._rules.skip_unresolved_tagvs:
            for name, uid in uids.items():
                if uid is None:
                    raise UnknownName(Kind.TAGV.value, name)
        return frozenset(uid for uid in uids.values() if uid is not None)

    async def _by_tsuids(self, request: SeriesRequest) -> ResolvedRequest:
        """Resolve a request for single series: filters test their names, which need not exist."""
        quirks = request.quirks
        series = [self._series(text) for text in request.tsuids]
        first = series[0].metric
        for other in series:
            if other.metric != first:
                shown = f"[{show_uid(first)}] [{show_uid(other.metric)}]"
                # OpenTSDB reads global annotations first, and then calls this a bad request.
                status = 500 if quirks.mistakes_as_500 and not request.global_annotations else 400
                raise BadQuery(f"One or more TSUIDs did not share the same metric {shown}", status=status)
        tagks = await self._find(Kind.TAGK, [each.tagk for each in request.filters])
        conditions = []
        impossible = False
        for each in request.filters:
            test = matcher_of(each, loose_wildcards=quirks.loose_wildcards)
            tagk = tagks[each.tagk]
            if test.passes_all and quirks.tsuid_filters_pass_all:
                continue
            required = not each.type.startswith("not_")
            if tagk is not None:
                conditions.append(Condition(tagk, matchers=(test,), required=required, absent=test.wants_no_key))
            impossible |= tagk is None and required
        name = (await self._uids.names(Kind.METRIC, [first]))[first]
        known = isinstance(name, bytes)
        return ResolvedRequest(
            first if known else None,
            name.decode("latin-1") if isinstance(name, bytes) else "",
            tuple(conditions),
            filter_tagks=() if request.filters else None,
            series_pairs=tuple(dict.fromkeys(b"".join(tagk + tagv for tagk, tagv in one.pairs) for one in series)),
            impossible=impossible,
        )

    def _series(self, text: str) -> Series:
        try:
            if not text:
                raise BadQuery("UID was empty")
            return split_tsuid(self._widths, bytes.fromhex("0" * (len(text) % 2) + text))
        except ValueError as exc:
            metric = text[: 2 * self._widths.metric]  # OpenTSDB checks the metric first
            shown = text if _HEX.fullmatch(metric) else metric
            raise BadQuery(f"contains illegal character for hexBinary: {shown}") from exc
        except BadLine as exc:
            raise BadQuery(str(exc)) from exc


class _KeptRequest(NamedTuple):
    """A resolved request, and how many names of each kind were looked up for it."""

    resolved: ResolvedRequest
    names: Mapping[Kind, int]


class _ResolvedFilter(NamedTuple):
    """A filter in UIDs."""

    tagk: bytes
    filter: Filter
    requirement: frozenset[bytes] | Matcher  # allowed UIDs of the value, or a test of its name


def _conditions(resolved: Sequence[_ResolvedFilter], *, forgets_literals: bool) -> Iterable[Condition]:
    """Combine filters by tag name, those of one name in the order of the request.

    `forgets_literals`: of several literal filters on one name OpenTSDB unites the literals if the name has the lowest
    UID of all; for other names each filter discards the literals before it (§6.3).
    """
    by_tagk: dict[bytes, list[frozenset[bytes] | Matcher]] = {}
    for one in resolved:
        by_tagk.setdefault(one.tagk, []).append(one.requirement)
    for place, (tagk, requirements) in enumerate(by_tagk.items()):
        lacking = [not isinstance(requirement, frozenset) and requirement.wants_no_key for requirement in requirements]
        condition = Condition(tagk, required=not all(lacking), absent=any(lacking))
        for requirement in requirements:
            if place and forgets_literals:
                condition = replace(condition, literals=None)
            if not isinstance(requirement, frozenset):
                condition = replace(condition, matchers=(*condition.matchers, requirement))
            else:
                before = requirement if condition.literals is None else condition.literals
                condition = replace(
                    condition, literals=before | requirement if forgets_literals else before & requirement
                )
        yield condition


def literal_product(conditions: Sequence[Condition]) -> Mapping[bytes, bytes]:
    """Return the lowest literal of each tag name with literals, if two or more names have several; else nothing.

    OpenTSDB's filter for explicit tags then finds only series that differ from these in at most one name (§6.4).
    """
    several = [one for one in conditions if one.literals and len(one.literals) > 1]
    if len(several) < 2:
        return {}
    return {one.tagk: min(one.literals) for one in conditions if one.literals}


class SeriesMatcher:
    """Matches the series of one request: by the UIDs in their keys, and by names where filters need names."""

    def __init__(
        self, resolved: ResolvedRequest, layout: KeyLayout, uids: Uids, tag_tests: TagTests | None = None
    ) -> None:
        """`tag_tests`: results of earlier requests, used by `find`."""
        self._resolved = resolved
        self._tag_tests = tag_tests or TagTests()
        self._layout = layout
        self._uids = uids
        self._listed = None if resolved.series_pairs is None else frozenset(resolved.series_pairs)
        self._product = literal_product(resolved.conditions) if resolved.fuzzy else {}
        self._by_name = [one for one in resolved.conditions if any(not test.passes_all for test in one.matchers)]
        self._passes: dict[Condition, dict[bytes, bool]] = {one: {} for one in self._by_name}
        self._nameless: dict[bytes, None] = {}  # UIDs without a name
        self._malformed = 0  # row keys that are not valid for a series
        self.widths = layout.widths
        self.group_by = resolved.group_by
        self.numbers: dict[bytes, int] = {}
        self.series_pairs: list[bytes] = []  # by number
        self.resolved = 0
        self.required_tagks: Sequence[bytes] | None = None
        if self._listed is None and not (self.excludes or resolved.is_empty):
            self.required_tagks = [one.tagk for one in resolved.conditions if one.required]

    @property
    def tests_names(self) -> bool:
        """Whether some condition tests names."""
        return bool(self._by_name)

    @property
    def excludes(self) -> bool:
        """Whether the conditions may exclude a series that has all required tag names."""
        conditions = self._resolved.conditions
        return (
            self.tests_names
            or self._resolved.explicit
            or any(one.literals is not None or one.absent for one in conditions)
        )

    async def find(self, table: TagTable) -> Places:
        """Return the rows of all series of a table that match. Raise BadQuery, StoreError.

        Names are tested once for each distinct tag value, and cached for later requests.
        """
        if self._resolved.series_pairs is not None:
            return table.find(self._resolved.series_pairs)
        resolved, drops = self._resolved, self._uids.drops
        key = resolved.conditions, resolved.explicit, resolved.fuzzy, drops
        found = table.result(key)
        if found is None:
            columns = await self._columns(table)
            rows = self._by_uids(table, columns)
            for condition in self._by_name:
                column = columns[condition.tagk]
                rows &= await self._by_names(condition, column, rows, self._known(condition, column, drops))
            found = np.flatnonzero(rows)
            if not self._nameless:  # the next request reports these, too
                table.remember(key, found)
        return found

    async def _columns(self, table: TagTable) -> dict[bytes, TagColumn]:
        """Return the values of the conditions' tag names."""
        tagks = [one.tagk for one in self._resolved.conditions]
        if table.count > LARGE_TABLE and not all(map(table.has_column, tagks)):
            return await trio.to_thread.run_sync(lambda: {tagk: table.column(tagk) for tagk in tagks})
        return {tagk: table.column(tagk) for tagk in tagks}

    def _by_uids(self, table: TagTable, columns: Mapping[bytes, TagColumn]) -> Bool:
        """Return which series match all conditions on UIDs, as `_may_match` does for one."""
        rows = np.ones(table.count, np.bool_)
        for one in self._resolved.conditions:
            codes = columns[one.tagk].codes
            if one.required:
                rows &= codes >= 0
            if one.absent:
                rows &= codes < 0
            elif one.literals is not None:
                allowed = np.zeros(len(columns[one.tagk].values) + 1, np.bool_)
                allowed[-1] = True  # a series without the name, if that is not required
                places = [columns[one.tagk].code_of(uid) for uid in one.literals]
                allowed[[place for place in places if place >= 0]] = True
                rows &= allowed[codes]
        if self._resolved.explicit:
            rows &= table.tag_counts() == sum(not one.absent for one in self._resolved.conditions)
        if self._product:
            differing = np.zeros(table.count, np.int64)
            for tagk, lowest in self._product.items():
                differing += columns[tagk].codes != columns[tagk].code_of(lowest)
            rows &= differing < 2
        return rows

    def _known(self, condition: Condition, column: TagColumn, drops: int) -> NDArray[np.int8]:
        """Return the results of earlier requests for a condition on some values, to be changed in place."""
        key = self._resolved.metric, condition.tagk, condition.matchers, drops
        return self._tag_tests.states(key, column.values)

    async def _by_names(self, condition: Condition, column: TagColumn, rows: Bool, states: NDArray[np.int8]) -> Bool:
        """Return which series lack a tag name or have a value whose name matches; only `rows` are tested. `states` has
        earlier results by value, and gets those of untested values."""
        wanted = np.zeros(len(states) + 1, np.bool_)
        wanted[column.codes[rows]] = True
        places = np.flatnonzero(wanted[:-1] & (states == UNTESTED))
        for at in range(0, len(places), NAMES_AT_ONCE):
            part = places[at : at + NAMES_AT_ONCE]
            uids = uid_bytes(column.values[part], self.widths.tagv)
            passes = await self._test(condition, uids)
            named = [uid not in self._nameless for uid in uids]
            found = np.where([passes[uid] for uid in uids], PASSED, FAILED)
            states[part] = np.where(named, found, UNTESTED)  # those without a name are looked up each time
        allowed = np.append(states == PASSED, True)
        return allowed[column.codes]

    def accept(self, series_pairs: Iterable[bytes]) -> None:
        """Number series that match."""
        for one in series_pairs:
            if one not in self.numbers:
                self.numbers[one] = len(self.series_pairs)
                self.series_pairs.append(one)

    async def match(self, series_pairs: Iterable[bytes]) -> None:
        """Match new series and number those that match. Raise BadQuery, StoreError."""
        new = sorted([one for one in series_pairs if one not in self.numbers])  # numbers in the order of rows
        if len(new) > FEW_NEW and self._listed is None:
            await self._match_many(new)
        elif new:
            await self._match_few(new)

    async def _match_many(self, new: Sequence[bytes]) -> None:
        """Match new series by arrays."""
        sizes = set(map(len, new))
        for size in sizes:
            some = new if len(sizes) == 1 else [one for one in new if len(one) == size]
            if not size or size % self.widths.pair:
                await self._match_few(some)
                continue
            if self._resolved.conditions:
                self.numbers.update(dict.fromkeys(some, UNWANTED))
                table = TagTable({size: np.frombuffer(b"".join(some), f"S{size}")}, self.widths)
                columns = await self._columns(table)
                rows = self._by_uids(table, columns)
                for condition in self._by_name:
                    column = columns[condition.tagk]
                    rows &= await self._by_names(condition, column, rows, np.zeros(len(column.values), np.int8))
                some = list(compress(some, rows.tolist()))
            first = len(self.series_pairs)
            self.numbers.update(zip(some, range(first, first + len(some)), strict=True))
            self.series_pairs += some

    async def _match_few(self, new: Sequence[bytes]) -> None:
        """Match new series one by one."""
        candidates = []
        for one in new:
            self.numbers[one] = UNWANTED
            tags = self._tags(one)
            if tags is not None and self._may_match(one, tags):
                candidates.append((one, tags))
        for condition in self._by_name:
            passes = await self._test(
                condition, [tags[condition.tagk] for _, tags in candidates if condition.tagk in tags]
            )
            candidates = [
                (one, tags) for one, tags in candidates if condition.tagk not in tags or passes[tags[condition.tagk]]
            ]
        for one, _ in candidates:
            self.numbers[one] = len(self.series_pairs)
            self.series_pairs.append(one)

    def _tags(self, pairs: bytes) -> dict[bytes, bytes] | None:
        """Split joined pairs; count those that cannot be split and return None."""
        width, tagk = self.widths.pair, self.widths.tagk
        if len(pairs) % width:
            self._malformed += 1
            return None
        return {pairs[at : at + tagk]: pairs[at + tagk : at + width] for at in range(0, len(pairs), width)}

    def _may_match(self, pairs: bytes, tags: dict[bytes, bytes]) -> bool:
        """Return whether a series matches all conditions on UIDs."""
        if self._listed is not None and pairs not in self._listed:
            return False
        conditions = self._resolved.conditions
        for one in conditions:
            value = tags.get(one.tagk)
            if value is None:
                if one.required:
                    return False
            elif one.absent or (one.literals is not None and value not in one.literals):
                return False
        if self._resolved.explicit and len(tags) != sum(not one.absent for one in conditions):
            return False
        return not self._product or sum(tags[tagk] != lowest for tagk, lowest in self._product.items()) < 2

    async def _test(self, condition: Condition, values: Sequence[bytes]) -> dict[bytes, bool]:
        """Return by UID whether the names of tag values match."""
        passes = self._passes[condition]
        unknown = [uid for uid in dict.fromkeys(values) if uid not in passes]
        if unknown:
            names = await self._uids.names(Kind.TAGV, unknown)
            self.resolved += len(unknown)
            yielded = trio.current_time()
            for place, uid in enumerate(unknown):
                if place % YIELD_NAMES == 0 and trio.current_time() - yielded > YIELD_S:
                    await trio.lowlevel.checkpoint()
                    yielded = trio.current_time()
                name = names[uid]
                if isinstance(name, bytes):
                    text = name.decode("latin-1")
                    passes[uid] = all(test.matches(text) for test in condition.matchers)
                else:
                    self._nameless[uid] = None
                    passes[uid] = False
        return passes

    async def names(self, kind: Kind, ids: Sequence[bytes]) -> dict[bytes, str]:
        """Return the names of UIDs; for a UID without a name, the UID in hex. Raise StoreError."""
        found: dict[bytes, str] = {}
        for uid, name in (await self._uids.names(kind, ids)).items():
            if isinstance(name, bytes):
                found[uid] = name.decode("latin-1")
            else:
                found[uid] = show_uid(uid)
                self._nameless[uid] = None
        return found

    def order(self, numbers: Iterable[int]) -> Sequence[int]:
        """Return series in order of their row keys: by salt, then by tag pairs."""
        layout, metric, every = self._layout, self._resolved.metric or b"", self.series_pairs
        if not layout.salt_width:
            if isinstance(numbers, range) and all(map(lt, every, islice(every, 1, None))):  # all of one hour, as read
                return numbers
            return sorted(numbers, key=every.__getitem__)
        width, buckets = layout.salt_width, layout.salt_buckets
        return sorted(numbers, key=lambda number: (salt_of(metric, every[number], width, buckets), every[number]))

    def tsuid(self, pairs: bytes) -> bytes:
        """Return the TSUID of a series."""
        return (self._resolved.metric or b"") + pairs

    def warnings(self) -> list[str]:
        """Return warnings about UIDs without names and about malformed row keys."""
        found = [f"UID {show_uid(uid)} of a tag has no name" for uid in list(self._nameless)[:SHOWN_NAMELESS]]
        if self._malformed:
            found.append(f"{self._malformed} malformed row keys (tsd fsck)")
        return found
