"""Parse the rules of retention in the settings: how long points are kept, by patterns of metrics."""

import re
from collections.abc import Sequence
from fnmatch import translate
from typing import NamedTuple

from tsd.codec.putline import HOUR_S

UNITS_S = {"h": 3600, "d": 86_400, "w": 7 * 86_400, "n": 30 * 86_400, "y": 365 * 86_400}
FOREVER = "forever"
_AGE = re.compile(r"([0-9]{1,6})([hdwny])")
_EXAMPLE = "sys.debug.*=7d; *=400d"


class RetentionRule(NamedTuple):
    """One rule: which points it applies to, and how long they are kept."""

    text: str  # as written
    interval: str  # of rollups, e.g. "1h"; empty: all intervals
    pattern: re.Pattern[str]  # of whole names of metrics
    keep_s: int | None  # None: forever

    def matches(self, metric: str, interval: str) -> bool:
        """Return whether the rule applies to a metric, and to an interval of rollups."""
        return self.interval in ("", interval) and self.pattern.fullmatch(metric) is not None


class RetentionRules(NamedTuple):
    """Rules in order: the first one that matches applies. Without a match, points are kept."""

    rules: Sequence[RetentionRule] = ()

    def find(self, metric: str, interval: str = "") -> RetentionRule | None:
        """Return the rule for a metric and an interval of rollups; None if none matches.

        >>> rules = parse_rules("sys.debug.*=7d; *=forever")
        >>> rules.find("sys.debug.x").keep_s, rules.find("sys.cpu").keep_s
        (604800, None)
        """
        return next((rule for rule in self.rules if rule.matches(metric, interval)), None)

    @property
    def expires(self) -> bool:
        """Return whether any rule lets points expire."""
        return any(rule.keep_s is not None for rule in self.rules)


def expired_until_ms(keep_s: int, now_s: int) -> int:
    """Return the end of the last hour whose points have expired at `now_s`, 0 if none has.

    >>> expired_until_ms(7200, 10_900)
    3600000
    """
    cutoff_s = max(now_s - keep_s, 0)
    return (cutoff_s - cutoff_s % HOUR_S) * 1000


def parse_age(text: str) -> int | None:
    """Return the seconds of an age such as 7d, or None for `forever`. Raise ValueError.

    >>> parse_age("2w"), parse_age("forever")
    (1209600, None)
    """
    word = text.strip()
    if word == FOREVER:
        return None
    match = _AGE.fullmatch(word)
    if match is None or not int(match[1]):
        raise ValueError(f"got {word!r}, wanted {FOREVER}, or a number of h, d, w, n (30 d) or y (365 d), as 7d")
    return int(match[1]) * UNITS_S[match[2]]


def parse_rules(text: str, *, intervals: bool = False) -> RetentionRules:
    """Return the rules of a text such as `sys.debug.*=7d; *=400d`. Raise ValueError.

    A pattern must match the whole name: `*` matches any characters, `?` one, `[ab]` one of those listed. With
    `intervals`, the rules are for rollups, and `1m:` before a pattern restricts it to that interval.
    """
    found = []
    for part in filter(None, map(str.strip, text.split(";"))):
        pattern, equals, age = (word.strip() for word in part.rpartition("="))
        if not equals or not pattern:
            raise ValueError(f"got {part!r}, wanted PATTERN=AGE, such as {_EXAMPLE}")
        interval, colon, rest = pattern.partition(":") if intervals else ("", "", pattern)
        if not colon:
            interval, rest = "", pattern
        try:
            found.append(RetentionRule(part, interval, re.compile(translate(rest)), parse_age(age)))
        except ValueError as exc:
            raise ValueError(f"{part}: {exc}") from exc
    return RetentionRules(found)
