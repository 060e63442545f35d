"""UIDs, and the UID table's rows and columns (FORMATS.md §2).

A UID is a big-endian number of fixed width, counted from 1. The UID table maps names to UIDs (family `id`) and UIDs to
names (family `name`). Its first row has the highest UID of each kind that was handed out.
"""

from typing import NewType

from tsd.codec.names import Kind

Uid = NewType("Uid", bytes)

COUNTER_ROW = b"\x00"
ID_FAMILY = b"id"
NAME_FAMILY = b"name"


def id_column(kind: Kind) -> bytes:
    """Return the column that holds a name's UID and, in COUNTER_ROW, the highest UID (8 bytes)."""
    return ID_FAMILY + b":" + kind.value.encode()


def name_column(kind: Kind) -> bytes:
    """Return the column that holds a UID's name."""
    return NAME_FAMILY + b":" + kind.value.encode()


def meta_column(kind: Kind) -> bytes:
    """Return the column of a UID's optional UIDMeta (singular for metrics: `metric_meta`)."""
    return NAME_FAMILY + (b":metric_meta" if kind is Kind.METRIC else f":{kind.value}_meta".encode())


def encode_uid(number: int, width: int) -> Uid:
    """Return the UID of a number.

    >>> encode_uid(1, 3).hex()
    '000001'
    """
    return Uid(number.to_bytes(width, "big"))


def decode_uid(uid: bytes) -> int:
    """Return the number of a UID.

    >>> decode_uid(bytes.fromhex("0000ff"))
    255
    """
    return int.from_bytes(uid, "big")


def capacity(width: int) -> int:
    """Return the number of UIDs of a width; 0 is not a UID.

    >>> capacity(3)
    16777215
    """
    return (1 << 8 * width) - 1


def encode_counter(number: int) -> bytes:
    """Return the value of a counter cell: a signed 8-byte number.

    >>> encode_counter(6).hex()
    '0000000000000006'
    """
    return number.to_bytes(8, "big", signed=True)


def decode_counter(value: bytes) -> int:
    """Return the number in a counter cell. Raise ValueError unless it has 8 bytes."""
    if len(value) != 8:
        raise ValueError(f"a UID counter has 8 bytes, got {len(value)}: {value.hex()}")
    return int.from_bytes(value, "big", signed=True)
