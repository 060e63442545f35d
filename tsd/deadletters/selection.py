"""Which refused lines are meant, and what they come to."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

import msgspec

from tsd.deadletters.folder import Entry

_WORD = {"put": 1, "rollup": 2, "histogram": 1}  # which word of a line is its metric


class Selection(NamedTuple):
    """What is wanted of a refused line; what is empty or None is not looked at."""

    reason: str = ""
    source: str = ""  # an address, with its port or without, an account, or account@address; * and ? stand for others
    metric: str = ""  # likewise
    since_ms: int = 0
    until_ms: int | None = None
    match: re.Pattern[str] | None = None  # anywhere in the line or in the message
    taken: bool | None = False

    def has(self, entry: Entry) -> bool:
        """Whether it is wanted."""
        refused = entry.refused
        return (
            (self.taken is None or entry.taken == self.taken)
            and refused.time >= self.since_ms
            and (self.until_ms is None or refused.time < self.until_ms)
            and (not self.reason or entry.reason == self.reason)
            and (not self.source or any(fnmatchcase(name, self.source) for name in _sources(entry)))
            and (not self.metric or fnmatchcase(metric_of(refused.shown), self.metric))
            and (self.match is None or bool(self.match.search(refused.shown) or self.match.search(entry.message)))
        )


def _sources(entry: Entry) -> tuple[str, str, str, str]:
    refused = entry.refused
    address = refused.peer.rpartition(":")[0] or refused.peer
    return refused.peer, address, refused.account, f"{refused.account}@{address}" if refused.account else address


def metric_of(line: str) -> str:
    """The metric that a refused line seems to name; empty where none can be told.

    >>> metric_of("put sys.cpu 1 x"), metric_of("rollup 1h-sum m 1"), metric_of('api/put {"metric":"m"}')
    ('sys.cpu', 'm', 'm')
    """
    command, _, rest = line.partition(" ")
    if command.startswith("api/"):
        try:
            point = msgspec.json.decode(rest)
        except msgspec.DecodeError:
            return ""
        metric = point.get("metric") if isinstance(point, dict) else None
        return metric if isinstance(metric, str) else ""
    words = line.split(" ", 3)
    at = _WORD.get(command)
    return words[at] if at is not None and at < len(words) else ""


class Group(NamedTuple):
    """Refused lines that are alike."""

    reason: str
    source: str  # address, or account@address
    metric: str
    lines: int
    last_ms: int
    message: str  # of the last


def groups(entries: Iterable[Entry]) -> Iterator[Group]:
    """Lines by reason, source and metric, the largest group first."""
    counts: Counter[tuple[str, str, str]] = Counter()
    last: dict[tuple[str, str, str], Entry] = {}
    for entry in entries:
        refused = entry.refused
        key = entry.reason, _sources(entry)[-1], metric_of(refused.shown)
        counts[key] += 1
        last[key] = entry
    for key, lines in counts.most_common():
        yield Group(*key, lines, last[key].refused.time, last[key].message)
