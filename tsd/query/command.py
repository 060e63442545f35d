"""A query as OpenTSDB's command line spells it: `START [END] (FUNC [rate [counter,max,reset]] [downsample MS FUNC]
METRIC [TAGK=TAGV …])+`."""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import tzinfo

from tsd.errors import BadQuery
from tsd.query.filters import read_filter
from tsd.query.model import PLAIN_RATE, Query, SubQuery
from tsd.query.names import AGGREGATORS
from tsd.query.uri import read_rate_options
from tsd.query.validate import Draft, check

_END = re.compile(r".*[:/-].*|\d+(ms)?|now")
NOT_ENOUGH = "Not enough arguments."


def read_words(words: Sequence[str], now_ms: int, *, corrected: bool = False, local: tzinfo | None = None) -> Query:
    """The query of a command line's words; raises BadQuery.

    >>> words = "1356998400 sum rate downsample 60000 avg sys.cpu host=*".split()
    >>> read_words(words, 1356999000000).queries[0].rate
    True
    """
    if len(words) < 3:
        raise BadQuery(NOT_ENOUGH)
    start, rest = words[0], list(words[1:])
    end = rest.pop(0) if len(words) > 3 and _END.fullmatch(rest[0].lower()) else ""
    drafts = []
    while rest:
        drafts.append(_draft(rest, corrected=corrected))
    frame = Query(0, 0, (), start, end, no_annotations=True, corrected=corrected)
    return check(frame, drafts, now_ms, local=local)


def _draft(words: list[str], *, corrected: bool) -> Draft:
    """One sub query, taken off the front of `words`."""
    aggregator = words.pop(0)
    if aggregator not in AGGREGATORS:
        raise BadQuery(f"No such aggregator: {aggregator}")
    sub, downsample = SubQuery(aggregator), ""
    if words[:1] == ["rate"]:
        words.pop(0)
        options = words.pop(0) if words and words[0].startswith("counter") else ""
        sub = replace(
            sub,
            rate=True,
            rate_options=read_rate_options(f"rate{{{options}}}") if options else PLAIN_RATE,
            has_rate_options=bool(options),
        )
    if words[:1] == ["downsample"]:
        if len(words) < 3:
            raise BadQuery("downsample: wanted an interval and a function")
        _, interval, function = words[:3]
        del words[:3]
        downsample = f"{interval}ms-{function}" if interval.isdigit() else f"{interval}-{function}"
    if not words:
        raise BadQuery("Missing the metric: wanted FUNC METRIC [TAGK=TAGV …]")
    metric = words.pop(0)
    filters = []
    while words and "=" in words[0]:
        tagk, _, value = words.pop(0).partition("=")
        filters.append(read_filter(tagk, value, group_by=True, corrected=corrected))
    return Draft(replace(sub, metric=metric, filters=tuple(filters)), downsample)
