"""Filters on tag values: from a request's text to a verdict about a value (query.md §6).

Whether a series has the key at all, and how several filters on one key go together, is the plan's to see to.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import NamedTuple

from tsd.errors import BadQuery
from tsd.pattern_cost import is_costly_on
from tsd.query.model import Filter
from tsd.query.patterns import BadPattern, compile_pattern

LITERAL_OR = "literal_or"
WILDCARD = "wildcard"
NOT_KEY = "not_key"  # in OpenTSDB's documentation only: taken when a query is `corrected`
_LITERALS = frozenset({"literal_or", "iliteral_or", "not_literal_or", "not_iliteral_or"})
_WILDCARDS = frozenset({"wildcard", "iwildcard"})
REGEXP = "regexp"
TYPES = (REGEXP, "iwildcard", WILDCARD, "iliteral_or", LITERAL_OR, "not_iliteral_or", "not_literal_or")
EMPTY = "Filter cannot be null or empty"


class Matcher(NamedTuple):
    """What a filter asks of the value that a series has for its key."""

    matches: Callable[[str], bool]
    literals: tuple[str, ...] = ()  # of a `literal_or`: the values that must be known, and the only ones that pass
    passes_all: bool = False  # any value does
    wants_no_key: bool = False  # only series without the key pass


def make_filter(
    tagk: str, kind: str, expression: str, *, group_by: bool = False, ignore_case: bool = False, corrected: bool = False
) -> Filter:
    """A filter, checked; `kind` in exact case. Raises BadQuery with the bare reason."""
    if not tagk:
        raise BadQuery("Tagk cannot be null or empty")
    if corrected and kind == NOT_KEY:
        return Filter(tagk, kind, expression, group_by)
    if not kind:
        raise BadQuery("The filter type cannot be null or empty")
    if kind not in TYPES:
        raise BadQuery(f"Could not find a tag value filter of the type: {kind}")
    if not expression:
        raise BadQuery(EMPTY)
    found = Filter(tagk, kind, expression, group_by, ignore_case)
    matcher_of(found)
    return found


def read_filter(tagk: str, value: str, *, group_by: bool, corrected: bool = False) -> Filter:
    """The filter of `key=value` in braces or in `tags`; raises BadQuery with the bare reason.

    >>> read_filter("host", "web*", group_by=True)
    Filter(tagk='host', type='wildcard', expression='web*', group_by=True, ignore_case=True)
    >>> read_filter("host", "Regexp(^web)", group_by=False).type
    'regexp'
    """
    if not tagk:
        raise BadQuery("Tagk cannot be null or empty")
    if not value:
        raise BadQuery(EMPTY)
    if "(" in value:
        if not value.endswith(")"):
            raise BadQuery(f"Filter must end with a ')': {value}")
        kind, _, rest = value.partition("(")
        return make_filter(tagk, kind.lower(), rest[:-1], group_by=group_by, corrected=corrected)
    if "*" in value:
        return make_filter(tagk, WILDCARD, value, group_by=group_by, ignore_case=True, corrected=corrected)
    return make_filter(tagk, LITERAL_OR, value, group_by=group_by, corrected=corrected)


def identity(found: Filter) -> tuple[object, ...]:
    """What two filters share that OpenTSDB takes for the same: neither whether they group, nor where a wildcard's
    outermost asterisks are.

    >>> identity(Filter("k", "wildcard", "a*")) == identity(Filter("k", "wildcard", "*a", True))
    True
    """
    if found.type in _LITERALS:
        return found.type, found.tagk, frozenset(_literals(found))
    if found.type in _WILDCARDS:
        return WILDCARD, found.tagk, _pieces(found), _ignores_case(found)
    return found.type, found.tagk, found.expression


@lru_cache(1024)
def matcher_of(found: Filter, *, corrected: bool = False) -> Matcher:
    """How to tell the values that pass; raises BadQuery with the bare reason."""
    if found.type == NOT_KEY:
        return Matcher(lambda _: False, wants_no_key=True)
    if found.type == REGEXP:
        try:
            pattern = compile_pattern(found.expression)
        except BadPattern as exc:
            raise BadQuery(str(exc)) from exc
        return Matcher(partial(_found, pattern))
    if found.type in _WILDCARDS:
        return _wildcard(found, corrected=corrected)
    return _literal(found)


def _found(pattern: re.Pattern[str], value: str) -> bool:
    """Whether a pattern is in a value. Raises BadQuery where to look could take too long: nothing can stop it."""
    if is_costly_on(pattern.pattern, len(value)):
        raise BadQuery(f"May take too long on a value of {len(value)} characters: {pattern.pattern}")
    return pattern.search(value) is not None


def _literal(found: Filter) -> Matcher:
    literals = _literals(found)
    known = frozenset(literals)
    if found.type == "literal_or":
        return Matcher(known.__contains__, tuple(dict.fromkeys(literals)))
    if found.type == "iliteral_or":
        return Matcher(lambda value: value.lower() in known)
    if found.type == "not_literal_or":
        return Matcher(lambda value: value not in known)
    return Matcher(lambda value: value.lower() not in known)


def _literals(found: Filter) -> list[str]:
    """The values of an alternative of literals; raises BadQuery."""
    if found.expression == "|":
        raise BadQuery("Filter must contain more than just a pipe")
    text = found.expression.lower() if found.type.startswith(("i", "not_i")) else found.expression
    return text.rstrip("|").split("|") if text.strip("|") else []  # without what is empty at the end, as Java splits


def _ignores_case(found: Filter) -> bool:
    return found.ignore_case or found.type == "iwildcard"


def _pieces(found: Filter) -> tuple[str, ...]:
    """The texts between a wildcard's asterisks, without the outermost; raises BadQuery."""
    if "*" not in found.expression:
        raise BadQuery("Filter must contain an asterisk")
    text = found.expression.lower() if _ignores_case(found) else found.expression
    return tuple(text.strip("*").split("*"))


def _wildcard(found: Filter, *, corrected: bool) -> Matcher:
    pieces = _pieces(found)
    if pieces == ("",):
        return Matcher(lambda _: True, passes_all=True)
    ends = not found.expression.endswith("*")
    starts = not found.expression.startswith("*")
    test = _anchored(pieces, starts, ends) if corrected else _loose(pieces, starts, ends)
    return Matcher((lambda value: test(value.lower())) if _ignores_case(found) else test)


def _anchored(pieces: tuple[str, ...], starts: bool, ends: bool) -> Callable[[str], bool]:
    """What a wildcard says: the pieces one after the other, from the start and up to the end where no asterisk is."""
    first = pieces[0] if starts else ""
    last = pieces[-1] if ends else ""
    middle = pieces[starts : len(pieces) - ends]

    def test(value: str) -> bool:
        if len(value) < len(first) + len(last) or not (value.startswith(first) and value.endswith(last)):
            return False
        at, end = len(first), len(value) - len(last)
        for piece in middle:
            at = value.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return True

    return test


def _loose(pieces: tuple[str, ...], starts: bool, ends: bool) -> Callable[[str], bool]:
    """What OpenTSDB makes of it: with a text on both sides it looks at neither end, and pieces may overlap."""

    def test(value: str) -> bool:
        if ends and not starts and not value.endswith(pieces[-1]):
            return False
        if starts and not ends and not value.startswith(pieces[0]):
            return False
        at = 0
        for piece in pieces:
            if value.find(piece, at) < 0:
                return False
            at += len(piece)
        return True

    return test


def matching(matcher: Matcher, names: Mapping[bytes, str]) -> frozenset[bytes]:
    """The UIDs whose values pass. `names` are distinct values by UID: each is looked at once.

    >>> matching(matcher_of(Filter("k", "wildcard", "w*")), {b"1": "web", b"2": "db"})
    frozenset({b'1'})
    """
    if matcher.passes_all:
        return frozenset(names)
    test = matcher.matches
    return frozenset(uid for uid, name in names.items() if test(name))
