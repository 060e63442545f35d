"""Which regular expressions can take time beyond all bounds on a short text.

A backtracking matcher tries every way in which a text can be split among the repetitions of a pattern. That is
exponential where something without bound is repeated without bound and nothing in between says where one round ends,
or where one round can be read in two ways. Such patterns are told from their structure; a few that would be harmless
are among them (the alternatives `(?:web1|web2|w\\d)*` could begin alike).
"""

import re
from collections.abc import Iterable, Sequence

# The parser is Python's own; its results are pairs of an operation and what it works on.
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, TypeAlias

Item: TypeAlias = tuple[Any, Any]
ALL = frozenset(range(256))
MOST_REPEATS = 8  # without bound, in a row: the time is a power of the text's length
FEW = 4  # rounds that a bounded repetition may have without counting as one
_REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT)
_POSSESSIVE = getattr(op, "POSSESSIVE_REPEAT", None)
_WORDS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")
_CATEGORIES = {
    op.CATEGORY_DIGIT: frozenset(b"0123456789"),
    op.CATEGORY_SPACE: frozenset(b" \t\n\r\f\v"),
    op.CATEGORY_WORD: _WORDS,
}
_OTHERS = {
    op.CATEGORY_NOT_DIGIT: op.CATEGORY_DIGIT,
    op.CATEGORY_NOT_SPACE: op.CATEGORY_SPACE,
    op.CATEGORY_NOT_WORD: op.CATEGORY_WORD,
}


def is_costly(pattern: str) -> bool:
    """Whether a pattern of Python's may take exponential time, or a high power of a text's length.

    >>> [is_costly(p) for p in (r"(\\w+\\.)+com", "(a+)+$", "(a|ab|b)*c", "(?:foo|bar)*", "a*a*a*")]
    [False, True, True, False, False]
    """
    items = list(parser.parse(pattern, re.ASCII))
    return _is_ambiguous(items) or sum(1 for _ in _unbounded(items)) > MOST_REPEATS


def _is_ambiguous(items: Sequence[Item]) -> bool:
    """Whether some repetition in here can be split among its rounds in ever more ways."""
    for kind, value in items:
        if kind in _REPEATS and value[1] > FEW and _round_is_ambiguous(list(value[2])):
            return True
        if any(_is_ambiguous(inside) for inside in _parts(kind, value)):
            return True
    return False


def _parts(kind: Any, value: Any) -> Iterable[list[Item]]:
    """The sequences within an operation."""
    if kind in _REPEATS or kind is _POSSESSIVE:
        return [list(value[2])]
    if kind is op.SUBPATTERN:
        return [list(value[3])]
    if kind is op.BRANCH:
        return map(list, value[1])
    if kind in (op.ASSERT, op.ASSERT_NOT):
        return [list(value[1])]
    if kind is getattr(op, "ATOMIC_GROUP", None):
        return [list(value)]
    if kind is op.GROUPREF_EXISTS:
        return [list(part) for part in value[1:] if part]
    return []


def _round_is_ambiguous(items: Sequence[Item]) -> bool:
    flat = list(_flat(items))
    for at, (kind, value) in enumerate(flat):
        if kind is op.BRANCH:
            firsts = [_first(list(part)) for part in value[1]]
            if any(a & b for n, a in enumerate(firsts) for b in firsts[:n]):
                return True
        if kind in _REPEATS and value[0] != value[1]:
            own = _all(list(value[2]))
            others = (other for n, other in enumerate(flat) if n != at and _is_needed(other))
            if not any(not own & _all([other]) for other in others):
                return True
    return False


def _flat(items: Sequence[Item]) -> Iterable[Item]:
    """A sequence with its plain groups opened."""
    for kind, value in items:
        if kind is op.SUBPATTERN:
            yield from _flat(list(value[3]))
        else:
            yield kind, value


def _is_needed(item: Item) -> bool:
    """Whether an item always takes a character at least."""
    kind, value = item
    if kind in _REPEATS or kind is _POSSESSIVE:
        return bool(value[0] >= 1) and any(map(_is_needed, _flat(list(value[2]))))
    return kind in (op.LITERAL, op.NOT_LITERAL, op.IN, op.ANY)


def _first(items: Sequence[Item]) -> frozenset[int]:
    """The characters that a sequence may begin with; all of them where it may be empty."""
    found: frozenset[int] = frozenset()
    for item in _flat(items):
        if item[0] is op.AT:
            continue
        found |= _all([item])
        if _is_needed(item):
            return found
    return ALL


def _all(items: Sequence[Item]) -> frozenset[int]:
    """The characters that a sequence may hold; more rather than fewer."""
    found: frozenset[int] = frozenset()
    for kind, value in items:
        if kind is op.LITERAL:
            found |= _both_cases(value)
        elif kind is op.IN:
            found |= _members(value)
        elif kind in (op.NOT_LITERAL, op.ANY, op.GROUPREF):
            return ALL
        else:
            for inside in _parts(kind, value):
                found |= _all(inside)
    return found


def _both_cases(code: int) -> frozenset[int]:
    """A character, and the same in the other case: a flag may ask for both."""
    return frozenset(map(ord, {chr(code), *chr(code).lower(), *chr(code).upper()}))


def _members(members: Sequence[Item]) -> frozenset[int]:
    found: set[int] = set()
    for kind, value in members:
        if kind is op.LITERAL:
            found.add(value)
        elif kind is op.RANGE:
            found.update(range(value[0], min(value[1], 255) + 1))
        elif kind is op.CATEGORY:
            found |= _CATEGORIES[value] if value in _CATEGORIES else ALL - _CATEGORIES[_OTHERS[value]]
    if members and members[0][0] is op.NEGATE:
        return ALL - found  # not in both cases: rather more
    return frozenset().union(*map(_both_cases, found))


def _unbounded(items: Sequence[Item]) -> Iterable[Item]:
    for kind, value in items:
        if kind in _REPEATS and value[1] is op.MAXREPEAT:
            yield kind, value
        for inside in _parts(kind, value):
            yield from _unbounded(inside)
