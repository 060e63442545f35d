"""The JSON of entities' points, written in compiled loops where there are any. Values are written by msgspec."""

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache

import msgspec

from tsd.codec.putline import Tags
from tsd.tables.entities import Entity

try:
    from tsd.api import _entity_json
except ImportError:  # installed without a C compiler
    HAS_LOOP = False
else:
    HAS_LOOP = not os.environ.get("TSD_PURE")  # TSD_PURE selects the Python code, to compare both

CHUNK_BYTES = 256 << 10
CACHED_HEADS = 50_000

Points = list[tuple[int, int | float]]
_encode = msgspec.json.Encoder().encode


def series_chunks(found: Entity, omitted: int) -> Iterator[bytes]:
    """Yield the JSON of an entity."""
    head = _encode({"entity": found.name.decode("latin-1"), "metadata": found.metadata, "omitted": omitted})
    yield from _joined(head[:-1] + b',"series":[', _series(found))


def many_chunks(entities: Sequence[Entity], next_name: bytes | None) -> Iterator[bytes]:
    """Yield the JSON of the series of many entities."""
    shown = (
        b'%b,"series":[%b]}' % (_encode({"entity": entity.name.decode("latin-1")})[:-1], b",".join(_series(entity)))
        for entity in entities
    )
    yield from _joined(_page_head(next_name), shown)


def inventory_chunks(entities: Sequence[Entity], next_name: bytes | None) -> Iterator[bytes]:
    """Yield the JSON of newest values. Each entity has a series at least."""
    shown = (
        b'%b,"series":%b}' % (_encode({"entity": entity.name.decode("latin-1")})[:-1], newest_json(entity))
        for entity in entities
    )
    yield from _joined(_page_head(next_name), shown)


def _page_head(next_name: bytes | None) -> bytes:
    return _encode({"next": None if next_name is None else next_name.decode("latin-1")})[:-1] + b',"entities":['


def _series(found: Entity) -> Iterator[bytes]:
    """Yield the JSON of each series."""
    for series, points in found.series.items():
        yield b'%b,"dps":%b}' % (_head(*series), points_json(points))


def points_json(points: Points, *, compiled: bool = HAS_LOOP) -> bytes:
    """Return the JSON of points, none of whose times repeats, as an object with times as keys.

    >>> points_json([(1000, 5), (2000, 0.5)])
    b'{"1000":5,"2000":0.5}'
    """
    if compiled:
        return _entity_json.points_object(points, _encode([value for _, value in points]))
    return _encode({str(time_ms): value for time_ms, value in points})


def newest_json(entity: Entity, *, compiled: bool = HAS_LOOP) -> bytes:
    """Return the JSON of an entity's newest values, as a list of series. There is one at least."""
    points = [each[-1] for each in entity.series.values()]
    heads = [_head(*series) for series in entity.series]
    times, values = [time_ms for time_ms, _ in points], _encode([value for _, value in points])
    if compiled:
        return _entity_json.newest_list(heads, times, values)
    shown = zip(heads, times, values[1:-1].split(b","), strict=True)
    return b"[%b]" % b",".join(b'%b,"timestamp":%d,"value":%b}' % each for each in shown)


@lru_cache(CACHED_HEADS)
def _head(metric: bytes, pairs: Tags) -> bytes:
    """Return the JSON of a series' names, without its end; many entities have the same."""
    tags = {tagk.decode("latin-1"): tagv.decode("latin-1") for tagk, tagv in pairs}
    return _encode({"metric": metric.decode("latin-1"), "tags": tags})[:-1]


def _joined(head: bytes, shown: Iterator[bytes]) -> Iterator[bytes]:
    """Yield chunks of an object that ends with a list."""
    parts, size = [head], len(head)
    comma = b""
    for text in shown:
        parts += (comma, text)
        comma = b","
        size += len(text)
        if size >= CHUNK_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
    yield b"".join(parts) + b"]}"
