"""Annotations: in the rows of their series, or in global rows (FORMATS.md §7)."""

from tsd.codec.metadata import Annotation
from tsd.codec.opentsdb.cell import Qualifier
from tsd.codec.opentsdb.rowkey import KeyLayout, RowKey, row_key
from tsd.codec.putline import FIRST_MS, base_time
from tsd.codec.text import Json, custom_of, decode_object, encode_object, long_of, sorted_custom, text_of
from tsd.errors import CorruptRow

ANNOTATION = b"\x01"  # first byte of the qualifier


def encode_annotation(annotation: Annotation) -> bytes:
    """Return the cell's value.

    >>> encode_annotation(Annotation(1356998400, description="d"))
    b'{"startTime":1356998400,"endTime":0,"description":"d","notes":"","custom":null}'
    """
    owner: dict[str, Json] = {"tsuid": annotation.tsuid} if annotation.tsuid else {}
    return encode_object(
        owner
        | {
            "startTime": annotation.start_time,
            "endTime": annotation.end_time,
            "description": annotation.description,
            "notes": annotation.notes,
            "custom": sorted_custom(annotation.custom),
        }
    )


def decode_annotation(value: bytes) -> Annotation:
    """Return the annotation in a cell's value. Raise CorruptRow. Unknown members are ignored.

    >>> decode_annotation(b'{"startTime":1356998400,"description":"d"}').description
    'd'
    """
    members = decode_object(value)
    return Annotation(
        start_time=long_of(members, "startTime"),
        end_time=long_of(members, "endTime"),
        description=text_of(members, "description"),
        notes=text_of(members, "notes"),
        tsuid=text_of(members, "tsuid"),
        custom=custom_of(members),
    )


def annotation_qualifier(start_time: int) -> Qualifier:
    """Return the column of an annotation that starts at `start_time` (above 0).

    A full second in ms is stored as seconds, so that one second has one column. OpenTSDB divides every time that is a
    multiple of 1000, also seconds, which moves those within the hour. The columns must be the same; the value has the
    true time.

    >>> [annotation_qualifier(t).hex() for t in (1356998401, 1356998401000, 1356998400500, 1357000000)]
    ['010001', '010001', '01000001f4', '010d48']
    """
    assert start_time > 0, start_time
    time = start_time if start_time % 1000 else start_time // 1000
    if time >= FIRST_MS:
        return Qualifier(ANNOTATION + (time - base_time(time) * 1000).to_bytes(4, "big"))
    return Qualifier(ANNOTATION + (time - base_time(time)).to_bytes(2, "big"))


def annotation_offset_ms(qualifier: bytes) -> int:
    """Return the milliseconds after the row's base time in an annotation's column. Raise CorruptRow.

    >>> annotation_offset_ms(bytes.fromhex("010001")), annotation_offset_ms(bytes.fromhex("01000001f4"))
    (1000, 500)
    """
    if qualifier[:1] != ANNOTATION or len(qualifier) not in (3, 5):
        raise CorruptRow(f"got {qualifier.hex()}, wanted 01 and 2 or 4 bytes")
    offset = int.from_bytes(qualifier[1:], "big")
    return offset if len(qualifier) == 5 else offset * 1000


def annotation_row(layout: KeyLayout, start_time: int, tsuid: bytes = b"") -> RowKey:
    """Return the row of an annotation that starts at `start_time`, on the series of a TSUID, or global without one.

    >>> annotation_row(KeyLayout(), 1357000000, bytes.fromhex("000001000001000001")).hex()
    '00000150e22700000001000001'
    >>> annotation_row(KeyLayout(salt_width=1), 1356998455123).hex()
    '0000000050e22700'
    """
    metric = layout.widths.metric
    return row_key(layout, tsuid[:metric] or bytes(metric), base_time(start_time), tsuid[metric:])
