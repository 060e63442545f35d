"""`/api/entity/NAME`: all series and the metadata of one entity. `/api/entity`: the newest values of all entities, and
with a start the series of many.

An entity is the value of the tag `tsd.entity.tag`, such as a host. Times in answers are Unix milliseconds.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple
from urllib.parse import unquote

import trio

from tsd.api.entity_answers import (
    MOST_VERSIONS,
    POINT_BYTES,
    InventoryRequest,
    ManyRequest,
    RangeRequest,
    encoding_points,
    read_inventory,
    read_many,
    read_range,
    respond,
    select_series,
)
from tsd.api.entity_inventory import Inventory, starts_of_rows
from tsd.api.entity_json import HAS_LOOP, inventory_chunks, many_chunks, series_chunks
from tsd.api.messages import DONE, check_meant_method, json_of, object_of, parts_after, unparsable, words_of_all
from tsd.codec.metaline import LONGEST_NAME, MOST_KEYS, check_entity
from tsd.codec.text import encode_name
from tsd.errors import BadLine, Refused, TooManyVersions
from tsd.query.engine import QueryEngine
from tsd.query.limits import MemoryShare
from tsd.server.http.messages import Endpoint, Request, Response
from tsd.store.cells import prefix_end
from tsd.store.versions import VersionColumns, VersionPage
from tsd.tables.entities import METADATA_METRIC, POINTS_END_MS, Entities
from tsd.tables.entity_decode import split_metadata

CONCURRENT_READS = 4  # rows that are read at a time: their memory counts once they are read
PAGE_ENTITIES = 200  # with their series, of one call of the store
PAGE_NEWEST = 1000  # with their newest values
FIRST_NEWEST = 100  # of the first page, whose values per entity are unknown
PAGE_VALUES = 100_000  # of such a page: entities with many values have smaller ones
PAGE_SHARE = 8  # a page of many entities ends once it takes 1/8 of the memory of queries
STORED_BYTES = 18  # of a point in the store, with its time


class EntityAccess(NamedTuple):
    """What the daemon's mode and its rules of names allow."""

    may_read: bool
    may_write: bool
    extra: bytes = b""  # see NameRules


class EntityEndpoint:
    """Answers requests for entities."""

    def __init__(
        self,
        entities: Entities,
        engine: QueryEngine,
        access: EntityAccess,
        sync: Callable[[], Awaitable[None]],
        stored: Callable[[bytes], Awaitable[None]],
        now_ms: Callable[[], int],
    ) -> None:
        """`sync` returns once metadata is durable. `stored` writes lines of metadata that wait, and raises StoreDown if
        it cannot."""
        self._entities = entities
        self._engine = engine
        self._access = access
        self._sync = sync
        self._stored = stored
        self._now_ms = now_ms
        self._reads = trio.CapacityLimiter(CONCURRENT_READS)

    @property
    def _limit_bytes(self) -> int:
        """Bytes of points in the store that take the memory of all queries once they are read."""
        return self._engine.memory.limit // POINT_BYTES * STORED_BYTES

    async def handle(self, request: Request) -> Response:
        """Return the response. Raise Refused, StoreError, CorruptRow."""
        method = check_meant_method(request, "GET", "PUT", "POST", "DELETE")
        name = _name(request)
        if not (self._access.may_read if method == "GET" else self._access.may_write):
            raise Refused(403, "Not allowed in this mode", f"got {method}, which tsd.mode does not allow")
        if method == "GET":
            if name is not None:
                return await self._entity(request, name)
            return await (self._many(request) if request.has("start") else self._inventory(request))
        if name is None:
            raise Refused(400, "Missing name of an entity", f"got {method} {request.path}, wanted /api/entity/NAME")
        try:
            await self._edit(method, request, name)
        except BadLine as error:
            raise Refused(400, "Invalid metadata", str(error)) from error
        return DONE

    async def _entity(self, request: Request, name: bytes) -> Response:
        """Return the series and the metadata of one entity."""
        wanted = read_range(request, self._now_ms())
        await self._stored(METADATA_METRIC)
        most = MOST_VERSIONS + 1 if wanted.versions is None else wanted.versions
        with self._share() as share:
            async with self._reads:
                try:
                    found = await self._entities.read_columns(
                        name, wanted.start_ms, wanted.end_ms, versions=most, limit_bytes=self._limit_bytes
                    )
                except TooManyVersions as error:
                    raise Refused(413, "Too many points", str(error)) from error
                if not found.places:
                    await self._check_known(name)
                count = len(found.times_ms)
                share.add(max(count * POINT_BYTES, len(found.values)))

            def prepare() -> Callable[[], Iterator[bytes]]:
                metadata, columns = split_metadata(found)
                return partial(series_chunks, name, metadata, *select_series(columns, wanted))

            encoding = encoding_points(found, wanted) if HAS_LOOP else None
            return await respond(prepare, count, self._engine, share, encoding=encoding)

    @contextmanager
    def _share(self) -> Iterator[MemoryShare]:
        """Give a share of the memory of queries. The end of the answer releases it, or a failure before."""
        share = self._engine.memory.share()
        with ExitStack() as failure:
            failure.callback(share.release)
            yield share
            failure.pop_all()

    async def _check_known(self, name: bytes) -> None:
        """Raise Refused for an unknown entity; a known one may have no points in the range."""
        page = await self._entities.newest_columns(name, name + b"\0", limit=1)
        if not page.columns.places:
            raise Refused(404, f"Unknown entity: {name.decode('latin-1')}")

    async def _many(self, request: Request) -> Response:
        """Return the series of many entities."""
        wanted = read_many(request, self._now_ms())
        await self._stored(METADATA_METRIC)  # and what only the journal has, such as after a crash
        with self._share() as share:
            async with self._reads:
                pages, next_name = await self._scan_many(wanted, share)
            count = sum(len(page.times_ms) for page in pages)
            return await respond(lambda: partial(many_chunks, pages, next_name), count, self._engine, share)

    async def _scan_many(self, wanted: ManyRequest, share: MemoryShare) -> tuple[list[VersionColumns], bytes | None]:
        """Return the entities of an answer, and the name that starts the next one. An answer that takes much memory
        ends early."""
        found: list[VersionColumns] = []
        at: bytes | None = wanted.first
        left, stop, most = wanted.limit, prefix_end(wanted.prefix), self._engine.memory.limit // PAGE_SHARE
        while at is not None and left and share.held < most:
            try:
                page = await self._entities.scan(
                    at,
                    stop,
                    wanted.range.start_ms,
                    POINTS_END_MS if wanted.range.end_ms is None else wanted.range.end_ms,
                    limit=min(PAGE_ENTITIES, left),
                    limit_bytes=self._limit_bytes,
                )
            except TooManyVersions as error:
                raise Refused(413, "Too many points", str(error)) from error
            at = page.next_start
            share.add(len(page.columns.times_ms) * POINT_BYTES)
            chosen, entities = await self._engine.workers.run(partial(_select_of_many, page.columns, wanted.range))
            found.append(chosen)
            left -= entities
        return found, at

    async def _inventory(self, request: Request) -> Response:
        """Return the newest values of entities."""
        wanted = read_inventory(request, self._now_ms())
        await self._stored(METADATA_METRIC)
        with self._share() as share:
            async with self._reads:
                chosen, next_name = await self._scan(wanted, share)
            pages = chosen.pages
            return await respond(
                lambda: partial(inventory_chunks, pages, next_name), chosen.points, self._engine, share
            )

    async def _scan(self, wanted: InventoryRequest, share: MemoryShare) -> tuple[Inventory, bytes | None]:
        """Return the chosen entities, and the name that starts the next page (None: there is none)."""
        workers = self._engine.workers
        chosen = Inventory(wanted)
        at: bytes | None = wanted.first
        stop, size = prefix_end(wanted.prefix), FIRST_NEWEST
        while at is not None:
            pages = [await self._entities.newest_columns(at, stop, limit=size)]
            at, values = pages[0].next_start, len(pages[0].columns.places)
            share.resize((chosen.points + values) * POINT_BYTES)  # also of what is read and not chosen
            size = max(1, min(PAGE_NEWEST, size * PAGE_VALUES // max(values, 1)))
            await workers.run(partial(_add_page, chosen, pages))
            share.resize(chosen.points * POINT_BYTES)
            if wanted.metric is None and chosen.entities == wanted.limit:
                return chosen, at if chosen.next_name is None else chosen.next_name
        await workers.run(chosen.sort)
        return chosen, None

    async def _edit(self, method: str, request: Request, name: bytes) -> None:
        """Change metadata, after that of earlier lines. Raise Refused, BadLine, StoreError."""
        check_entity(name, self._access.extra)
        await self._stored(METADATA_METRIC)
        if method == "DELETE":
            await self._delete(request, name)
        else:
            values = await self._engine.workers.run(partial(_metadata_in, request))
            await self._entities.put_metadata(name, values, self._now_ms())
            if method == "PUT":
                stored = {key.encode("latin-1") for key in await self._entities.metadata(name)}
                await self._entities.delete_metadata(name, stored - set(values))
        await self._sync()

    async def _delete(self, request: Request, name: bytes) -> None:
        """Delete the metadata that the parameter `keys` names, or all. A body would not be read: its sender may mean
        only the keys in it."""
        if request.body.strip() and json_of(request):
            raise Refused(400, "Body of a DELETE", "got a body, wanted none: the parameter keys names what to delete")
        stored = await self._entities.metadata(name)
        if not stored:
            raise Refused(404, f"Entity without metadata: {name.decode('latin-1')}")
        keys = words_of_all(request.params.get("keys", ())) if request.has("keys") else list(stored)
        await self._entities.delete_metadata(name, {key.encode("latin-1") for key in keys if key in stored})


def routes(endpoint: EntityEndpoint | None) -> dict[str, Endpoint]:
    """`/api/entity`. None: the tables of entities are not kept."""

    async def refuse(_request: Request) -> Response:
        raise Refused(501, "Entities are not kept", "It requires tsd.entity.enabled = true")

    return {"api/entity": refuse if endpoint is None else endpoint.handle}


def _add_page(chosen: Inventory, pages: list[VersionPage]) -> None:
    """Move a page to the chosen entities. What they leave out is freed in this thread."""
    chosen.add(pages.pop().columns)


def _select_of_many(columns: VersionColumns, wanted: RangeRequest) -> tuple[VersionColumns, int]:
    """Return the wanted series of entities, and the number of entities that have any. Raise Refused."""
    chosen, _ = select_series(columns, wanted._replace(limit=None))
    return chosen, len(starts_of_rows(chosen.places))


def _name(request: Request) -> bytes | None:
    """Return the name after `entity` in the path, in the case in which it was sent. Raise Refused."""
    names = parts_after(request, "entity")
    if not names:
        return None
    if len(names) > 1:
        raise Refused(404, "Endpoint not found", f"got {request.path}, wanted /api/entity/NAME, with %2F for a slash")
    try:
        return encode_name(unquote(names[0], errors="strict"))
    except (UnicodeDecodeError, BadLine) as error:
        wanted = "wanted characters up to U+00FF in UTF-8"
        raise Refused(400, "Invalid name", f"got {names[0][:LONGEST_NAME]!r}, {wanted}") from error


def _metadata_in(request: Request) -> dict[bytes, str]:
    """Return the metadata in a request's body. Raise Refused, BadLine."""
    members = object_of(request)
    if len(members) > MOST_KEYS:
        raise Refused(400, "Too many keys", f"got {len(members)} keys, wanted {MOST_KEYS} at most")
    for key, value in members.items():
        if not isinstance(value, str):
            raise unparsable(f"{key}: got {type(value).__name__}, wanted a string")
    return {encode_name(key): value for key, value in members.items()}
