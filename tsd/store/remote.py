"""Client of a daemon's control socket, and the daemon's store through it: for commands while a daemon runs.

A connection has at most one outstanding request. `tsd.codec.control` defines the messages.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgpack
import trio

from tsd.codec.control import MAX_MESSAGE, encode_request, result_of
from tsd.config.state_dir import socket_address
from tsd.errors import StoreDown
from tsd.store import (
    Capabilities,
    Cell,
    JoinCells,
    OptionalParts,
    Page,
    Put,
    Rewrite,
    Row,
    Table,
)
from tsd.store.timing import Latency
from tsd.store.versions import ALL, END_MS, CellwiseColumns, VersionPut, Wanted

RECEIVE_BYTES = 256 << 10
PUT_CELLS = 5000  # per request
REWRITES = 100  # per request


class ControlClient:
    """A connection to a daemon's control socket. After an error or a cancellation the next call reconnects. So a late
    answer is never taken for that of another call, and the client survives a restart of the daemon."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream: trio.SocketStream | None = None
        self._answers = msgpack.Unpacker()
        self._idle = False  # connected, without an outstanding answer
        self._lock = trio.Lock()

    @classmethod
    async def connect(cls, path: Path) -> "ControlClient":
        """Connect to the daemon that listens at `path`. Raise OSError if there is none."""
        client = cls(path)
        await client._reconnect()
        return client

    async def call(self, verb: str, **arguments: object) -> Any:
        """Return the daemon's answer. Raise the error in the answer, or StoreDown if no daemon answers. A later call
        connects again."""
        async with self._lock:
            try:
                if not self._idle:
                    await self.aclose()
                    await self._reconnect()
                answer = await self._exchange(encode_request(verb, arguments))
            except OSError as exc:
                raise StoreDown(f"no daemon answers at {self._path}: {exc.strerror or exc}") from exc
            except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
                raise StoreDown(f"the daemon closed the connection during the call {verb}") from exc
        return result_of(answer)

    async def _reconnect(self) -> None:
        with socket_address(self._path) as address:
            self._stream = await trio.open_unix_socket(address)
        self._answers = msgpack.Unpacker(max_buffer_size=MAX_MESSAGE)
        self._idle = True

    async def _exchange(self, request: bytes) -> Any:
        assert self._stream
        self._idle = False
        await self._stream.send_all(request)
        answer = await self._receive(self._stream)
        self._idle = True
        return answer

    async def _receive(self, stream: trio.SocketStream) -> Any:
        while True:
            for answer in self._answers:
                return answer
            data = await stream.receive_some(RECEIVE_BYTES)
            if not data:
                raise trio.BrokenResourceError("the daemon closed the connection")
            self._answers.feed(data)

    async def aclose(self) -> None:
        """Close the connection."""
        if self._stream is not None:
            await self._stream.aclose()


class RemoteVersions(CellwiseColumns):
    """VersionedCells of the embedded store of a running daemon."""

    def __init__(self, client: ControlClient) -> None:
        self._client = client

    async def create_tables(self, tables: Sequence[Table]) -> list[str]:
        """See VersionedCells."""
        return list(await self._client.call("versions_create_tables", tables=_listed_tables(tables)))

    async def families(self, table: str) -> dict[bytes, int]:
        """See VersionedCells."""
        return dict(await self._client.call("versions_families", table=table))

    async def put(self, table: str, cells: Sequence[VersionPut]) -> None:
        """See VersionedCells."""
        for at in range(0, len(cells), PUT_CELLS):
            await self._client.call("versions_put", table=table, puts=cells[at : at + PUT_CELLS])

    async def get(self, table: str, rows: Collection[bytes], wanted: Wanted = ALL) -> dict[bytes, list[Cell]]:
        """See VersionedCells."""
        return _rows(
            await self._client.call("versions_get", table=table, rows=list(rows), wanted=_listed_wanted(wanted))
        )

    async def page(self, table: str, start: bytes, stop: bytes | None, *, limit: int, wanted: Wanted = ALL) -> Page:
        """See VersionedCells."""
        return _page(
            await self._client.call(
                "versions_page", table=table, start=start, stop=stop, limit=limit, wanted=_listed_wanted(wanted)
            )
        )

    async def delete(
        self, table: str, row: bytes, columns: Collection[bytes], *, since_ms: int = 0, until_ms: int = END_MS
    ) -> None:
        """See VersionedCells."""
        span = {"since_ms": since_ms, "until_ms": until_ms}
        await self._client.call("versions_delete", table=table, row=row, columns=list(columns), **span)


class RemoteStore(OptionalParts):
    """The embedded store of a running daemon, which no other process can open."""

    capabilities = Capabilities(ascending_timestamps=True, shared=True, filters_rows=False, parallel_scans=1)
    latencies: Mapping[str, Latency] = MappingProxyType({})

    def __init__(self, client: ControlClient) -> None:
        self.client = client
        self._versions = RemoteVersions(client)

    @property
    def versioned_cells(self) -> RemoteVersions:
        """See Store."""
        return self._versions

    @property
    def snapshots(self) -> "RemoteStore":
        """See Store."""
        return self

    async def snapshot(self, folder: Path) -> None:
        """See Snapshots. The daemon's user must be able to make the folder."""
        await self.client.call("snapshot", folder=str(folder))

    async def create_tables(self, tables: Sequence[Table], *, compression: str = "NONE") -> list[str]:
        """See Store."""
        return list(await self.client.call("create_tables", tables=_listed_tables(tables), compression=compression))

    async def tables(self) -> list[str]:
        """See Store."""
        return list(await self.client.call("tables"))

    async def get(
        self, table: str, rows: Collection[bytes], *, columns: Collection[bytes] | None = None
    ) -> dict[bytes, list[Cell]]:
        """See Store."""
        return _rows(await self.client.call("get", table=table, rows=list(rows), columns=_listed(columns)))

    @property
    def atomic_rewrites(self) -> "RemoteStore":
        """See Store."""
        return self

    @contextmanager
    def watching(self, table: str, rows: Collection[bytes]) -> Iterator[Collection[bytes]]:  # noqa: ARG002
        """See AtomicRewrites. The daemon checks every row."""
        yield rows

    async def rewrite(
        self,
        table: str,
        changes: Sequence[Rewrite],
        *,
        written: Collection[bytes] | None = None,  # noqa: ARG002
    ) -> list[bool]:
        """See AtomicRewrites."""
        done: list[bool] = []
        for at in range(0, len(changes), REWRITES):
            done += await self.client.call("rewrite", table=table, changes=changes[at : at + REWRITES])
        return done

    async def join(self, table: str, rows: Sequence[bytes], join: JoinCells) -> list[bytes]:  # noqa: ARG002
        """See AtomicRewrites. Leave all rows as they are: the daemon cannot call `join`."""
        await trio.lowlevel.checkpoint()
        return []

    @property
    def wide_rows(self) -> "RemoteStore":
        """See Store."""
        return self

    async def get_between(
        self, table: str, rows: Collection[bytes], first: bytes, last: bytes
    ) -> dict[bytes, list[Cell]]:
        """See WideRows."""
        return _rows(await self.client.call("get_between", table=table, rows=list(rows), first=first, last=last))

    async def row_keys(self, table: str, start: bytes, stop: bytes | None, *, limit: int) -> list[bytes]:
        """See WideRows."""
        return list(await self.client.call("row_keys", table=table, start=start, stop=stop, limit=limit))

    async def replace(self, table: str, cells: Sequence[Put]) -> None:
        """See WideRows. The embedded store keeps one version."""
        await self.put(table, cells)

    async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
        """See Store."""
        start = 0
        while start < len(cells):
            end = min(start + PUT_CELLS, len(cells))
            while end < len(cells) and cells[end].row == cells[end - 1].row:
                end += 1  # cells of one row go into one request
            await self.client.call("put", table=table, cells=cells[start:end], time_ms=time_ms)
            start = end

    async def delete(self, table: str, columns: Mapping[bytes, Collection[bytes]], *, up_to_ms: int | None) -> None:
        """See Store."""
        named = [(row, list(names)) for row, names in columns.items()]
        await self.client.call("delete", table=table, columns=named, up_to_ms=up_to_ms)

    async def page(
        self,
        table: str,
        start: bytes,
        stop: bytes | None,
        *,
        limit: int,
        columns: Collection[bytes] | None = None,
    ) -> Page:
        """See Store."""
        return _page(
            await self.client.call("page", table=table, start=start, stop=stop, limit=limit, columns=_listed(columns))
        )

    async def create(self, table: str, cells: Sequence[Put]) -> list[bool]:
        """See Store."""
        return list(await self.client.call("create", table=table, cells=cells))

    async def check_and_put(
        self, table: str, row: bytes, column: bytes, value: bytes, *, expected: bytes | None
    ) -> bool:
        """See Store."""
        return bool(
            await self.client.call("check_and_put", table=table, row=row, column=column, value=value, expected=expected)
        )

    async def increment(self, table: str, row: bytes, column: bytes, by: int) -> int:
        """See Store."""
        return int(await self.client.call("increment", table=table, row=row, column=column, by=by))

    async def sync(self) -> None:
        """See Store."""
        await self.client.call("sync")

    async def aclose(self) -> None:
        """See Store."""
        await self.client.aclose()

    def statistics(self) -> Mapping[str, int]:
        """Return no counters: the daemon counts the calls."""
        return {}


def _listed(columns: Collection[bytes] | None) -> list[bytes] | None:
    return None if columns is None else list(columns)


def _listed_tables(tables: Sequence[Table]) -> list[object]:
    return [[table.name, [list(family) for family in table.families]] for table in tables]


def _listed_wanted(wanted: Wanted) -> list[object]:
    return [wanted.since_ms, wanted.until_ms, wanted.versions, _listed(wanted.columns)]


def _rows(answer: Any) -> dict[bytes, list[Cell]]:
    return {row: [Cell(*cell) for cell in cells] for row, cells in answer}


def _page(answer: Any) -> Page:
    rows, next_start = answer
    return Page([Row(key, [Cell(*cell) for cell in cells]) for key, cells in rows], next_start)
