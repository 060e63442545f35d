r"""Put lines as columns: names, times and values apart, which take half of the bytes of whole lines when compressed.

Names repeat. Without the digits between them zstd finds long matches. The text of the columns is

    NUL
    00000024 0000001a                        lengths of the names and times, in hexadecimal digits, without the space
    put sys.cpu.user host=web01 cpu=0\n...   the lines without their third and fourth word
    1700000000 1700000000 ...                the third word of each line and the space after it
    42.5 17 ...                              the fourth word

so that a truncated text still has whole lines, up to its last value. Without the compiled loop columns are read, but
not made.
"""

import os
from collections.abc import Iterator

try:
    from tsd.ingest.journal import _line_columns
except ImportError:  # installed without a C compiler
    HAS_LOOP = False
else:
    HAS_LOOP = not os.environ.get("TSD_PURE")  # TSD_PURE selects the Python code, to compare both

MARK = b"\0"  # at the start of columns: no line starts with it
_DIGITS = 8
_HEADER_BYTES = len(MARK) + 2 * _DIGITS


def columns_of(text: bytes) -> bytes | None:
    r"""Return whole lines as columns. Return None if a line has too few words, or without the compiled loop.

    >>> columns_of(b"put a 1700000000 17 b=c\n") if HAS_LOOP else b"\x000000000a0000000bput a b=c\n1700000000 17 "
    b'\x000000000a0000000bput a b=c\n1700000000 17 '
    """
    columns = _line_columns.apart(text) if HAS_LOOP else None
    if columns is None:
        return None
    names, times, _ = columns
    return b"".join((MARK, b"%08x%08x" % (len(names), len(times)), *columns))


def lines_of(text: bytes) -> bytes:
    r"""Return the lines of columns. Raise ValueError if these do not fit together.

    >>> lines_of(b"\x000000001400000006put a b=c\nput d b=c\n17 18 1 2.5 ")
    b'put a 17 1 b=c\nput d 18 2.5 b=c\n'
    """
    names, times, values = _split(text)
    if not names.count(b"\n") == times.count(b" ") == values.count(b" ") > 0:
        raise ValueError("names, times and values of lines do not fit together")
    if HAS_LOOP:
        return _line_columns.together(names, times, values)
    return b"".join(_joined(names, times, values))


def first_lines(text: bytes) -> bytes:
    """Return the lines of columns that may be cut or damaged, as far as they fit together."""
    try:
        return b"".join(_joined(*_split(text)))
    except ValueError:
        return b""


def _split(text: bytes) -> tuple[bytes, bytes, bytes]:
    """Return names, times and values. Raise ValueError."""
    names, times = (int(text[at : at + _DIGITS], 16) for at in (len(MARK), len(MARK) + _DIGITS))
    start = _HEADER_BYTES + names
    return text[_HEADER_BYTES:start], text[start : start + times], text[start + times :]


def _joined(names: bytes, times: bytes, values: bytes) -> Iterator[bytes]:
    """Yield lines until one of the columns ends. Raise ValueError for a line without two words."""
    columns = zip(names.split(b"\n"), times.split(b" "), values.split(b" ")[:-1], strict=False)
    for line, time, value in columns:
        command, metric, tags = line.split(b" ", 2)
        yield b"%b %b %b %b %b\n" % (command, metric, time, value, tags)
