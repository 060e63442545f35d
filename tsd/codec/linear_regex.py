"""Search by regular expressions in time linear in the text, with re2.

A pattern is translated from Python's syntax tree, one operation after the other, into lists of characters, sequences,
alternatives, repetitions and anchors. Whether such a pattern is found does not depend on the order in which a matcher
tries alternatives, so re2 and a backtracking matcher agree. Other operations (references to groups, assertions, atomic
groups, possessive quantifiers) have no translation.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, TypeAlias

import re2

Item: TypeAlias = tuple[Any, Any]  # an operation and its argument
ALL = frozenset(range(256))
_WORDS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")
_SETS = {
    op.CATEGORY_DIGIT: frozenset(b"0123456789"),
    op.CATEGORY_SPACE: frozenset(b" \t\n\r\f\v"),
    op.CATEGORY_WORD: _WORDS,
}
CATEGORIES = _SETS | {
    op.CATEGORY_NOT_DIGIT: ALL - _SETS[op.CATEGORY_DIGIT],
    op.CATEGORY_NOT_SPACE: ALL - _SETS[op.CATEGORY_SPACE],
    op.CATEGORY_NOT_WORD: ALL - _SETS[op.CATEGORY_WORD],
}
_ANCHORS = {
    op.AT_BEGINNING: r"\A",
    op.AT_BEGINNING_STRING: r"\A",
    op.AT_END: r"\z",  # of texts without line ends
    op.AT_END_STRING: r"\z",
    op.AT_BOUNDARY: r"\b",
    op.AT_NON_BOUNDARY: r"\B",
}
MEMORY_BYTES = 8 << 20  # of one compiled pattern

LinearSearch: TypeAlias = Callable[[bytes], bool]


class _Untranslatable(Exception):
    """An operation has no translation."""


def linear_search(pattern: str) -> LinearSearch | None:
    """Return the search of a Python pattern in texts of Latin-1 that are not empty and have no line ends; None if it
    has no translation. Raise re.error for an invalid pattern.

    >>> search = linear_search("(?i)^web[0-9]+$")
    >>> search(b"WEB01"), search(b"xweb01"), linear_search("(a)\\\\1")
    (True, False, None)
    """
    tree = parser.parse(pattern, re.ASCII)
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    options.log_errors = False
    options.max_mem = MEMORY_BYTES
    try:
        text = _sequence(list(tree), tree.state.flags)
        return partial(_found, re2.compile(text.encode("ascii"), options))
    except (_Untranslatable, re2.error):
        return None


def _found(compiled: Any, text: bytes) -> bool:
    return compiled.search(text) is not None


def _sequence(items: Iterable[Item], flags: int) -> str:
    return "".join(_item(kind, value, flags) for kind, value in items)


def _item(kind: Any, value: Any, flags: int) -> str:
    if kind in (op.LITERAL, op.NOT_LITERAL):
        found = _folded({value}, flags)
        return _listed(found if kind is op.LITERAL else ALL - found)
    if kind is op.ANY:
        return _listed(ALL if flags & re.DOTALL else ALL - {ord("\n")})
    if kind is op.IN:
        return _listed(_members(value, flags))
    if kind is op.AT and value in _ANCHORS and not flags & re.MULTILINE:
        return _ANCHORS[value]
    if kind is op.BRANCH:
        return f"(?:{'|'.join(_sequence(part, flags) for part in value[1])})"
    if kind is op.SUBPATTERN:
        _, more, less, inside = value
        return f"(?:{_sequence(inside, (flags | more) & ~less)})"
    if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
        least, most, inside = value
        return f"(?:{_sequence(inside, flags)}){{{least},{'' if most is op.MAXREPEAT else most}}}"
    raise _Untranslatable


def _folded(codes: Iterable[int], flags: int) -> frozenset[int]:
    """Return characters, with those of the other case if case is ignored: only ASCII letters have two."""
    found = frozenset(codes)
    if not flags & re.IGNORECASE:
        return found
    return found | {code ^ 32 for code in found if code < 128 and chr(code).isalpha()}


def _members(members: Sequence[Item], flags: int) -> frozenset[int]:
    found: set[int] = set()
    for kind, value in members:
        if kind is op.LITERAL:
            found.add(value)
        elif kind is op.RANGE:
            found.update(range(value[0], min(value[1], 255) + 1))
        elif kind is op.CATEGORY:
            found |= CATEGORIES[value]
        elif kind is not op.NEGATE:
            raise _Untranslatable
    folded = _folded(found, flags)
    return ALL - folded if members[0][0] is op.NEGATE else folded


def _listed(codes: frozenset[int]) -> str:
    """Return a character class of re2. One without characters matches nothing."""
    ordered = sorted(codes & ALL)
    if not ordered:
        return r"[^\x00-\xff]"
    return "[" + "".join(f"\\x{code:02x}" for code in ordered) + "]"
