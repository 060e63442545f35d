"""JSON as KairosDB's clients may write it: single quotes, bare words, comments, `=` for `:` and `;` for `,`.

Numbers stay texts (`Number`), because the text of a number decides how a point is stored.
"""

import re
from typing import TypeAlias

Lenient: TypeAlias = "Members | list[Lenient] | Number | str | bool | None"

MAX_DEPTH = 50
_SKIP = re.compile(r"(?:[ \t\r\n\ufeff]+|/\*.*?\*/|(?://|#)[^\n]*)*", re.DOTALL)
_PLAIN = re.compile(r'"([^"\\]*)"|\'([^\'\\]*)\'')
_WORD = re.compile(r"[^\s/\\;#=,:{}\[\]\"']+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": "\n"}
_WORDS = {"true": True, "false": False, "null": None}


class Number(str):
    """A number as written."""

    __slots__ = ()


class Members(dict[str, "Lenient"]):
    """An object. Of a repeated name the last value counts."""

    repeated: str | None = None  # a name that occurs more than once


class BadJson(ValueError):
    """Text that is no JSON; the message has the place."""


class Reader:
    """Reads values from a text, one after the other."""

    def __init__(self, text: str, at: int = 0) -> None:
        self.text = text
        self.at = at

    def peek(self) -> str:
        """Return the next character that is not blank and not in a comment; empty at the end."""
        found = _SKIP.match(self.text, self.at)
        assert found is not None  # it may be empty
        self.at = found.end()
        return self.text[self.at : self.at + 1]

    def skip(self, character: str) -> bool:
        """Skip a character if it is the next one. Return whether it was."""
        if self.peek() != character or not character:
            return False
        self.at += 1
        return True

    def error(self, wanted: str) -> BadJson:
        """Return the error for what is at the present place."""
        line = self.text.count("\n", 0, self.at) + 1
        column = self.at - (self.text.rfind("\n", 0, self.at) + 1) + 1
        got = repr(self.text[self.at : self.at + 20]) if self.at < len(self.text) else "the end of the input"
        return BadJson(f"got {got}, wanted {wanted} at line {line} column {column}")

    def value(self, depth: int = 0) -> Lenient:
        """Read a value. Raise BadJson."""
        if depth > MAX_DEPTH:
            raise self.error(f"at most {MAX_DEPTH} nested values")
        first = self.peek()
        if first == "{":
            return self._members(depth)
        if first == "[":
            return self._items(depth)
        if first in ('"', "'") and first:
            return self._quoted(first)
        return self._bare()

    def end(self) -> None:
        """Raise BadJson unless nothing follows."""
        if self.peek():
            raise self.error("the end of the input")

    def _members(self, depth: int) -> Members:
        self.at += 1
        found = Members()
        if self.skip("}"):
            return found
        while True:
            first = self.peek()
            name = self._quoted(first) if first in ('"', "'") and first else self._word("a name")
            if not self.skip(":"):
                if not self.skip("="):
                    raise self.error("a colon")
                self.skip(">")
            if name in found:
                found.repeated = name
            found[name] = self.value(depth + 1)
            if self.skip("}"):
                return found
            if not (self.skip(",") or self.skip(";")):
                raise self.error("a comma or }")

    def _items(self, depth: int) -> "list[Lenient]":
        self.at += 1
        found: list[Lenient] = []
        if self.skip("]"):
            return found
        while True:
            found.append(self.value(depth + 1))
            if self.skip("]"):
                return found
            if not (self.skip(",") or self.skip(";")):
                raise self.error("a comma or ]")

    def _word(self, wanted: str) -> str:
        found = _WORD.match(self.text, self.at)
        if found is None:
            raise self.error(wanted)
        self.at = found.end()
        return found[0]

    def _bare(self) -> Lenient:
        word = self._word("a value")
        lower = word.lower()
        if lower in _WORDS:
            return _WORDS[lower]
        return Number(word) if _NUMBER.fullmatch(word) else word

    def _quoted(self, quote: str) -> str:
        plain = _PLAIN.match(self.text, self.at)
        if plain is not None:
            self.at = plain.end()
            return plain[1] if plain[1] is not None else plain[2]
        parts: list[str] = []
        start = at = self.at + 1
        text = self.text
        while at < len(text):
            character = text[at]
            if character == quote:
                parts.append(text[start:at])
                self.at = at + 1
                return _joined("".join(parts))
            if character == "\\":
                parts.append(text[start:at])
                self.at = at
                parts.append(self._escape())
                start = at = self.at
            else:
                at += 1
        self.at = at
        raise self.error(f"a closing {quote}")

    def _escape(self) -> str:
        """Read an escape sequence. Raise BadJson."""
        character = self.text[self.at + 1 : self.at + 2]
        if character == "u":
            digits = self.text[self.at + 2 : self.at + 6]
            if not re.fullmatch("[0-9a-fA-F]{4}", digits):
                raise self.error("four hexadecimal digits")
            self.at += 6
            return chr(int(digits, 16))
        if not character:
            raise self.error("an escape sequence")
        self.at += 2
        return _ESCAPES.get(character, character)


def _joined(text: str) -> str:
    """Return a text with pairs of surrogates joined, and single ones replaced."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def read_value(text: str) -> Lenient:
    """Return the only value of a text. Raise BadJson.

    >>> read_value("{a: ['x', 1.50, true]} // comment")
    {'a': ['x', '1.50', True]}
    """
    reader = Reader(text)
    found = reader.value()
    reader.end()
    return found
