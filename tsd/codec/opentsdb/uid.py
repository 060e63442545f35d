"""UIDs, and the UID table's rows and columns (FORMATS.md §2).

A UID is a big-endian number of fixed width, counted from 1. The UID table maps names to UIDs (family `id`), UIDs to
names (family `name`), and holds in its first row the highest UID handed out of each kind.
"""

import enum
from typing import NamedTuple, NewType

Uid = NewType("Uid", bytes)

COUNTER_ROW = b"\x00"
ID_FAMILY = b"id"
NAME_FAMILY = b"name"


class Kind(enum.Enum):
    """What a name names. The value is the qualifier of its cells, and how OpenTSDB spells the kind."""

    METRIC = "metrics"
    TAGK = "tagk"
    TAGV = "tagv"

    @property
    def id_column(self) -> bytes:
        """Column that holds a name's UID, and in COUNTER_ROW the highest UID (8 bytes)."""
        return ID_FAMILY + b":" + self.value.encode()

    @property
    def name_column(self) -> bytes:
        """Column that holds a UID's name."""
        return NAME_FAMILY + b":" + self.value.encode()

    @property
    def meta_column(self) -> bytes:
        """Column of a UID's optional UIDMeta (singular for metrics: `metric_meta`)."""
        return NAME_FAMILY + (b":metric_meta" if self is Kind.METRIC else f":{self.value}_meta".encode())


class Widths(NamedTuple):
    """Bytes of a UID of each kind: 1 to 8, fixed for the life of the tables."""

    metric: int = 3
    tagk: int = 3
    tagv: int = 3

    @property
    def pair(self) -> int:
        """Bytes of one tag in a row key."""
        return self.tagk + self.tagv

    def of(self, kind: Kind) -> int:
        """The width of one kind."""
        return self.metric if kind is Kind.METRIC else self.tagk if kind is Kind.TAGK else self.tagv


def encode_uid(number: int, width: int) -> Uid:
    """The UID of a number that fits.

    >>> encode_uid(1, 3).hex()
    '000001'
    """
    return Uid(number.to_bytes(width, "big"))


def decode_uid(uid: bytes) -> int:
    """The number of a UID.

    >>> decode_uid(bytes.fromhex("0000ff"))
    255
    """
    return int.from_bytes(uid, "big")


def capacity(width: int) -> int:
    """How many UIDs of that width there are; 0 is none.

    >>> capacity(3)
    16777215
    """
    return (1 << 8 * width) - 1


def encode_counter(number: int) -> bytes:
    """The counter cell's value: a signed 8-byte number.

    >>> encode_counter(6).hex()
    '0000000000000006'
    """
    return number.to_bytes(8, "big", signed=True)


def decode_counter(value: bytes) -> int:
    """The number in a counter cell; raises ValueError unless it has 8 bytes."""
    if len(value) != 8:
        raise ValueError(f"a UID counter has 8 bytes, got {len(value)}: {value.hex()}")
    return int.from_bytes(value, "big", signed=True)
