"""How telnet lines of another charset or dialect become put lines in ISO-8859-1 before they are parsed."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from tsd.codec.kairosline import COMMANDS, convert_line, split_words
from tsd.errors import BadLine
from tsd.ingest.charset import Undecodable, recoded, translated_lines
from tsd.ingest.lines import TooLong

# Put lines that mean the same to KairosDB and to OpenTSDB.
_PLAIN = re.compile(
    rb"(?:put [!#-~]++ (?:[12][0-9]{9}|[1-9][0-9]{12}) -?[0-9]{1,18}+(?:\.[0-9]++)?"
    rb"(?: (?!kairos_opt\.)[!#-<>-~]++=[!#-<>-~]++)++\n)*+"
)


class Translation(NamedTuple):
    """How lines are translated."""

    read: Callable[[Sequence[bytes | TooLong]], list[bytes | TooLong | Undecodable]]
    is_plain: Callable[[bytes], bool]  # whether whole lines need no translation
    has_texts: bool = False  # whether it makes lines of texts


def converted(
    pieces: Sequence[bytes | TooLong], *, has_ttl: bool = False, has_texts: bool = False
) -> list[bytes | TooLong | Undecodable]:
    """Return blocks of whole lines of KairosDB's dialect as put lines, and lines of texts. Lines without one are
    replaced. `has_ttl` and `has_texts`: the tables store a time to live, and texts.

    >>> converted([b"putm m 1356998400500 +1.50\\n"])
    [b'put m 1356998400500 1.5 add=tag\\n']
    """
    convert = partial(_convert, has_ttl=has_ttl, has_texts=has_texts)
    found: list[bytes | TooLong | Undecodable] = []
    for piece in pieces:
        if isinstance(piece, TooLong) or is_plain(piece):
            found.append(piece)
        else:
            found += translated_lines(piece, convert)
    return found


def is_plain(block: bytes) -> bool:
    """Return whether the lines of a block mean the same to KairosDB and to OpenTSDB.

    >>> is_plain(b"put m 1356998400 1 a=b\\n"), is_plain(b"put m 3000000000 1 a=b\\n"), is_plain(b"version\\n")
    (True, False, False)
    """
    return _PLAIN.fullmatch(block) is not None


def _convert(line: bytes, *, has_ttl: bool, has_texts: bool) -> bytes | Undecodable:
    """Return what a line becomes. Other commands are returned with their LF, and without blanks in front."""
    words = split_words(line)
    if not words or words[0] not in COMMANDS:
        return (b" ".join(words) if line[:1] <= b'"' else line) + b"\n"
    try:
        return convert_line(words, has_ttl=has_ttl, has_texts=has_texts)
    except BadLine as error:
        return Undecodable(line, error, words[0])


UTF_8 = Translation(recoded, bytes.isascii)


def kairosdb(*, has_ttl: bool, has_texts: bool) -> Translation:
    """Return the translation of KairosDB's dialect."""
    return Translation(partial(converted, has_ttl=has_ttl, has_texts=has_texts), is_plain, has_texts)
