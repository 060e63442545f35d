"""The checks of a request that has been read, in OpenTSDB's order (query.md §15); equal sub queries become one (§3)."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import tzinfo
from typing import NamedTuple

from tsd.errors import BadQuery
from tsd.query.durations import read_downsample
from tsd.query.filters import identity
from tsd.query.model import Query, SubQuery
from tsd.query.names import AGGREGATORS, NONE
from tsd.query.times import LAST_MS, find_zone, read_time

MOST_SUBS = 2000  # of a request: to check them holds up everybody else, for some 50 us each
NO_START = "Missing start time"
_KNOWN = frozenset(AGGREGATORS)
_FOR_HISTOGRAMS = (NONE, "sum")
FILTERS = frozenset({"filters"})


class Draft(NamedTuple):
    """A sub query that was read, and not yet checked: its downsampler is still a text, and anything may be missing."""

    sub: SubQuery
    downsample: str = ""
    present: frozenset[str] = FILTERS  # what is there, if empty: OpenTSDB tells that from none where it compares


def check(query: Query, drafts: Sequence[Draft], now_ms: int, zone: str = "", *, local: tzinfo | None = None) -> Query:
    """The query with its times and sub queries; `zone` is what the request said, `local` where dates are without it.
    Raises BadQuery."""
    try:
        timed = _timed(query, now_ms, zone, local)
        if not drafts:
            raise BadQuery("Missing queries")
        subs = tuple(check_sub(draft, timed, zone, index) for index, draft in enumerate(drafts))
    except BadQuery as exc:
        raise BadQuery(exc.message, status=exc.status, details=exc.details or _described(query, drafts)) from exc
    if not 0 <= timed.start_ms <= LAST_MS or timed.end_ms > LAST_MS:
        wrong = timed.end_ms if 0 <= timed.start_ms <= LAST_MS else timed.start_ms
        raise BadQuery(f"Invalid timestamp: {wrong}", status=500)
    return replace(timed, queries=subs)


def _timed(query: Query, now_ms: int, zone: str, local: tzinfo | None) -> Query:
    if not query.start_text:
        raise BadQuery(NO_START)

    def read(text: str) -> int:
        return read_time(text, now_ms, zone, local=local, corrected=query.corrected)

    start_ms = read(query.start_text)
    end_ms = read(query.end_text) if query.end_text else now_ms
    if end_ms <= start_ms:
        raise BadQuery(f"End time [{end_ms}] must be greater than the start time [{start_ms}]")
    return replace(query, start_ms=start_ms, end_ms=end_ms, zone=zone or "UTC")


def check_sub(draft: Draft, query: Query, zone: str = "", index: int = 0) -> SubQuery:
    """A sub query, checked; raises BadQuery."""
    sub = draft.sub
    if not sub.aggregator:
        raise BadQuery("Missing the aggregation function")
    if sub.aggregator not in _KNOWN:
        raise BadQuery(f"No such aggregation function: {sub.aggregator}")
    if not sub.tsuids and not sub.metric:
        raise BadQuery("Missing the metric or tsuids, provide at least one")
    downsample = None
    if draft.downsample:
        downsample = read_downsample(
            draft.downsample, zone=zone or "UTC", use_calendar=query.use_calendar, corrected=query.corrected
        )
    if sub.percentiles or sub.show_histogram_buckets:
        _check_histogram(sub, downsample.function if downsample else "sum")
    if downsample and zone and find_zone(zone) is None:
        raise BadQuery("The timezone specification could not be found")
    return replace(sub, downsample=downsample, index=index)


def _check_histogram(sub: SubQuery, function: str) -> None:
    if sub.aggregator not in _FOR_HISTOGRAMS:
        raise BadQuery("Only NONE or SUM aggregation function supported for histogram query")
    if function != "sum":
        raise BadQuery("Only SUM downsampling aggregation supported for histogram query")
    for percentile in sub.percentiles:
        if percentile < 0 or percentile > 100:
            raise BadQuery(f"Invalid percentile parameters: {percentile}")


def without_duplicates(drafts: Sequence[Draft], *, corrected: bool = False) -> list[Draft]:
    """The drafts, each of those that are equal once, at the first place. OpenTSDB takes sub queries that differ only in
    what they group by for equal; `corrected` does not. Raises BadQuery where there are too many."""
    if len(drafts) > MOST_SUBS:
        raise BadQuery(f"{len(drafts)} sub queries, wanted at most {MOST_SUBS}", status=413)
    found: dict[object, Draft] = {}
    for draft in drafts:
        found.setdefault(what_counts(draft, corrected=corrected), draft)
    return list(found.values())


def what_counts(draft: Draft, *, corrected: bool) -> object:
    """What two drafts have in common if they are equal; it can be hashed."""
    if corrected:
        return draft._replace(present=FILTERS)
    sub = replace(draft.sub, filters=(), index=0, rollup_usage="", has_rollup_usage=False)
    return sub, draft.downsample, draft.present, tuple(map(identity, draft.sub.filters))


def as_mistake(exc: BadQuery, *, corrected: bool) -> BadQuery:
    """A client's mistake, which OpenTSDB answers with 500 at times: `corrected` does not."""
    return BadQuery(exc.message, details=exc.details) if corrected and exc.status == 500 else exc


def _described(query: Query, drafts: Sequence[Draft]) -> str:
    """The query as far as it was read, for an error's details."""
    subs = ", ".join(f"{d.sub.aggregator or None}:{d.sub.metric or ','.join(d.sub.tsuids)}" for d in drafts)
    return f"Query(start={query.start_text or None}, end={query.end_text or None}, queries=[{subs}])"
