"""Reads files in Java's properties format, as OpenTSDB's configuration files have it.

Unlike in Java, files may be in UTF-8, and blanks after a value are removed: OpenTSDB fails on them (`tsd.mode = ro `
is read-write there).
"""

import codecs
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Property(NamedTuple):
    """One setting of a file."""

    line: int  # its first line, counted from 1
    key: str
    value: str


_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_KEY = re.compile(r"((?:[^\\:=\s]|\\.)*)[ \t\f]*[:=]?[ \t\f]*", re.DOTALL)
_NAMED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(path: Path) -> list[Property]:
    """Return the settings of a file in UTF-8, or in ISO-8859-1, which Java expects, if it is not valid UTF-8. A mark of
    byte order, as editors of Windows write it, is left out. Raise OSError."""
    data = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return parse_properties(text)


def parse_properties(text: str) -> list[Property]:
    """Return the settings of a file, in its order; a key may occur twice.

    >>> parse_properties("# a comment\\ntsd.network.port = 4242\\ntsd.mode: r\\\\\\n    w\\nflag")
    [Property(line=2, key='tsd.network.port', value='4242'), Property(line=3, key='tsd.mode', value='rw'), \
Property(line=5, key='flag', value='')]
    """
    found = []
    for number, line in _logical_lines(text):
        match = _KEY.match(line)
        assert match is not None  # it matches the empty string
        found.append(Property(number, _unescape(match[1]), _unescape(line[match.end() :]).rstrip()))
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with settings, continued ones joined, with the number of their first line."""
    joined, start = "", 0
    for number, raw in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = raw.lstrip(" \t\f")
        if not joined and (not line or line[0] in "#!"):
            continue
        start = start if joined else number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            joined += line[:-1]
            continue
        yield start, joined + line
        joined = ""
    if joined:
        yield start, joined


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if code[0] == "u" and len(code) == 5 else _NAMED.get(code, code)

    return _ESCAPE.sub(replace, text)
