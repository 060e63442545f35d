"""A sub query → which rows answer it: names resolved to UIDs, filters to conditions on the bytes of row keys
(query.md §4, §6)."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tsd.codec.rowkey import Layout, Series
from tsd.codec.tsuid import show_uid, split_tsuid
from tsd.codec.uid import Kind
from tsd.codec.words import encode_name
from tsd.errors import BadLine, BadQuery, NoSuchName, TsdError
from tsd.query.filters import LITERAL_OR, Matcher, matcher_of
from tsd.query.model import Filter, Query, SubQuery
from tsd.query.ranges import ScanRange, scan_range
from tsd.uids import Uids

_HEX = re.compile("[0-9a-fA-F]*")


@dataclass(frozen=True)
class Condition:
    """What a series' value of one tag name must be. All filters on that name together."""

    tagk: bytes
    literals: frozenset[bytes] | None = None  # UIDs of which it must be one; None: any
    matchers: tuple[Matcher, ...] = ()  # all of which its name must pass
    required: bool = True  # whether the series must have the tag name
    absent: bool = False  # whether it must not


class Plan(NamedTuple):
    """What to read for a sub query."""

    sub: SubQuery
    metric: bytes | None  # UID; None: a TSUID query of a metric that there is not
    scan: ScanRange
    conditions: tuple[Condition, ...] = ()  # by ascending UID of their tag name
    group_by: tuple[bytes, ...] = ()  # UIDs of tag names, ascending
    filter_tagks: tuple[bytes, ...] | None = None  # UIDs, ascending
    pairs: tuple[bytes, ...] | None = None  # the only series to read, by their joined tag pairs
    explicit: bool = False  # series have the tag names of the conditions and no others
    fuzzy: bool = False  # with the side effects of OpenTSDB's filter for that (§6.4)
    impossible: bool = False  # no series can pass
    warnings: tuple[str, ...] = ()


class PlanRules(NamedTuple):
    """How filters are resolved."""

    expansion_limit: int = 4096
    skip_unresolved_tagvs: bool = False
    fuzzy_filter: bool = True


class Planner:
    """Plans sub queries over one UID table."""

    def __init__(self, uids: Uids, layout: Layout, rules: PlanRules) -> None:
        self._uids = uids
        self._layout = layout
        self._rules = rules

    async def plan(self, query: Query, sub: SubQuery) -> Plan:
        """The plan of one sub query. Raises BadQuery in OpenTSDB's words, StoreError."""
        scan = scan_range(query.start_ms, query.end_ms, sub.downsample, corrected=query.corrected)
        if sub.tsuids:
            return await self._by_tsuids(query, sub, scan)
        metric = await self._uid(Kind.METRIC, sub.metric or "")
        resolved = [
            _Resolved(await self._uid(Kind.TAGK, each.tagk), each, await self._demand(each, query))
            for each in sub.filters
        ]
        resolved.sort(key=lambda one: one.tagk)
        tagks = tuple(dict.fromkeys(one.tagk for one in resolved))
        explicit = sub.explicit_tags and bool(sub.filters)  # without any no series could pass: every one has a tag
        conditions = tuple(_conditions(resolved, corrected=query.corrected))
        return Plan(
            sub,
            metric,
            scan,
            conditions,
            group_by=tuple(dict.fromkeys(one.tagk for one in resolved if one.filter.group_by)),
            filter_tagks=tagks or None,
            explicit=explicit,
            fuzzy=explicit and sub.use_fuzzy_filter and self._rules.fuzzy_filter and not query.corrected,
            impossible=any(one.required and one.absent for one in conditions),
        )

    async def _uid(self, kind: Kind, name: str) -> bytes:
        """The UID of a name that must have one."""
        found = await self._find(kind, [name])
        uid = found[name]
        if isinstance(uid, bytes):
            return uid
        raise BadQuery(f"No such name for '{kind.value}': '{name}'")

    async def _find(self, kind: Kind, names: Iterable[str]) -> dict[str, bytes | None]:
        """The UIDs of names, None where there is none. Raises BadQuery for a damaged UID, StoreError."""
        encoded: dict[str, bytes | None] = {}
        for name in names:
            try:
                encoded[name] = encode_name(name)
            except BadLine:  # no name in the store has such characters
                encoded[name] = None
        found = await self._uids.find(kind, [name for name in encoded.values() if name])
        uids: dict[str, bytes | None] = {}
        for name, text in encoded.items():
            uid = found.get(text) if text else None
            if isinstance(uid, TsdError) and not isinstance(uid, NoSuchName):
                raise BadQuery(str(uid)) from uid
            uids[name] = uid if isinstance(uid, bytes) else None
        return uids

    async def _demand(self, each: Filter, query: Query) -> frozenset[bytes] | Matcher:
        """What a filter demands: one of some UIDs, or that a name matches."""
        test = matcher_of(each, corrected=query.corrected)
        if each.type != LITERAL_OR or len(test.literals) > self._rules.expansion_limit:
            return test
        uids = await self._find(Kind.TAGV, test.literals)
        if not self._rules.skip_unresolved_tagvs:
            for name, uid in uids.items():
                if uid is None:
                    raise BadQuery(f"No such name for '{Kind.TAGV.value}': '{name}'")
        return frozenset(uid for uid in uids.values() if uid is not None)

    async def _by_tsuids(self, query: Query, sub: SubQuery, scan: ScanRange) -> Plan:
        """The plan of a query for single series: filters test them by name, and need not be known."""
        series = [self._series(text) for text in sub.tsuids]
        first = series[0].metric
        for other in series:
            if other.metric != first:
                shown = f"[{show_uid(first)}] [{show_uid(other.metric)}]"
                later = query.global_annotations  # OpenTSDB reads those first, and calls this a bad request then
                status = 400 if query.corrected or later else 500
                raise BadQuery(f"One or more TSUIDs did not share the same metric {shown}", status=status)
        tagks = await self._find(Kind.TAGK, [each.tagk for each in sub.filters])
        conditions = []
        impossible = False
        for each in sub.filters:
            test = matcher_of(each, corrected=query.corrected)
            tagk = tagks[each.tagk]
            if test.passes_all and not query.corrected:
                continue  # nor does OpenTSDB look at these here: whoever has no such tag passes too
            required = not each.type.startswith("not_")
            if tagk is not None:
                conditions.append(Condition(tagk, matchers=(test,), required=required, absent=test.wants_no_key))
            impossible |= tagk is None and required
        known = isinstance((await self._uids.names(Kind.METRIC, [first]))[first], bytes)
        return Plan(
            sub,
            first if known else None,
            scan,
            tuple(conditions),
            filter_tagks=() if sub.filters else None,
            pairs=tuple(dict.fromkeys(b"".join(tagk + tagv for tagk, tagv in one.pairs) for one in series)),
            impossible=impossible,
        )

    def _series(self, text: str) -> Series:
        try:
            if not text:
                raise BadQuery("UID was empty")
            return split_tsuid(self._layout.widths, bytes.fromhex("0" * (len(text) % 2) + text))
        except ValueError as exc:
            metric = text[: 2 * self._layout.widths.metric]  # which OpenTSDB looks at first
            shown = text if _HEX.fullmatch(metric) else metric
            raise BadQuery(f"contains illegal character for hexBinary: {shown}") from exc
        except BadLine as exc:
            raise BadQuery(str(exc)) from exc


class _Resolved(NamedTuple):
    """A filter in UIDs."""

    tagk: bytes
    filter: Filter
    demand: frozenset[bytes] | Matcher  # UIDs of which the value must be one, or what its name must pass


def _conditions(resolved: Sequence[_Resolved], *, corrected: bool) -> Iterable[Condition]:
    """Filters by tag name, those of one name in the order of the request → what each name's value must be.

    Of several on one name OpenTSDB unites the literals if the name has the lowest UID of all, and else forgets them at
    the next filter (§6.3).
    """
    by_tagk: dict[bytes, list[frozenset[bytes] | Matcher]] = {}
    for one in resolved:
        by_tagk.setdefault(one.tagk, []).append(one.demand)
    for place, (tagk, demands) in enumerate(by_tagk.items()):
        lacking = [not isinstance(demand, frozenset) and demand.wants_no_key for demand in demands]
        condition = Condition(tagk, required=not all(lacking), absent=any(lacking))
        for demand in demands:
            if place and not corrected:
                condition = replace(condition, literals=None)
            if not isinstance(demand, frozenset):
                condition = replace(condition, matchers=(*condition.matchers, demand))
            else:
                before = demand if condition.literals is None else condition.literals
                condition = replace(condition, literals=before & demand if corrected else before | demand)
        yield condition


def literal_product(conditions: Sequence[Condition]) -> Mapping[bytes, bytes]:
    """The lowest literal of each tag name that has some: where two or more names have several, OpenTSDB's filter for
    explicit tags finds only series that differ from all of them in one name (§6.4). Empty where it finds all."""
    several = [one for one in conditions if one.literals and len(one.literals) > 1]
    if len(several) < 2:
        return {}
    return {one.tagk: min(one.literals) for one in conditions if one.literals}
