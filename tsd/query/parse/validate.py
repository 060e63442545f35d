"""Checks parsed requests in OpenTSDB's order, and joins equal sub queries (docs/compat/query.md §3, §15)."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import tzinfo
from typing import Any, NamedTuple

from tsd.codec.dates import find_zone
from tsd.errors import BadQuery
from tsd.query.model import AGGREGATORS, NONE, Query, SubQuery
from tsd.query.parse.times import LAST_MS, read_downsample, read_time
from tsd.tables.filters import identity
from tsd.tables.quirks import OPENTSDB, Quirks

MAX_SUB_QUERIES = 2000  # of a request: each takes 50 us to check
MAX_FILTERS = 1000  # of a sub query: each takes 20 us to check
NO_START = "Missing start time"
_KNOWN = frozenset(AGGREGATORS)
_FOR_HISTOGRAMS = (NONE, "sum")
FILTERS = frozenset({"filters"})


class Draft(NamedTuple):
    """A parsed, unchecked sub query: its downsampler is still text, and anything may be missing."""

    sub: SubQuery
    downsample: str = ""
    present: frozenset[str] = FILTERS  # members that were sent, even if empty: OpenTSDB compares them
    is_null: bool = False  # in place of a sub query


NULL_DRAFT = Draft(SubQuery(""), is_null=True)


def check(query: Query, drafts: Sequence[Draft], now_ms: int, zone: str = "", *, local: tzinfo | None = None) -> Query:
    """Return the query with times and sub queries; `zone` is the request's, `local` applies without one. Raise
    BadQuery."""
    try:
        start_ms, end_ms = _times(query, now_ms, zone, local)
        if not drafts:
            raise BadQuery("Missing queries")
        subs = tuple([check_sub(draft, query, zone, index) for index, draft in enumerate(drafts)])
    except BadQuery as exc:
        raise BadQuery(exc.message, status=exc.status, details=exc.details or _described(query, drafts)) from exc
    if end_ms > LAST_MS:
        raise BadQuery(f"Invalid timestamp: {start_ms if start_ms > LAST_MS else end_ms}, wanted at most {LAST_MS} ms")
    checked: dict[str, Any] = {"start_ms": start_ms, "end_ms": end_ms, "zone": zone or "UTC", "queries": subs}
    return Query(**{**vars(query), **checked})  # `replace` takes twice as long, as much as all other checks


def with_times(query: Query, start: str, end: str, now_ms: int = 0) -> Query:
    """Return a checked query with other times, which depend on no time zone; an empty `end` is now. Raise BadQuery."""
    start_ms = read_time(start, now_ms, quirks=query.quirks)
    end_ms = read_time(end, now_ms, quirks=query.quirks) if end else now_ms
    if not 0 <= start_ms < end_ms <= LAST_MS:
        raise BadQuery(f"Invalid times: {start_ms} to {end_ms}")
    return query.at_times(start_ms, end_ms, start, end)


def _times(query: Query, now_ms: int, zone: str, local: tzinfo | None) -> tuple[int, int]:
    """Return the first and the last time of a query."""
    if not query.start_text:
        raise BadQuery(NO_START)

    def read(text: str) -> int:
        return read_time(text, now_ms, zone, local=local, quirks=query.quirks)

    start_ms = max(0, read(query.start_text))  # before 1970, as 100y-ago: there are no points
    end_ms = read(query.end_text) if query.end_text else now_ms
    if end_ms <= start_ms:
        raise BadQuery(f"End time [{end_ms}] must be greater than the start time [{start_ms}]")
    return start_ms, end_ms


def check_sub(draft: Draft, query: Query, zone: str = "", index: int = 0) -> SubQuery:
    """Return the checked sub query. Raise BadQuery."""
    sub = draft.sub
    if draft.is_null:
        raise BadQuery("queries: got null, wanted an object")
    if not sub.aggregator:
        raise BadQuery("Missing the aggregation function")
    if sub.aggregator not in _KNOWN:
        raise BadQuery(f"No such aggregation function: {sub.aggregator}")
    if not sub.tsuids and not sub.metric:
        raise BadQuery("Missing the metric or tsuids, provide at least one")
    downsample = None
    if draft.downsample:
        downsample = read_downsample(
            draft.downsample, zone=zone or "UTC", use_calendar=query.use_calendar, quirks=query.quirks
        )
    if sub.percentiles or sub.show_histogram_buckets:
        _check_histogram(sub, downsample.function if downsample else "sum")
    if downsample and zone and find_zone(zone) is None:
        raise BadQuery("The timezone specification could not be found")
    return (
        sub if downsample is sub.downsample and index == sub.index else replace(sub, downsample=downsample, index=index)
    )


def _check_histogram(sub: SubQuery, function: str) -> None:
    if sub.aggregator not in _FOR_HISTOGRAMS:
        raise BadQuery("Only NONE or SUM aggregation function supported for histogram query")
    if function != "sum":
        raise BadQuery("Only SUM downsampling aggregation supported for histogram query")
    for percentile in sub.percentiles:
        if percentile < 0 or percentile > 100:
            raise BadQuery(f"Invalid percentile parameters: {percentile}")


def deduplicated(drafts: Sequence[Draft], *, quirks: Quirks = OPENTSDB) -> list[Draft]:
    """Return the distinct drafts. With the quirk `equal_without_grouping`, sub queries that differ only in what they
    group by are equal. Raise BadQuery for too many."""
    if len(drafts) > MAX_SUB_QUERIES:
        raise BadQuery(f"{len(drafts)} sub queries, wanted at most {MAX_SUB_QUERIES}", status=413)
    if len(drafts) == 1:
        return [*drafts]
    found: dict[object, Draft] = {}
    for draft in drafts:
        found.setdefault(identity_of(draft, quirks=quirks), draft)
    return list(found.values())


def check_filters(count: int) -> None:
    """Raise BadQuery for too many filters in one sub query."""
    if count > MAX_FILTERS:
        raise BadQuery(f"{count} filters in one sub query, wanted at most {MAX_FILTERS}", status=413)


def identity_of(draft: Draft, *, quirks: Quirks) -> object:
    """Return a hashable value that is equal for equal drafts."""
    if not quirks.equal_without_grouping:
        return draft._replace(present=FILTERS)
    sub = replace(draft.sub, filters=(), index=0, rollup_usage="", has_rollup_usage=False)
    return sub, draft.downsample, draft.present, tuple(map(identity, draft.sub.filters))


def as_client_error(exc: BadQuery, *, quirks: Quirks) -> BadQuery:
    """Return the error for a client's mistake, which OpenTSDB sometimes answers with 500. It may be `exc` itself: raise
    it from the same cause."""
    return BadQuery(exc.message, details=exc.details) if exc.status == 500 and not quirks.mistakes_as_500 else exc


def _described(query: Query, drafts: Sequence[Draft]) -> str:
    """Describe the query as far as it was parsed, for details of errors."""
    subs = ", ".join(f"{d.sub.aggregator or None}:{d.sub.metric or ','.join(d.sub.tsuids)}" for d in drafts)
    return f"Query(start={query.start_text or None}, end={query.end_text or None}, queries=[{subs}])"
