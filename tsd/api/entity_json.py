"""The JSON of entities' points, written in compiled loops where there are any. Values are written by msgspec."""

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import msgspec

from tsd.store.versions import VersionColumns
from tsd.tables.entity_decode import numbers_of, series_of

try:
    from tsd.api import _entity_json
except ImportError:  # installed without a C compiler
    HAS_LOOP = False
else:
    HAS_LOOP = not os.environ.get("TSD_PURE")  # TSD_PURE selects the Python code, to compare both

CHUNK_POINTS = 5000  # at least, but in the last chunk: about 100 to 400 KiB
CACHED_HEADS = 50_000

_encode = msgspec.json.Encoder().encode


def series_chunks(name: bytes, metadata: Mapping[str, str], columns: VersionColumns, omitted: int) -> Iterator[bytes]:
    """Yield the JSON of one entity."""
    head = _encode({"entity": name.decode("latin-1"), "metadata": metadata, "omitted": omitted})
    yield head[:-1] + b',"series":['
    heads = [b"," + head_of(column) for _, column in columns.places]
    if heads:
        heads[0] = heads[0][1:]
    yield from _points_chunks(heads, columns)
    yield b"]}"


def many_chunks(pages: list[VersionColumns], next_name: bytes | None) -> Iterator[bytes]:
    """Yield the JSON of the series of many entities. Remove each page from the list, to free its memory."""
    rows = _Rows()
    yield _page_head(next_name)
    while pages:
        columns = pages.pop(0)
        yield from _points_chunks(rows.heads(columns.places), columns)
    yield rows.end()


def inventory_chunks(pages: list[VersionColumns], next_name: bytes | None) -> Iterator[bytes]:
    """Yield the JSON of newest values: each place has one version. Remove each page from the list, to free its
    memory."""
    rows = _Rows()
    yield _page_head(next_name)
    while pages:
        columns = pages.pop(0)
        for first in range(0, len(columns.places), CHUNK_POINTS):
            places = columns.places[first : first + CHUNK_POINTS]
            yield newest_json(rows.heads(places), columns, first)
    yield rows.end()


class _Rows:
    """Heads of series of one entity after another."""

    def __init__(self) -> None:
        self._row: bytes | None = None

    def heads(self, places: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
        """Return what is before the points of each place: the end of the series before, and the names."""
        found, before = [], self._row
        for row, column in places:
            if row == before:
                found.append(_next_head(column))
                continue
            between = b"" if before is None else b"]},"
            found.append(b'%b%b,"series":[%b' % (between, _entity_head(row), head_of(column)))
            before = row
        self._row = before
        return found

    def end(self) -> bytes:
        """Return the end of the answer."""
        return b"]}" if self._row is None else b"]}]}"


def _entity_head(name: bytes) -> bytes:
    return _encode({"entity": name.decode("latin-1")})[:-1]


def _page_head(next_name: bytes | None) -> bytes:
    return _encode({"next": None if next_name is None else next_name.decode("latin-1")})[:-1] + b',"entities":['


def _points_chunks(heads: Sequence[bytes], columns: VersionColumns) -> Iterator[bytes]:
    """Yield the JSON of the series after `heads`."""
    bounds = columns.bounds
    first, places = 0, len(columns.places)
    while first < places:
        last = max(int(bounds.searchsorted(bounds[first] + CHUNK_POINTS, "right")) - 1, first + 1)
        yield points_json(heads[first:last], columns, first)
        first = last


def _numbers_json(columns: VersionColumns, first: int, last: int) -> bytes:
    """Return the JSON list of the values of some versions."""
    begin = int(columns.ends[first - 1]) if first else 0
    ends = columns.ends[first:last]
    size = int(ends[-1]) if len(ends) else begin
    return _encode(numbers_of(ends - begin, columns.values[begin:size]))


def points_json(heads: Sequence[bytes], columns: VersionColumns, first: int, *, compiled: bool = HAS_LOOP) -> bytes:
    """Return the JSON of some places from `first` on, each after its head: an object with times as keys."""
    bounds = columns.bounds[first : first + len(heads) + 1]
    begin, end = int(bounds[0]), int(bounds[-1])
    times, values = columns.times_ms[begin:end], _numbers_json(columns, begin, end)
    if compiled:
        return _entity_json.points_list(list(heads), bounds - begin, times, values)
    shown = [b'"%d":%b' % each for each in zip(times.tolist(), _split(values), strict=True)]
    parts = []
    for at, head in enumerate(heads):
        start, stop = (bounds[at : at + 2] - begin).tolist()
        parts.append(b'%b,"dps":{%b}}' % (head, b",".join(shown[start:stop])))
    return b"".join(parts)


def newest_json(heads: Sequence[bytes], columns: VersionColumns, first: int, *, compiled: bool = HAS_LOOP) -> bytes:
    """Return the JSON of some places with one version each, from `first` on, each after its head."""
    times, values = columns.times_ms[first : first + len(heads)], _numbers_json(columns, first, first + len(heads))
    if compiled:
        return _entity_json.newest_list(list(heads), times, values)
    shown = zip(heads, times.tolist(), _split(values), strict=True)
    return b"".join(b'%b,"timestamp":%d,"value":%b}' % each for each in shown)


def _split(values: bytes) -> list[bytes]:
    """Return the texts of a list of numbers."""
    return values[1:-1].split(b",") if len(values) > 2 else []


@lru_cache(CACHED_HEADS)
def head_of(column: bytes) -> bytes:
    """Return the JSON of a series' names, without its end; many entities have the same."""
    metric, pairs = series_of(column)
    tags = {tagk.decode("latin-1"): tagv.decode("latin-1") for tagk, tagv in pairs}
    return _encode({"metric": metric.decode("latin-1"), "tags": tags})[:-1]


@lru_cache(CACHED_HEADS)
def _next_head(column: bytes) -> bytes:
    return b"," + head_of(column)
