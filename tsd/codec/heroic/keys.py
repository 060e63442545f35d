"""Row keys of Heroic's table `metrics` (FORMATS.md in this folder)."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tsd.codec.names import java_order
from tsd.errors import CorruptRow

SIZE_BITS = 7  # of one byte of a size
SIZE_BYTES = 4  # most bytes of a size: longer texts do not fit into a row key
BASE_BYTES = 8
LONGEST_HEROIC_KEY = 3999  # Heroic drops points with a key of 4,000 bytes or more, and answers that they were stored
SUFFIXES, RESOURCE = 1, 0  # the number of suffixes, and the kind of the only one

Pairs = tuple[tuple[str, str], ...]


class HeroicKey(NamedTuple):
    """A row of points of one series and resource. Tags and resource tags are in the order of their names."""

    metric: str
    tags: Pairs
    base_ms: int
    resource: Pairs = ()

    def encode(self) -> bytes:
        """Return the bytes. Raise ValueError for a name with half of a character.

        >>> HeroicKey("cpu", (("host", "a"),), 1696512081920).encode().hex()
        '0303637075010404686f73740101610000018b00000000'
        """
        return series_head(self.metric, self.tags) + encode_base(self.base_ms) + series_tail(self.resource)

    def shown(self) -> str:
        """Return the form of Heroic's documentation.

        >>> HeroicKey("cpu", (("host", "a"),), 1696512081920, (("podname", "p1"),)).shown()
        'cpu,host=a,1696512081920,p1'
        """
        tags = [f"{name}={value}" for name, value in self.tags]
        return ",".join([self.metric, *tags, str(self.base_ms), *(value for _, value in self.resource)])


def ordered(tags: Mapping[str, str]) -> Pairs:
    """Return tags in the order of their names, by UTF-16 units."""
    return tuple((name, tags[name]) for name in sorted(tags, key=java_order))


def encode_size(size: int) -> bytes:
    """Return a size: groups of seven bits, low ones first. Each next group is one less than in LEB128.

    >>> [encode_size(size).hex() for size in (127, 128, 255, 256, 16_511, 16_512)]
    ['7f', '8000', 'ff00', '8001', 'ff7f', '808000']
    """
    groups = bytearray()
    while size >> SIZE_BITS:
        groups.append(size & 0x7F | 0x80)
        size = (size >> SIZE_BITS) - 1
    groups.append(size)
    return bytes(groups)


def decode_size(data: bytes, at: int) -> tuple[int, int]:
    """Return the size at an index, and the index after it. Raise CorruptRow.

    >>> decode_size(bytes.fromhex("808000"), 0)
    (16512, 3)
    """
    size = 0
    for count in range(SIZE_BYTES):
        if at + count >= len(data):
            break
        byte = data[at + count]
        size += ((byte & 0x7F) + (count > 0)) << SIZE_BITS * count
        if byte < 0x80:
            return size, at + count + 1
    raise CorruptRow(f"row key: got {data.hex()}, wanted a size of up to {SIZE_BYTES} bytes at {at}")


def encode_base(base_ms: int) -> bytes:
    """Return a base time."""
    return base_ms.to_bytes(BASE_BYTES, "big", signed=True)


def metric_prefix(metric: str) -> bytes:
    """Return what all row keys of a metric begin with, and no others.

    >>> metric_prefix("cpu").hex()
    '0303637075'
    """
    return _string1(metric)


def series_head(metric: str, tags: Iterable[tuple[str, str]]) -> bytes:
    """Return the row key before the base time. Tags are ordered."""
    words = [_string1(name) + _string1(value) for name, value in tags]
    return b"".join([_string1(metric), encode_size(len(words)), *words])


def series_tail(resource: Pairs) -> bytes:
    """Return the row key after the base time; empty without a resource."""
    if not resource:
        return b""
    words = [_string2(name) + _string2(value) for name, value in resource]
    payload = encode_size(len(words)) + b"".join(words)
    return encode_size(SUFFIXES) + encode_size(RESOURCE) + encode_size(len(payload)) + payload


def parse_head(data: bytes) -> tuple[str, Pairs, int]:
    """Return metric, tags, and the index of the base time of a row key. Raise CorruptRow."""
    metric, at = _read_string1(data, 0)
    count, at = decode_size(data, at)
    tags: list[tuple[str, str]] = []
    for _ in range(count):
        name, at = _read_string1(data, at)
        value, at = _read_string1(data, at)
        tags.append((name, value))
    return metric, tuple(tags), at


def parse_tail(data: bytes) -> Pairs:
    """Return the resource of what follows a base time. Raise CorruptRow."""
    if not data:
        return ()
    count, at = decode_size(data, 0)
    kind, at = decode_size(data, at)
    length, at = decode_size(data, at)
    if (count, kind) != (SUFFIXES, RESOURCE) or at + length != len(data):
        raise CorruptRow(f"end of a row key: got {data.hex()}, wanted nothing, or one resource")
    entries, at = decode_size(data, at)
    resource: list[tuple[str, str]] = []
    for _ in range(entries):
        name, at = _read_string2(data, at)
        value, at = _read_string2(data, at)
        resource.append((name, value))
    if at != len(data):
        raise CorruptRow(f"end of a row key: got {data.hex()}, wanted {entries} entries of a resource")
    return tuple(resource)


def parse_heroic_key(key: bytes) -> HeroicKey:
    """Return a row key. Raise CorruptRow.

    >>> parse_heroic_key(bytes.fromhex("0303637075010404686f73740101610000018b00000000"))
    HeroicKey(metric='cpu', tags=(('host', 'a'),), base_ms=1696512081920, resource=())
    """
    metric, tags, at = parse_head(key)
    end = at + BASE_BYTES
    if end > len(key):
        raise CorruptRow(f"row key: got {key.hex()}, wanted {BASE_BYTES} bytes of a base time at {at}")
    base_ms = int.from_bytes(key[at:end], "big", signed=True)
    return HeroicKey(metric, tags, base_ms, parse_tail(key[end:]))


def _string1(text: str) -> bytes:
    data = text.encode()
    return encode_size(len(data)) + encode_size(_units(text)) + data


def _string2(text: str) -> bytes:
    data = text.encode()
    return encode_size(len(data)) + data


def _units(text: str) -> int:
    """Return the length in UTF-16 units."""
    return len(text) + sum(character > "\uffff" for character in text)


def _read_string1(data: bytes, at: int) -> tuple[str, int]:
    size, at = decode_size(data, at)
    units, at = decode_size(data, at)
    text, end = _text(data, at, size)
    missing = units - _units(text)
    if missing < 0:
        raise CorruptRow(f"row key: got {data.hex()}, wanted a text of {units} UTF-16 units at {at}")
    return text + "\0" * missing, end  # Heroic ends a text at half of a character, and counts what followed


def _read_string2(data: bytes, at: int) -> tuple[str, int]:
    size, at = decode_size(data, at)
    return _text(data, at, size)


def _text(data: bytes, at: int, size: int) -> tuple[str, int]:
    end = at + size
    try:
        if end > len(data):
            raise ValueError
        return data[at:end].decode(), end
    except ValueError:
        raise CorruptRow(f"row key: got {data.hex()}, wanted {size} bytes of UTF-8 at {at}") from None
