"""Java's regular expressions → Python's, for values whose characters are all below U+0100.

What Java writes otherwise is rewritten: character classes become lists of characters, so that their unions,
intersections and `\\p{…}` mean the same. What has no equal is refused. A pattern may come from anybody: `cost` tells
what could take exponential time, as Python's matcher cannot be stopped.
"""

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from tsd.pattern_cost import is_costly

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
    """A pattern that is none, or that cannot be run here."""


class _Piece(NamedTuple):
    """A part of a class: characters, and whether it was a single one, which may begin a range."""

    characters: frozenset[str]
    is_single: bool


@lru_cache(256)
def compile_pattern(java: str) -> re.Pattern[str]:
    """A pattern of Java's, to be searched for; raises BadPattern.

    >>> bool(compile_pattern("^[a-z&&[^b]]++$").search("aca")), bool(compile_pattern("^[a-z&&[^b]]++$").search("abc"))
    (True, False)
    >>> compile_pattern("(a+)+$")
    Traceback (most recent call last):
    tsd.query.patterns.BadPattern: may take exponential time: (a+)+$
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
    return pattern


def _listed(characters: frozenset[str]) -> str:
    """A class of Python's. One without characters matches nothing.

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
    """A walk through a pattern."""

    def __init__(self, java: str) -> None:
        self._java = java
        self._at = 0
        self._open: list[list[str]] = [[]]  # for each group that is open, the flags that hold in it from some place on

    def rewrite(self) -> str:
        """Python's pattern; raises BadPattern."""
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
        begun = begin[0] if begin else "("
        self._at += len(begun)
        self._open.append([])
        return begun

    def _flags(self, found: re.Match[str]) -> str:
        """Flags of a group, or from here on to the end of the group they are in. Only `i` and `s` mean the same."""
        on, off, end = found[1], found[2] or "", found[3]
        unknown = set(on + off) - set("isdu")
        if unknown:
            raise BadPattern(f"flag {min(unknown)!r} has no equal here: {self._java}")
        self._at = found.end()
        on, off = ("".join(flag for flag in flags if flag in "is") for flags in (on, off))
        begun = f"(?{on}{'-' + off if off else ''}:"
        if end == ":":
            self._open.append([])
        else:
            self._open[-1].append(begun)
        return begun

    def _escape(self) -> str:
        """What stands behind a backslash, outside a class."""
        rest = self._java[self._at :]
        if not rest:
            raise BadPattern(f"nothing behind the last backslash: {self._java}")
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
        """The text of \\Q…\\E."""
        text, end, _ = self._java[self._at + 1 :].partition("\\E")
        self._at += 1 + len(text) + len(end)
        return text

    def _piece(self) -> _Piece:
        """The characters that an escape stands for."""
        first = self._java[self._at]
        if first.lower() in _CLASSES:
            self._at += 1
            known = _CLASSES[first.lower()]
            return _Piece(known if first.islower() else CHARACTERS - known, False)
        if first in _CONTROLS:
            self._at += 1
            return _Piece(frozenset(_CONTROLS[first]), True)
        if name := _NAME.match(self._java, self._at):
            return self._property(name)
        if code := (_CODE.match(self._java, self._at) or _OCTAL.match(self._java, self._at)):
            self._at = code.end()
            number = int(next(filter(None, code.groups())), 8 if first == "0" else 16)
            if number > 0x10FFFF:
                raise BadPattern(f"no such character: {code[0]}")
            return _Piece(frozenset(chr(number)), True)
        if first == "c" and self._at + 1 < len(self._java):
            self._at += 2
            return _Piece(frozenset(chr(ord(self._java[self._at - 1]) ^ 64)), True)
        if first.isascii() and first.isalpha():
            raise BadPattern(f"\\{first} has no equal here: {self._java}")
        self._at += 1
        return _Piece(frozenset(first), True)

    def _property(self, found: re.Match[str]) -> _Piece:
        """\\p{…}: a name of POSIX's, or a general category of Unicode's."""
        self._at = found.end()
        name = (found[1] or found[2]).removeprefix("general_category=").removeprefix("gc=")
        known = _POSIX.get(name)
        if known is None:
            category = name.removeprefix("Is")
            if not re.fullmatch("[CLMNPSZ][a-z]?", category):
                raise BadPattern(f"unknown character property {name}: {self._java}")
            known = _where(lambda c: unicodedata.category(c).startswith(category))
        inverted = (found[0][0] == "P") != ("^" in found[0])
        return _Piece(CHARACTERS - known if inverted else known, False)

    def _class(self) -> frozenset[str]:
        """The characters of a class, up to its closing bracket."""
        java = self._java
        inverted = java.startswith("^", self._at)
        self._at += inverted
        whole = None  # of the parts before the last &&
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
        """One character of a class, an escape, or a range."""
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

    def _member(self) -> _Piece:
        character = self._java[self._at]
        self._at += 1
        if character != "\\" or self._at >= len(self._java):
            return _Piece(frozenset(character), True)
        if self._java[self._at] == "Q":
            return _Piece(frozenset(self._quoted()), False)
        return self._piece()
