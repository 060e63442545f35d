"""The words of `tsd query`, as parameters of /api/query: OpenTSDB's own form, and that of its command line."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import click

_TIME = re.compile(r"now|\d.*", re.IGNORECASE)
_QUERY = re.compile(r"[A-Za-z]\w*:.*", re.DOTALL)  # FUNC:…:METRIC
NOT_ENOUGH = "Not enough arguments."


class Words(NamedTuple):
    """A query: the texts of its times, and each sub query in the form of `m`."""

    start: str
    end: str  # empty: now
    queries: Sequence[str]

    def params(self) -> list[tuple[str, str]]:
        """Return the parameters of the request."""
        end = [("end", self.end)] if self.end else []
        return [("start", self.start), *end, *(("m", query) for query in self.queries)]


def has_own_form(words: Sequence[str]) -> bool:
    """Return whether sub queries are in OpenTSDB's own form.

    >>> has_own_form(["1h-ago", "sum:cpu"]), has_own_form(["1h-ago", "sum", "cpu"])
    (True, False)
    """
    return any(_QUERY.fullmatch(word) for word in words[1:3])


def read(words: Sequence[str]) -> Words:
    """Read the words of either form. Raise UsageError.

    >>> read(["1h-ago", "now", "sum:1m-avg:rate:cpu{host=*}"])
    Words(start='1h-ago', end='now', queries=['sum:1m-avg:rate:cpu{host=*}'])
    >>> read("1h-ago sum rate downsample 60000 avg cpu host=* dc=lga max mem".split()).queries
    ['sum:60000ms-avg:rate:cpu{host=*,dc=lga}', 'max:mem']
    """
    if len(words) < 2:
        raise click.UsageError(NOT_ENOUGH)
    start, rest = words[0], list(words[1:])
    end = rest.pop(0) if _TIME.fullmatch(rest[0]) else ""
    queries = []
    while rest:
        queries.append(rest.pop(0) if _QUERY.fullmatch(rest[0]) else _joined(rest))
    if not queries:
        raise click.UsageError(NOT_ENOUGH)
    return Words(start, end, queries)


def _joined(words: list[str]) -> str:
    """Remove the words of one sub query from the front, and return it in the form of `m`."""
    parts = [words.pop(0)]
    rate = ""
    if words[:1] == ["rate"]:
        words.pop(0)
        rate = f"rate{{{words.pop(0)}}}" if words and words[0].startswith("counter") else "rate"
    if words[:1] == ["downsample"]:
        if len(words) < 3:
            raise click.UsageError("downsample: wanted an interval and a function")
        _, interval, function = words[:3]
        del words[:3]
        parts.append(f"{interval}ms-{function}" if interval.isdigit() else f"{interval}-{function}")
    if not words:
        raise click.UsageError(NOT_ENOUGH)
    metric, tags = words.pop(0), []
    while words and "=" in words[0] and not _QUERY.fullmatch(words[0]):
        tags.append(words.pop(0))
    return ":".join([*parts, *([rate] if rate else []), f"{metric}{{{','.join(tags)}}}" if tags else metric])
