"""Filters on tag values: from a request's text to the test of a value (docs/compat/query.md §6).

How several filters on one tag name combine, and whether a series must have the name, is decided where a request is
resolved.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

from tsd.codec.putline import Tags
from tsd.errors import BadQuery
from tsd.lazy import LazyModule
from tsd.tables.quirks import OPENTSDB, Quirks

if TYPE_CHECKING:
    from tsd.codec import regex
else:  # the translation of patterns takes some ms to import, and few filters are patterns
    regex = LazyModule("tsd.codec.regex")

LITERAL_OR = "literal_or"
WILDCARD = "wildcard"
NOT_KEY = "not_key"  # only in OpenTSDB's documentation: accepted if a query is corrected
_LITERALS = frozenset({"literal_or", "iliteral_or", "not_literal_or", "not_iliteral_or"})
_WILDCARDS = frozenset({"wildcard", "iwildcard"})
REGEXP = "regexp"
TYPES = (REGEXP, "iwildcard", WILDCARD, "iliteral_or", LITERAL_OR, "not_iliteral_or", "not_literal_or")
EMPTY = "Filter cannot be null or empty"


@dataclass(frozen=True)
class Filter:
    """One filter on the values of a tag name."""

    tagk: str
    type: str  # literal_or, wildcard, …
    expression: str
    group_by: bool = False
    ignore_case: bool = False  # set for a wildcard in braces, although its type is `wildcard`


class Matcher(NamedTuple):
    """The test of a tag value."""

    matches: Callable[[str], bool]
    literals: tuple[str, ...] = ()  # of a `literal_or`: the values that must have ids, and the only ones that pass
    passes_all: bool = False  # every value passes
    wants_no_key: bool = False  # only series without the tag name pass


def make_filter(
    tagk: str,
    kind: str,
    expression: str,
    *,
    group_by: bool = False,
    ignore_case: bool = False,
    quirks: Quirks = OPENTSDB,
) -> Filter:
    """Return a checked filter; `kind` in exact case. Raise BadQuery with the bare reason."""
    if not tagk:
        raise BadQuery("Tagk cannot be null or empty")
    if kind == NOT_KEY and not quirks.refuses_not_key:
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


def read_filter(tagk: str, value: str, *, group_by: bool, quirks: Quirks = OPENTSDB) -> Filter:
    """Return the filter of `key=value` in braces or in `tags`. Raise BadQuery with the bare reason.

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
        return make_filter(tagk, kind.lower(), rest[:-1], group_by=group_by, quirks=quirks)
    if "*" in value:
        return make_filter(tagk, WILDCARD, value, group_by=group_by, ignore_case=True, quirks=quirks)
    return make_filter(tagk, LITERAL_OR, value, group_by=group_by, quirks=quirks)


def identity(found: Filter) -> tuple[object, ...]:
    """Return a value that is equal for filters that OpenTSDB considers equal. It ignores grouping, and the outermost
    asterisks of a wildcard.

    >>> identity(Filter("k", "wildcard", "a*")) == identity(Filter("k", "wildcard", "*a", True))
    True
    """
    if found.type in _LITERALS:
        return found.type, found.tagk, frozenset(_literals(found))
    if found.type in _WILDCARDS:
        return WILDCARD, found.tagk, _pieces(found), _ignores_case(found)
    return found.type, found.tagk, found.expression


@lru_cache(1024)
def matcher_of(found: Filter, *, loose_wildcards: bool = True) -> Matcher:
    """Return the test of a filter; `loose_wildcards`: OpenTSDB's test. Raise BadQuery with the bare reason."""
    if found.type == NOT_KEY:
        return Matcher(lambda _: False, wants_no_key=True)
    if found.type == REGEXP:
        try:
            pattern = regex.compile_pattern(found.expression)
        except regex.BadPattern as exc:
            raise BadQuery(str(exc)) from exc
        return Matcher(partial(_found, pattern))
    if found.type in _WILDCARDS:
        return _wildcard(found, loose=loose_wildcards)
    return _literal(found)


def may_pass(filters: Sequence[Filter], tags: Tags, quirks: Quirks) -> bool:
    """Return whether a series may pass filters, in whichever way those of one tag name are combined.

    >>> filters = [Filter("host", "literal_or", "a"), Filter("host", "literal_or", "b")]
    >>> [may_pass(filters, ((b"host", value),), OPENTSDB) for value in (b"a", b"b", b"c")]
    [True, True, False]
    """
    values = {tagk.decode("latin-1"): value.decode("latin-1") for tagk, value in tags}
    passes: dict[str, bool] = {}
    for one in filters:
        test, value = matcher_of(one, loose_wildcards=quirks.loose_wildcards), values.get(one.tagk)
        found = test.wants_no_key if value is None else test.matches(value)
        passes[one.tagk] = found or passes.get(one.tagk, False)
    return all(passes.values())


def _found(pattern: "regex.Searcher", value: str) -> bool:
    """Return whether a pattern is in a value. Raise BadQuery if the search could take too long."""
    try:
        return pattern.search(value)
    except regex.TooLong as exc:
        raise BadQuery(str(exc)) from exc


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
    """Return the alternatives of a literal filter. Raise BadQuery."""
    if found.expression == "|":
        raise BadQuery("Filter must contain more than just a pipe")
    text = found.expression.lower() if found.type.startswith(("i", "not_i")) else found.expression
    return text.rstrip("|").split("|") if text.strip("|") else []  # like Java's split, without empty texts at the end


def _ignores_case(found: Filter) -> bool:
    return found.ignore_case or found.type == "iwildcard"


def _pieces(found: Filter) -> tuple[str, ...]:
    """Return the texts between a wildcard's asterisks, without the outermost. Raise BadQuery."""
    if "*" not in found.expression:
        raise BadQuery("Filter must contain an asterisk")
    text = found.expression.lower() if _ignores_case(found) else found.expression
    return tuple(text.strip("*").split("*"))


def _wildcard(found: Filter, *, loose: bool) -> Matcher:
    pieces = _pieces(found)
    if pieces == ("",):
        return Matcher(lambda _: True, passes_all=True)
    ends = not found.expression.endswith("*")
    starts = not found.expression.startswith("*")
    test = _loose(pieces, starts, ends) if loose else _anchored(pieces, starts, ends)
    return Matcher((lambda value: test(value.lower())) if _ignores_case(found) else test)


def _anchored(pieces: tuple[str, ...], starts: bool, ends: bool) -> Callable[[str], bool]:
    """Return the documented test: the pieces in order, anchored at each end that has no asterisk."""
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
    """Return OpenTSDB's test: with text on both sides it checks neither end, and pieces may overlap."""

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
