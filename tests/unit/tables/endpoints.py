"""Endpoints without a socket: a store with OpenTSDB's tables, requests as clients write them."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from tsd.codec.names import Kind, Widths
from tsd.codec.opentsdb.rowkey import KeyLayout, join_pairs
from tsd.codec.opentsdb.uid import ID_FAMILY, NAME_FAMILY
from tsd.errors import Refused
from tsd.server.http.messages import Endpoint, Request
from tsd.store import Family, Store, Table
from tsd.store.memory import MemoryStore
from tsd.tables.opentsdb.catalog import OpentsdbCatalog, UidNames
from tsd.tables.opentsdb.data_table import DataTable
from tsd.tables.opentsdb.last_point_cache import LastPointCache
from tsd.tables.opentsdb.last_points import LastPointReader
from tsd.tables.opentsdb.lookup import LookupTables, RowScanRules, SeriesFinder
from tsd.tables.opentsdb.metadata import MetadataTables, MetaTable, UidMetas
from tsd.tables.opentsdb.trees import TreeTable
from tsd.tables.opentsdb.uids import Uids

NOW_MS = 1_700_000_000_000
TABLES = [
    Table("tsdb", (Family(b"t"),)),
    Table("tsdb-uid", (Family(ID_FAMILY), Family(NAME_FAMILY))),
    Table("tsdb-tree", (Family(b"t"),)),
    Table("tsdb-meta", (Family(NAME_FAMILY),)),
]


async def at_once(_: bytes) -> None:
    """Whatever came is stored."""


async def flushed() -> bool:
    """Return that all points are stored."""
    return True


class EndpointResponse(NamedTuple):
    """An answer."""

    status: int
    body: Any  # JSON, or "" for none


class World:
    """A store, its UIDs, and the endpoints that a test gives it."""

    def __init__(self, store: Store, layout: KeyLayout = KeyLayout()) -> None:  # noqa: B008
        self.store = store
        self.layout = layout
        self.uids = Uids(store, "tsdb-uid", Widths())
        self.endpoints: dict[str, Endpoint] = {}
        self.dropped = 0

    def catalog(self, finder: SeriesFinder | None = None, points: LastPointReader | None = None) -> OpentsdbCatalog:
        """The series of the store, found and read by the given parts."""
        widths, cache = self.layout.widths, LastPointCache(0)
        return OpentsdbCatalog(
            self.store,
            "tsdb-uid",
            self.uids,
            widths,
            finder or self.finder(cache),
            points
            or LastPointReader(
                DataTable(self.store, "tsdb", self.layout), cache, lambda: NOW_MS, look_back_h=2, cache_ms=None
            ),
        )

    def finder(
        self,
        cache: LastPointCache,
        *,
        meta_table: str | None = None,
        look_back_h: int = 24,
        cache_s: int | None = None,
        now_s: Callable[[], int] = lambda: NOW_MS // 1000,
    ) -> SeriesFinder:
        """What finds series in the store's rows, or its meta table."""
        return SeriesFinder(
            self.store,
            LookupTables("tsdb", "tsdb-uid", meta_table),
            self.layout,
            cache,
            now_s,
            RowScanRules(look_back_h, cache_s),
        )

    @property
    def names(self) -> UidNames:
        return UidNames(self.store, "tsdb-uid", self.uids, self.layout.widths)

    @property
    def metadata(self) -> MetadataTables:
        series = MetaTable(self.store, "tsdb-meta", self.layout.widths, lambda: NOW_MS // 1000)
        return MetadataTables(self.uids, UidMetas(self.store, "tsdb-uid"), series, self.layout.widths)

    @property
    def trees(self) -> TreeTable:
        metas = UidMetas(self.store, "tsdb-uid")
        return TreeTable(self.store, "tsdb-tree", self.uids, metas, self.layout.widths, lambda: NOW_MS // 1000)

    def drop_caches(self) -> None:
        self.uids.drop_caches()
        self.dropped += 1

    async def series(self, metric: str, **tags: str) -> bytes:
        """The TSUID of a series, its names assigned."""
        pairs = []
        for name, value in tags.items():
            tagk = await self.uid(Kind.TAGK, name)
            pairs.append((tagk, await self.uid(Kind.TAGV, value)))
        return await self.uid(Kind.METRIC, metric) + join_pairs(pairs)

    async def uid(self, kind: Kind, name: str) -> bytes:
        raw = name.encode("latin-1")
        found = (await self.uids.find_or_assign(kind, [raw]))[raw]
        assert isinstance(found, bytes)
        return found

    async def request(self, method: str, target: str, body: object = None) -> EndpointResponse:
        """What a request is answered with; `body` is sent as it is where it is a text, else as JSON."""
        request = request_of(method, target, body)
        first, second = (*request.segments, "", "")[:2]
        keys = (f"api/{first}/{second}", f"api/{first}") if request.is_api else (first,)
        endpoint = next(self.endpoints[key] for key in keys if key in self.endpoints)
        try:
            response = await endpoint(request)
            parts = response.body
            data = parts if isinstance(parts, bytes) else b"".join([part async for part in parts])
        except Refused as refused:
            details = {"details": refused.details} if refused.details else {}
            return EndpointResponse(
                refused.status, {"error": {"code": refused.status, "message": refused.message, **details}}
            )
        return EndpointResponse(response.status, json.loads(data) if data else "")


def request_of(method: str, target: str, body: object = None) -> Request:
    split = urlsplit(target)
    path = unquote(split.path)
    params: dict[str, list[str]] = {}
    for name, value in parse_qsl(re.sub(";", "&", split.query), keep_blank_values=True):
        params.setdefault(name, []).append(value)
    segments = tuple(path.strip("/").split("/"))
    is_api = segments[0] == "api"
    data = b"" if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    return Request(method, path, segments[1:] if is_api else segments, params, body=data, is_api=is_api)


async def make_world() -> World:
    store = MemoryStore(lambda: NOW_MS)
    await store.create_tables(TABLES)
    return World(store)


def loosened(value: Any, loose: Iterable[str]) -> Any:
    """A value without what depends on the time or on Java; paths as `error.message`."""
    if isinstance(value, Mapping):
        names = {path.partition(".")[0]: path.partition(".")[2] for path in loose}
        return {
            key: loosened(member, [names[key]] if key in names else [])
            for key, member in value.items()
            if names.get(key) != ""
        }
    return value
