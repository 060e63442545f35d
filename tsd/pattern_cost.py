"""Which regular expressions can take time beyond all bounds on a short text, and on which texts the others may.

A backtracking matcher tries every way in which a text can be split among the repetitions of a pattern. That is
exponential where something without bound is repeated without bound and nothing in between says where one round ends,
or where one round can be read in two ways; and a high power of the text's length where repetitions that take the same
characters follow each other. Both are told from a pattern's structure; a few that would be harmless are among them (the
alternatives `(?:web1|web2|w\\d)*` could begin alike).
"""

import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

# The parser is Python's own; its results are pairs of an operation and what it works on.
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, TypeAlias

Item: TypeAlias = tuple[Any, Any]
ALL = frozenset(range(256))
MOST_REPEATS = 8  # without bound, in all
USUAL = 64  # characters of a name
MOST_WORK = 1e6  # ways to go through a usual name: some 10 ms
MOST_WORK_LONG = 1e7  # through a longer one
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


@lru_cache(1024)
def is_costly(pattern: str) -> bool:
    """Whether a pattern of Python's may take exponential time, or a high power of a text's length.

    >>> [is_costly(p) for p in (r"(\\w+\\.)+com", "(a+)+$", "(a|ab|b)*c", "(?:foo|bar)*", "a*a*a*", "a*a*a*a*a*b")]
    [False, True, True, False, False, True]
    """
    items = list(parser.parse(pattern, re.ASCII))
    if _is_ambiguous(items) or sum(1 for _ in _unbounded(items)) > MOST_REPEATS:
        return True
    return work(pattern, USUAL) > MOST_WORK


def is_costly_on(pattern: str, length: int) -> bool:
    """Whether a pattern that is not costly may be so on a text of this length."""
    return length > USUAL and work(pattern, 1 << (length - 1).bit_length()) > MOST_WORK_LONG


@lru_cache(1024)
def work(pattern: str, length: int) -> float:
    """In how many ways, at most, a search for a pattern may try to go through a text of that length.

    >>> [round(work(p, 9)) for p in ("a+b", "a+a+b", "^a+a+b", "(a|b)c", "(?:a|a)(?:a|a)b", r"^(\\w+\\.)+com")]
    [10, 45, 9, 10, 40, 9]
    """
    items = list(parser.parse(pattern, re.ASCII))
    ways, free = _ways(items, frozenset(), length)
    if not items or items[0][0] is not op.AT or items[0][1] not in (op.AT_BEGINNING, op.AT_BEGINNING_STRING):
        ways += math.log(length + 1)
        free += 1
    return math.exp(min(ways - math.lgamma(free + 1), 700))  # those that are free share one text


def _ways(items: Sequence[Item], follow: frozenset[int], length: int) -> tuple[float, int]:
    """The logarithm of how many ways there are through a sequence with one of `follow` behind it, and how many of its
    repetitions are free to take any part of the text. Where the next character tells what to do there is one way."""
    ways, free = 0.0, 0
    for kind, value in reversed(items):
        more, others = _ways_of(kind, value, follow, length)
        ways += more
        free += others
        follow = _begins([(kind, value)], follow)
    return ways, free


def _ways_of(kind: Any, value: Any, follow: frozenset[int], length: int) -> tuple[float, int]:
    if kind is op.BRANCH:
        parts = [list(part) for part in value[1]]
        firsts = [_begins(part, follow) for part in parts]
        alike = any(a & b for n, a in enumerate(firsts) for b in firsts[:n])
        found = [_ways(part, follow, length) for part in parts]
        ways = max(each for each, _ in found) + (math.log(len(parts)) if alike else 0)
        return ways, min(each for _, each in found)
    if kind not in _REPEATS and kind is not _POSSESSIVE:
        inner = [_ways(inside, follow, length) for inside in _parts(kind, value)]
        return sum(ways for ways, _ in inner), sum(free for _, free in inner)
    least, most, inside = value[0], min(value[1], length), list(value[2])
    first = _begins(inside, frozenset())
    ways, _ = _ways(inside, first | follow, length)
    if ways > 0:
        ways = math.inf if most > FEW else ways * most
    if kind is _POSSESSIVE or least >= most or not first & follow:
        return ways, 0
    return ways + math.log(most - least + 1), int(value[1] is op.MAXREPEAT)


def _begins(items: Sequence[Item], follow: frozenset[int]) -> frozenset[int]:
    """The characters that a sequence may begin with where one of `follow` is behind it."""
    found: frozenset[int] = frozenset()
    for kind, value in items:
        if kind is op.AT or kind in (op.ASSERT, op.ASSERT_NOT):
            continue
        if kind is op.SUBPATTERN:
            found |= _begins(list(value[3]), frozenset())
        elif kind is op.BRANCH:
            for part in value[1]:
                found |= _begins(list(part), frozenset())
        elif kind in _REPEATS or kind is _POSSESSIVE:
            found |= _begins(list(value[2]), frozenset())
        else:
            found |= _all([(kind, value)])
        if not _may_be_empty(kind, value):
            return found
    return found | follow


def _may_be_empty(kind: Any, value: Any) -> bool:
    """Whether an item may take no character."""
    if kind in _REPEATS or kind is _POSSESSIVE:
        return value[0] == 0 or all(_may_be_empty(*item) for item in value[2])
    if kind is op.SUBPATTERN:
        return all(_may_be_empty(*item) for item in value[3])
    if kind is op.BRANCH:
        return any(all(_may_be_empty(*item) for item in part) for part in value[1])
    return kind not in (op.LITERAL, op.NOT_LITERAL, op.IN, op.ANY)


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
