"""Translation of Java's regular expressions to Python's, for texts with characters below U+0100, and their cost.

Syntax that differs is rewritten: character classes become lists of characters, which covers unions, intersections and
`\\p{…}`. Syntax without an equivalent is refused. Python's matcher cannot be interrupted, and any client may send a
pattern, so patterns that may take exponential time are refused too.

A backtracking matcher tries every way to divide a text among the repetitions of a pattern. The number of ways is
exponential if an iteration of an unbounded repetition can match in two ways. So it is if the repetition contains
another one and nothing marks the end of an iteration. It is a high power of the text's length if several repetitions of
the same characters follow each other. Both are detected from the pattern's structure. A few harmless patterns are
refused as well, such as `(?:web1|web2|w\\d)*`, whose alternatives may start with the same character.

Patterns that pass are matched by re2 in linear time if their translation needs none of what re2 lacks: references to
groups, assertions, possessive quantifiers and atomic groups. Of the others each search is bounded (`is_costly_on`).
"""

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple, TypeAlias

from tsd.codec.linear_regex import linear_search

Item: TypeAlias = tuple[Any, Any]  # of Python's own regex parser: an operation and its argument
ALL = frozenset(range(256))
MOST_REPEATS = 8  # unbounded repetitions in a pattern
USUAL = 64  # characters of a usual name
MOST_WORK = 1e6  # ways to match a usual name: a pattern with more is refused
MOST_WORK_OF_SEARCH = 1e4  # ways to match one text without re2: about 1 ms
LINEAR_FROM = 1e3  # ways to match a usual name from which re2 is faster in the worst case
FEW = 4  # a repetition with at most this many iterations is never ambiguous
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
    """Return whether a Python pattern may take exponential time, or a high power of a text's length.

    >>> [is_costly(p) for p in (r"(\\w+\\.)+com", "(a+)+$", "(a|ab|b)*c", "(?:foo|bar)*", "a*a*a*", "a*a*a*a*a*b")]
    [False, True, True, False, False, True]
    """
    items = list(parser.parse(pattern, re.ASCII))
    if _is_ambiguous(items) or sum(1 for _ in _unbounded(items)) > MOST_REPEATS:
        return True
    return work(pattern, USUAL) > MOST_WORK


def is_costly_on(pattern: str, length: int) -> bool:
    """Return whether a pattern for which `is_costly` is false may still be costly for a text of this length.

    >>> is_costly_on("a+a+b", 64), is_costly_on("a+a+b", 1000), is_costly_on("^a+b", 1000)
    (False, True, False)
    """
    return work(pattern, 1 << max(length - 1, 1).bit_length()) > MOST_WORK_OF_SEARCH


@lru_cache(1024)
def work(pattern: str, length: int) -> float:
    """Return an upper bound of the number of ways in which a search may try to match a text of this length.

    >>> [round(work(p, 9)) for p in ("a+b", "a+a+b", "^a+a+b", "(a|b)c", "(?:a|a)(?:a|a)b", r"^(\\w+\\.)+com")]
    [10, 45, 9, 10, 40, 9]
    """
    items = list(parser.parse(pattern, re.ASCII))
    ways, free = _ways(items, frozenset(), length)
    if not items or items[0][0] is not op.AT or items[0][1] not in (op.AT_BEGINNING, op.AT_BEGINNING_STRING):
        ways += math.log(length + 1)
        free += 1
    return math.exp(min(ways - math.lgamma(free + 1), 700))  # free repetitions divide one text among them


def _ways(items: Sequence[Item], follow: frozenset[int], length: int) -> tuple[float, int]:
    """Return the logarithm of the number of ways to match a sequence, and the number of its free repetitions. One of
    the characters `follow` comes after it. A repetition is free if the next character does not determine its end."""
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
    """Return the possible first characters of a sequence that is followed by one of `follow`."""
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
    """Return whether an item can match the empty text."""
    if kind in _REPEATS or kind is _POSSESSIVE:
        return value[0] == 0 or all(_may_be_empty(*item) for item in value[2])
    if kind is op.SUBPATTERN:
        return all(_may_be_empty(*item) for item in value[3])
    if kind is op.BRANCH:
        return any(all(_may_be_empty(*item) for item in part) for part in value[1])
    return kind not in (op.LITERAL, op.NOT_LITERAL, op.IN, op.ANY)


def _is_ambiguous(items: Sequence[Item]) -> bool:
    """Return whether a repetition can be divided into iterations in exponentially many ways."""
    for kind, value in items:
        if kind in _REPEATS and value[1] > FEW and _is_ambiguous_iteration(list(value[2])):
            return True
        if any(_is_ambiguous(inside) for inside in _parts(kind, value)):
            return True
    return False


def _parts(kind: Any, value: Any) -> Iterable[list[Item]]:
    """Return the sequences within an operation."""
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


def _is_ambiguous_iteration(items: Sequence[Item]) -> bool:
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
    """Yield the items of a sequence with plain groups expanded."""
    for kind, value in items:
        if kind is op.SUBPATTERN:
            yield from _flat(list(value[3]))
        else:
            yield kind, value


def _is_needed(item: Item) -> bool:
    """Return whether an item always matches at least one character."""
    kind, value = item
    if kind in _REPEATS or kind is _POSSESSIVE:
        return bool(value[0] >= 1) and any(map(_is_needed, _flat(list(value[2]))))
    return kind in (op.LITERAL, op.NOT_LITERAL, op.IN, op.ANY)


def _first(items: Sequence[Item]) -> frozenset[int]:
    """Return the possible first characters of a sequence; all characters if it can be empty."""
    found: frozenset[int] = frozenset()
    for item in _flat(items):
        if item[0] is op.AT:
            continue
        found |= _all([item])
        if _is_needed(item):
            return found
    return ALL


def _all(items: Sequence[Item]) -> frozenset[int]:
    """Return a superset of the characters that a sequence can match."""
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
    """Return a character in both cases, because a flag may make the pattern case-insensitive."""
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
        return ALL - found  # a superset: without case folding
    return frozenset().union(*map(_both_cases, found))


def _unbounded(items: Sequence[Item]) -> Iterable[Item]:
    for kind, value in items:
        if kind in _REPEATS and value[1] is op.MAXREPEAT:
            yield kind, value
        for inside in _parts(kind, value):
            yield from _unbounded(inside)


CHARACTERS = frozenset(map(chr, range(256)))
LONGEST = 1024  # characters of a pattern
_PLAIN = re.compile(
    r"(?:[A-Za-z0-9 _/^$.*+?|:,=<>@%!~;'\"#-]|\\[.dDwWsS/-]|\(\?:|\((?!\?)|\)|\[\^?[A-Za-z0-9_./ -]+\])*"
)


def _where(test: Callable[[str], bool]) -> frozenset[str]:
    return frozenset(filter(test, CHARACTERS))


_ASCII = _where(str.isascii)
_ALPHA = _where(lambda c: c.isascii() and c.isalpha())
_DIGIT = frozenset("0123456789")
_GRAPH = _where(lambda c: "!" <= c <= "~")
_SPACE = frozenset(" \t\n\x0b\f\r")
_POSIX = {
    "Lower": _where(lambda c: "a" <= c <= "z"),
    "Upper": _where(lambda c: "A" <= c <= "Z"),
    "ASCII": _ASCII,
    "Alpha": _ALPHA,
    "Digit": _DIGIT,
    "Alnum": _ALPHA | _DIGIT,
    "Punct": _GRAPH - _ALPHA - _DIGIT,
    "Graph": _GRAPH,
    "Print": _GRAPH | {" "},
    "Blank": frozenset(" \t"),
    "Cntrl": _where(lambda c: c < " " or c == "\x7f"),
    "XDigit": frozenset("0123456789abcdefABCDEF"),
    "Space": _SPACE,
    "IsAlphabetic": _where(str.isalpha),
    "IsLowercase": _where(str.islower),
    "IsUppercase": _where(str.isupper),
    "IsDigit": _DIGIT,
    "IsLetter": _where(str.isalpha),
    "javaLowerCase": _where(str.islower),
    "javaUpperCase": _where(str.isupper),
    "javaLetter": _where(str.isalpha),
    "IsLatin": _where(lambda c: c.isalpha() and c != "µ"),
}
_CLASSES = {
    "d": _DIGIT,
    "w": _ALPHA | _DIGIT | {"_"},
    "s": _SPACE,
    "h": frozenset(" \t\xa0"),
    "v": frozenset("\n\x0b\f\r\x85"),
}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\x07", "e": "\x1b"}
_ASSERTIONS = {"b": r"\b", "B": r"\B", "A": r"\A", "z": r"\Z", "Z": r"(?=\n?\Z)"}
_LINE_BREAK = r"(?:\r\n|[\n\x0b\f\r\x85])"
_GROUP = re.compile(r"\(\?<([A-Za-z][A-Za-z0-9]*)>")
_FLAGS = re.compile(r"\(\?([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)])")
_LOOK = re.compile(r"\(\?(?:[:=!>]|<[=!])")
_CODE = re.compile(r"x([0-9a-fA-F]{2})|x\{([0-9a-fA-F]{1,6})\}|u([0-9a-fA-F]{4})")
_OCTAL = re.compile(r"0([0-3]?[0-7]{1,2})")
_NAME = re.compile(r"[pP](?:\{\^?([A-Za-z=_]+)\}|([A-Z]))")


class BadPattern(ValueError):
    """A pattern is invalid, unsupported or too costly."""


class _ClassPart(NamedTuple):
    """A part of a class: its characters, and whether it is a single character, which may start a range."""

    characters: frozenset[str]
    is_single: bool


class TooLong(ValueError):
    """A search in a text may take too long."""


class Searcher:
    """A compiled pattern."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self._linear = linear_search(pattern.pattern)
        self._is_quick = work(pattern.pattern, USUAL) <= LINEAR_FROM

    def search(self, text: str) -> bool:
        """Return whether the pattern is in a text. Raise TooLong: a search without re2 cannot be interrupted."""
        if self._is_quick and len(text) <= USUAL:
            return self._pattern.search(text) is not None
        if self._linear is not None and "\n" not in text:
            return self._linear(text.encode("latin-1", "replace"))
        if is_costly_on(self._pattern.pattern, len(text)):
            raise TooLong(f"May take too long on a value of {len(text)} characters: {self._pattern.pattern}")
        return self._pattern.search(text) is not None


@lru_cache(256)
def compile_pattern(java: str) -> Searcher:
    """Compile a Java pattern for searching. Raise BadPattern.

    >>> compile_pattern("^[a-z&&[^b]]++$").search("aca"), compile_pattern("^[a-z&&[^b]]++$").search("abc")
    (True, False)
    >>> compile_pattern("(a+)+$")
    Traceback (most recent call last):
    tsd.codec.regex.BadPattern: may take exponential time: (a+)+$
    """
    if len(java) > LONGEST:
        raise BadPattern(f"longer than {LONGEST} characters")
    try:
        python = java if _PLAIN.fullmatch(java) else _Rewriting(java).rewrite()
        pattern = re.compile(python, re.ASCII)
        if is_costly(python):
            raise BadPattern(f"may take exponential time: {java}")
    except (re.error, OverflowError, RecursionError) as exc:
        raise BadPattern(f"{exc}: {java}") from exc
    return Searcher(pattern)


def _listed(characters: frozenset[str]) -> str:
    """Return a Python character class. One without characters matches nothing.

    >>> _listed(frozenset("abcx"))
    '[\\\\U00000061-\\\\U00000063\\\\U00000078]'
    """
    if not characters:
        return r"(?!)"
    codes = sorted(map(ord, characters))
    firsts = [code for at, code in enumerate(codes) if not at or codes[at - 1] != code - 1]
    lasts = [code for at, code in enumerate(codes) if at + 1 == len(codes) or codes[at + 1] != code + 1]
    return "[" + "".join(map(_span, firsts, lasts)) + "]"


def _span(first: int, last: int) -> str:
    return f"\\U{first:08x}" if first == last else f"\\U{first:08x}-\\U{last:08x}"


class _Rewriting:
    """Rewrites one pattern."""

    def __init__(self, java: str) -> None:
        self._java = java
        self._at = 0
        self._open: list[list[str]] = [[]]  # for each open group, the flags set within it

    def rewrite(self) -> str:
        """Return the Python pattern. Raise BadPattern."""
        parts = []
        while self._at < len(self._java):
            parts.append(self._step())
        return "".join(parts) + ")" * len(self._open[0])

    def _step(self) -> str:
        character = self._java[self._at]
        if character == "\\":
            self._at += 1
            return self._escape()
        if character == "[":
            self._at += 1
            return _listed(self._class())
        if character == "(":
            return self._group()
        self._at += 1
        if character == "|":
            flags = self._open[-1]
            return ")" * len(flags) + "|" + "".join(flags)
        if character == ")":
            if len(self._open) == 1:
                raise BadPattern(f"unmatched closing ')': {self._java}")
            return ")" * (len(self._open.pop()) + 1)
        return character

    def _group(self) -> str:
        if flags := _FLAGS.match(self._java, self._at):
            return self._flags(flags)
        if named := _GROUP.match(self._java, self._at):
            self._at = named.end()
            self._open.append([])
            return f"(?P<{named[1]}>"
        begin = _LOOK.match(self._java, self._at)
        if begin is None and self._java.startswith("(?", self._at):
            raise BadPattern(f"unknown group: {self._java[self._at :]}")
        opening = begin[0] if begin else "("
        self._at += len(opening)
        self._open.append([])
        return opening

    def _flags(self, found: re.Match[str]) -> str:
        """Rewrite flags of a group, or flags up to the end of the enclosing group. `d` and `u` are dropped."""
        on, off, end = found[1], found[2] or "", found[3]
        unknown = set(on + off) - set("isdu")
        if unknown:
            raise BadPattern(f"flag {min(unknown)!r} is not supported: {self._java}")
        self._at = found.end()
        on, off = ("".join(flag for flag in flags if flag in "is") for flags in (on, off))
        opening = f"(?{on}{'-' + off if off else ''}:"
        if end == ":":
            self._open.append([])
        else:
            self._open[-1].append(opening)
        return opening

    def _escape(self) -> str:
        """Rewrite an escape outside a class."""
        rest = self._java[self._at :]
        if not rest:
            raise BadPattern(f"nothing after the last backslash: {self._java}")
        first = rest[0]
        if first in _ASSERTIONS:
            self._at += 1
            return _ASSERTIONS[first]
        if first == "Q":
            return re.escape(self._quoted())
        if first == "R":
            self._at += 1
            return _LINE_BREAK
        if first == "k" and (name := re.match(r"k<([A-Za-z][A-Za-z0-9]*)>", rest)):
            self._at += name.end()
            return f"(?P={name[1]})"
        if first in "123456789":
            self._at += 1
            return f"\\{first}(?:)"
        piece = self._piece()
        return re.escape(min(piece.characters)) if piece.is_single else _listed(piece.characters)

    def _quoted(self) -> str:
        """Return the text of \\Q…\\E."""
        text, end, _ = self._java[self._at + 1 :].partition("\\E")
        self._at += 1 + len(text) + len(end)
        return text

    def _piece(self) -> _ClassPart:
        """Return the characters of an escape within a class."""
        first = self._java[self._at]
        if first.lower() in _CLASSES:
            self._at += 1
            known = _CLASSES[first.lower()]
            return _ClassPart(known if first.islower() else CHARACTERS - known, False)
        if first in _CONTROLS:
            self._at += 1
            return _ClassPart(frozenset(_CONTROLS[first]), True)
        if name := _NAME.match(self._java, self._at):
            return self._property(name)
        if code := (_CODE.match(self._java, self._at) or _OCTAL.match(self._java, self._at)):
            self._at = code.end()
            number = int(next(filter(None, code.groups())), 8 if first == "0" else 16)
            if number > 0x10FFFF:
                raise BadPattern(f"no such character: {code[0]}")
            return _ClassPart(frozenset(chr(number)), True)
        if first == "c" and self._at + 1 < len(self._java):
            self._at += 2
            return _ClassPart(frozenset(chr(ord(self._java[self._at - 1]) ^ 64)), True)
        if first.isascii() and first.isalpha():
            raise BadPattern(f"\\{first} is not supported: {self._java}")
        self._at += 1
        return _ClassPart(frozenset(first), True)

    def _property(self, found: re.Match[str]) -> _ClassPart:
        """Return the characters of \\p{…}: a POSIX class, a property of Java, or a general category of Unicode."""
        self._at = found.end()
        name = (found[1] or found[2]).removeprefix("general_category=").removeprefix("gc=")
        known = _POSIX.get(name)
        if known is None:
            category = name.removeprefix("Is")
            if not re.fullmatch("[CLMNPSZ][a-z]?", category):
                raise BadPattern(f"unknown character property {name}: {self._java}")
            known = _where(lambda c: unicodedata.category(c).startswith(category))
        inverted = (found[0][0] == "P") != ("^" in found[0])
        return _ClassPart(CHARACTERS - known if inverted else known, False)

    def _class(self) -> frozenset[str]:
        """Return the characters of a class, up to its closing bracket."""
        java = self._java
        inverted = java.startswith("^", self._at)
        self._at += inverted
        whole = None  # intersection of the parts before the last &&
        found: frozenset[str] = frozenset()
        first = True
        while True:
            if self._at >= len(java):
                raise BadPattern(
                    f"Unclosed character class near index {len(java) - 1}\n{java}\n{' ' * (len(java) - 1)}^"
                )
            character = java[self._at]
            if character == "]" and not first:
                self._at += 1
                break
            if java.startswith("&&", self._at):
                self._at += 2
                whole, found = found if whole is None else whole & found, frozenset()
            elif character == "[":
                self._at += 1
                found |= self._class()
            else:
                found |= self._members()
            first = False
        found = found if whole is None else whole & found
        return CHARACTERS - found if inverted else found

    def _members(self) -> frozenset[str]:
        """Return the characters of the next part of a class: one character, an escape, or a range."""
        low = self._member()
        java = self._java
        if (
            not low.is_single
            or not java.startswith("-", self._at)
            or java[self._at + 1 : self._at + 2] in ("", "]", "[")
        ):
            return low.characters
        self._at += 1
        high = self._member()
        if not high.is_single:
            return low.characters | high.characters | {"-"}
        first, last = ord(min(low.characters)), ord(min(high.characters))
        if first > last:
            raise BadPattern(f"illegal character range: {java}")
        return frozenset(map(chr, range(first, min(last, 255) + 1)))

    def _member(self) -> _ClassPart:
        character = self._java[self._at]
        self._at += 1
        if character != "\\" or self._at >= len(self._java):
            return _ClassPart(frozenset(character), True)
        if self._java[self._at] == "Q":
            return _ClassPart(frozenset(self._quoted()), False)
        return self._piece()
