"""The charset of telnet lines. Names are stored in ISO-8859-1, which is also what OpenTSDB reads from telnet.

With UTF-8 lines are recoded before they are parsed, so that both parsers, the journal and the store see ISO-8859-1.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tsd.errors import ILLEGAL_ARGUMENT, BadLine
from tsd.ingest.lines import TooLong

POINT_COMMANDS = (b"put ", b"rollup ", b"histogram ", b"meta ")  # the other lines have no names
SHOWN_BYTES = 40  # of a line before its invalid byte


class Undecodable(NamedTuple):
    """A line without its LF that is not text of ISO-8859-1 in UTF-8, or has no put line."""

    line: bytes
    error: BadLine
    command: bytes


def recoded(pieces: Sequence[bytes | TooLong]) -> list[bytes | TooLong | Undecodable]:
    """Return blocks of whole lines in UTF-8 recoded to ISO-8859-1. Lines that cannot be are replaced.

    >>> recoded(["put m.ü 1 2 a=b\\n".encode()])
    [b'put m.\\xfc 1 2 a=b\\n']
    """
    found: list[bytes | TooLong | Undecodable] = []
    for piece in pieces:
        if isinstance(piece, TooLong) or piece.isascii():
            found.append(piece)
        else:
            found += _recoded_block(piece)
    return found


def _recoded_block(block: bytes) -> list[bytes | TooLong | Undecodable]:
    if block.startswith(b"put ") and block.count(b"\nput ") + 1 == block.count(b"\n"):
        try:
            return [block.decode().encode("latin-1")]
        except UnicodeError:
            pass  # of one line or another
    return translated_lines(block, recode)


def translated_lines(
    block: bytes, translate: Callable[[bytes], bytes | Undecodable]
) -> list[bytes | TooLong | Undecodable]:
    """Return what `translate` makes of each line of a block: blocks of lines, and those without one between them. It
    gets a line without its LF, and returns it with one."""
    found: list[bytes | TooLong | Undecodable] = []
    good: list[bytes] = []
    for line in block.split(b"\n")[:-1]:
        one = translate(line)
        if isinstance(one, bytes):
            good.append(one)
            continue
        if good:
            found.append(b"".join(good))
            good = []
        found.append(one)
    return [*found, b"".join(good)] if good else found


def recode(line: bytes) -> bytes | Undecodable:
    """Return a line with a point in ISO-8859-1, and any other line unchanged: it may contain telnet negotiation. The
    returned line has an LF.

    >>> recode("put m.日 1 2 a=b".encode()).error.args
    ("illegal argument: illegal character: 日: names have characters of ISO-8859-1 only, got 'put m.日 1 2 a=b'",)
    """
    if line.isascii() or not line.startswith(POINT_COMMANDS):
        return line + b"\n"
    try:
        text = line.decode()
    except UnicodeDecodeError as exc:
        before = line[max(exc.start - SHOWN_BYTES, 0) : exc.start].decode("utf-8", "replace")
        got = f"got byte 0x{line[exc.start]:02x} after {before!r}, wanted UTF-8 (tsd.network.telnet_charset)"
        message = f"illegal argument: invalid text: {got}"
        return Undecodable(line, BadLine(ILLEGAL_ARGUMENT, message), line.partition(b" ")[0])
    try:
        return text.encode("latin-1") + b"\n"
    except UnicodeEncodeError as exc:
        wanted = f"names have characters of ISO-8859-1 only, got {text[: 2 * SHOWN_BYTES]!r}"
        message = f"illegal argument: illegal character: {text[exc.start]}: {wanted}"
        return Undecodable(line, BadLine(ILLEGAL_ARGUMENT, message), line.partition(b" ")[0])


def legible(error: BadLine, line: bytes) -> BadLine:
    """Return the error of a line that was read as ISO-8859-1, with its characters as sent if the line is UTF-8.

    >>> str(legible(BadLine("illegal_arguments", 'invalid name ("Ã¼"): illegal character: ¼'), "put ü".encode()))
    'invalid name ("ü"): illegal character: \\\\xbc: the line is UTF-8, and tsd.network.telnet_charset is iso-8859-1'
    """
    message = str(error)
    if message.isascii() or not _is_utf8(line):
        return error
    shown = message.encode("latin-1", "backslashreplace").decode("utf-8", "backslashreplace")
    return BadLine(error.reason, f"{shown}: the line is UTF-8, and tsd.network.telnet_charset is iso-8859-1")


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
