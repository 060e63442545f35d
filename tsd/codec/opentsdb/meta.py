"""Metadata of UIDs and of time series (FORMATS.md §10)."""

from tsd.codec.metadata import TsMeta, UidMeta
from tsd.codec.names import Kind
from tsd.codec.opentsdb.uid import NAME_FAMILY
from tsd.codec.text import custom_of, decode_object, double_of, encode_object, hashed_custom, long_of, text_of
from tsd.errors import CorruptRow

TS_META = NAME_FAMILY + b":ts_meta"  # in the meta table, under the TSUID
TS_COUNTER = NAME_FAMILY + b":ts_ctr"  # written when the series gets points
NO_COUNT = (1).to_bytes(8, "big")  # its value while points are not counted


def encode_uid_meta(meta: UidMeta) -> bytes:
    """Return the value of a UID's `meta_column`.

    >>> encode_uid_meta(UidMeta(Kind.TAGK, created_s=1795231948))
    b'{"type":"TAGK","displayName":"","description":"","notes":"","created":1795231948,"custom":null}'
    """
    return encode_object(
        {
            "type": meta.kind.name,
            "displayName": meta.display_name,
            "description": meta.description,
            "notes": meta.notes,
            "created": meta.created_s,
            "custom": hashed_custom(meta.custom),
        }
    )


def decode_uid_meta(value: bytes) -> UidMeta:
    """Return the metadata in a UID's `meta_column`. Raise CorruptRow.

    >>> decode_uid_meta(b'{"type":"METRIC","notes":"n"}').notes
    'n'
    """
    members = decode_object(value)
    name = text_of(members, "type")
    if name not in Kind.__members__:
        raise CorruptRow(f"type: got {name!r}, wanted one of {', '.join(Kind.__members__)}")
    return UidMeta(
        kind=Kind[name],
        display_name=text_of(members, "displayName"),
        description=text_of(members, "description"),
        notes=text_of(members, "notes"),
        created_s=long_of(members, "created"),
        custom=custom_of(members),
    )


def encode_ts_meta(meta: TsMeta) -> bytes:
    """Return the value of TS_META.

    >>> encode_ts_meta(TsMeta("000001000001000001", max=42.0))[-37:]
    b'"retention":0,"max":42.0,"min":"NaN"}'
    """
    return encode_object(
        {
            "tsuid": meta.tsuid,
            "displayName": meta.display_name,
            "description": meta.description,
            "notes": meta.notes,
            "created": meta.created_s,
            "custom": hashed_custom(meta.custom),
            "units": meta.units,
            "dataType": meta.data_type,
            "retention": meta.retention,
            "max": meta.max,
            "min": meta.min,
        }
    )


def decode_ts_meta(value: bytes) -> TsMeta:
    """Return the metadata in TS_META. Raise CorruptRow.

    >>> decode_ts_meta(b'{"tsuid":"000001000001000001","max":42.0,"min":"NaN"}').max
    42.0
    """
    members = decode_object(value)
    return TsMeta(
        tsuid=text_of(members, "tsuid"),
        display_name=text_of(members, "displayName"),
        description=text_of(members, "description"),
        notes=text_of(members, "notes"),
        created_s=long_of(members, "created"),
        custom=custom_of(members),
        units=text_of(members, "units"),
        data_type=text_of(members, "dataType"),
        retention=long_of(members, "retention"),
        max=double_of(members, "max"),
        min=double_of(members, "min"),
    )


def decode_count(value: bytes) -> int:
    """Return the number in TS_COUNTER. Raise CorruptRow unless it has 8 bytes."""
    if len(value) != 8:
        raise CorruptRow(f"a series' counter has 8 bytes, got {len(value)}: {value.hex()}")
    return int.from_bytes(value, "big", signed=True)
