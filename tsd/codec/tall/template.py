"""Templates of row keys: tags and texts, then a time or a day (FORMATS.md in this folder)."""

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from tsd.codec.tall.times import DAY_BYTES, EVENT_BYTES, day_text, event_text, parse_day, parse_event
from tsd.errors import CorruptRow

LONGEST_BIGTABLE_KEY = 4096  # bytes of a row key in Bigtable
_PART = re.compile(r"\{([^{}]*)\}|([^{}]+)")
_FIELD = re.compile(r"([^:={}]+)(?::(0?)([1-9][0-9]{0,2}))?(?:=(\S+))?")
_TEXT = re.compile(r"[!-~]+")


class RowTime(Enum):
    """The end of a row key: the time of an event, or the day of all points of the row."""

    EVENT = "ts"
    DAY = "day"


class TagField(NamedTuple):
    """A tag in a row key."""

    tag: str
    width: int = 0  # bytes, 0: as many as the value has
    is_number: bool = False  # digits, with zeros on the left; otherwise blanks are on the right
    label: str = ""  # column that has the value, too

    def encode(self, value: str) -> bytes:
        """Return a value as row keys have it. Raise ValueError.

        >>> TagField("meter", 6, is_number=True).encode("42"), TagField("exchange", 6).encode("NYSE")
        (b'000042', b'NYSE  ')
        """
        data = value.encode("latin-1")
        if self.is_number and not data.isdigit():
            raise ValueError(f"tag {self.tag}: got {value!r}, wanted digits")
        if self.is_number:
            data = data.lstrip(b"0") or b"0"
        if self.width and len(data) > self.width:
            raise ValueError(f"tag {self.tag}: got {value!r}, wanted up to {self.width} bytes")
        return data.rjust(self.width, b"0") if self.is_number else data.ljust(self.width)

    def decode(self, data: bytes) -> str:
        """Return the value of what row keys have. Raise ValueError."""
        if self.is_number and not data.isdigit():
            raise ValueError
        value = (data.lstrip(b"0") or b"0") if self.is_number else data.rstrip(b" ") if self.width else data
        if not value:
            raise ValueError
        return value.decode("latin-1")


class Template(NamedTuple):
    """A row key: its prefix, then its time."""

    parts: Sequence[TagField | bytes]  # of the prefix
    time: RowTime

    @property
    def fields(self) -> list[TagField]:
        """The tags in order."""
        return [part for part in self.parts if isinstance(part, TagField)]

    @property
    def time_bytes(self) -> int:
        """Length of the time."""
        return EVENT_BYTES if self.time is RowTime.EVENT else DAY_BYTES

    @property
    def prefix_bytes(self) -> int:
        """Length of all prefixes; 0 if they differ."""
        widths = [part.width if isinstance(part, TagField) else len(part) for part in self.parts]
        return sum(widths) if all(widths) else 0

    def prefix(self, tags: Mapping[str, str]) -> bytes:
        """Return the start of the row keys of some tags. Tags that are not part of a key are ignored. Raise ValueError.

        >>> parse_template("{exchange:6}{symbol:5}#{ts}").prefix({"exchange": "NYSE", "symbol": "IBM"})
        b'NYSE  IBM  #'
        """
        if missing := [field.tag for field in self.fields if field.tag not in tags]:
            raise ValueError(f"got no tag {', '.join(missing)}, wanted it for the row key")
        found = b"".join(part.encode(tags[part.tag]) if isinstance(part, TagField) else part for part in self.parts)
        if (size := len(found) + self.time_bytes) > LONGEST_BIGTABLE_KEY:
            raise ValueError(f"got a row key of {size} bytes, wanted up to {LONGEST_BIGTABLE_KEY}")
        try:
            is_plain = self._split(found) == self.key_tags(tags)
        except ValueError:
            is_plain = False
        if not is_plain:
            shown = " ".join(f"{field.tag}={tags[field.tag]}" for field in self.fields)
            raise ValueError(f"got {shown}, wanted values that can be separated from the text after them in row keys")
        return found

    def key_tags(self, tags: Mapping[str, str]) -> dict[str, str]:
        """Return the tags of the row key as a reader gets them: numbers have no zeros on the left. Raise ValueError."""
        return {field.tag: field.decode(field.encode(tags[field.tag])) for field in self.fields}

    def parse_prefix(self, data: bytes) -> dict[str, str]:
        """Return the tags of a prefix. Raise CorruptRow."""
        try:
            return self._split(data)
        except ValueError:
            raise CorruptRow(f"row key: got {data!r}, wanted {self.shown()}") from None

    def _split(self, data: bytes) -> dict[str, str]:
        """Return the tags of a prefix. Raise ValueError."""
        tags: dict[str, str] = {}
        at = 0
        for number, part in enumerate(self.parts):
            if isinstance(part, bytes):
                end = at + len(part)
                if data[at:end] != part:
                    raise ValueError
            else:
                after = self.parts[number + 1] if number + 1 < len(self.parts) else b""
                end = at + part.width if part.width else data.index(after, at) if isinstance(after, bytes) else at
                if end > len(data):
                    raise ValueError
                tags[part.tag] = part.decode(data[at:end])
            at = end
        if at != len(data):
            raise ValueError
        return tags

    def row_time(self, time_ms: int) -> int:
        """Return the time of the row that has a point: its own, or the start of its day."""
        return time_ms if self.time is RowTime.EVENT else time_ms // 86_400_000 * 86_400_000

    def time_text(self, row_ms: int) -> bytes:
        """Return the end of a row key."""
        return event_text(row_ms) if self.time is RowTime.EVENT else day_text(row_ms)

    def parse_key(self, key: bytes) -> tuple[bytes, int]:
        """Return the prefix and the time of a row key. Raise CorruptRow.

        >>> parse_template("{meter:010}#{day}").parse_key(b"0000000042#20140110")
        (b'0000000042#', 1389312000000)
        """
        width, parse = (EVENT_BYTES, parse_event) if self.time is RowTime.EVENT else (DAY_BYTES, parse_day)
        try:
            return key[:-width], parse(key[-width:])
        except ValueError:
            raise CorruptRow(f"row key: got {key!r}, wanted {self.shown()}") from None

    def shown(self) -> str:
        """Return the text of the template.

        >>> parse_template("{meter:010=ID}#{day}").shown()
        '{meter:010=ID}#{day}'
        """
        words = []
        for part in self.parts:
            if isinstance(part, bytes):
                words.append(part.decode())
                continue
            width = f":{'0' * part.is_number}{part.width}" if part.width else ""
            words.append(f"{{{part.tag}{width}{'=' * bool(part.label)}{part.label}}}")
        return "".join([*words, f"{{{self.time.value}}}"])


def parse_template(text: str) -> Template:
    """Return a template. Raise ValueError with what was wanted.

    >>> parse_template("{ts}#{host}")
    Traceback (most recent call last):
    ValueError: got '{ts}#{host}', wanted {ts} or {day} once, at the end
    """
    if "".join(match[0] for match in _PART.finditer(text)) != text or not text:
        raise ValueError(f"got {text!r}, wanted {{TAG}}, {{TAG:WIDTH}} or {{TAG:0WIDTH}}, then {{ts}} or {{day}}")
    *matches, last = _PART.finditer(text)
    times = {f"{{{time.value}}}": time for time in RowTime}
    if last[0] not in times or any(match[0] in times for match in matches):
        raise ValueError(f"got {text!r}, wanted {{ts}} or {{day}} once, at the end")
    parts: list[TagField | bytes] = []
    for match in matches:
        if match[2] is not None:
            if not _TEXT.fullmatch(match[2]):
                raise ValueError(f"got {text!r}, wanted visible characters of ASCII between the tags")
            parts.append(match[2].encode())
        else:
            parts.append(_parse_field(match[1], text))
    tags = [part.tag for part in parts if isinstance(part, TagField)]
    if not tags or len(set(tags)) < len(tags):
        raise ValueError(f"got {text!r}, wanted one tag or more, each once")
    for part, after in zip(parts, [*parts[1:], None], strict=True):
        if isinstance(part, TagField) and not part.width and not isinstance(after, bytes):
            raise ValueError(f"got {text!r}, wanted a width or a text after {{{part.tag}}}, as in {{{part.tag}}}#")
    return Template(tuple(parts), times[last[0]])


def _parse_field(text: str, template: str) -> TagField:
    """Return a field. Raise ValueError."""
    found = _FIELD.fullmatch(text)
    if found is None or not text.isascii():
        raise ValueError(f"got {{{text}}} in {template!r}, wanted {{TAG}}, {{TAG:WIDTH}} or {{TAG:0WIDTH}}")
    tag, zero, width, label = found.groups()
    return TagField(tag, int(width or 0), bool(zero), label or "")
