"""The control socket: commands on this machine use it to reach the daemon and its store.

It is a Unix socket in the state folder that only the daemon's user may open. `tsd.store.remote` is its client.
"""

import inspect
import os
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import trio

from tsd.codec.control import MAX_MESSAGE
from tsd.config.state_dir import socket_address
from tsd.errors import DamagedBlock, TsdError
from tsd.lazy import LazyLogger
from tsd.store import AtomicRewrites, Family, Put, Rewrite, Store, Table, VersionedCells, WideRows
from tsd.store.remote import RECEIVE_BYTES
from tsd.store.versions import VersionPut, Wanted

log = LazyLogger(__name__)

Operation = Callable[..., Awaitable[Any]]
CHANGES = frozenset(("put", "delete", "check_and_put", "rewrite", "versions_put", "versions_delete"))


async def open_listener(path: Path) -> trio.SocketListener:
    """Listen at `path`. Replace the socket of a crashed daemon: this process holds the state folder's lock."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    listener = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    with socket_address(path) as address:
        await listener.bind(address)
        os.chmod(address, 0o600)  # before `listen`: no connection is accepted with other permissions
    listener.listen(16)
    return trio.SocketListener(listener)


async def serve(
    listener: trio.SocketListener,
    operations: Mapping[str, Operation],
    of_connection: Callable[[AsyncExitStack], Mapping[str, Operation]] = lambda _: {},
) -> None:
    """Answer requests until cancelled. `of_connection` gets what the end of a connection closes, and returns further
    operations of that connection."""

    async def handle(stream: trio.SocketStream) -> None:
        try:
            async with stream, AsyncExitStack() as ended:
                await _answer_requests(stream, {**operations, **of_connection(ended)})
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("control.disconnected")
        except Exception:
            log.exception("control.connection_failed")

    await trio.serve_listeners(handle, [listener])


async def _answer_requests(stream: trio.SocketStream, operations: Mapping[str, Operation]) -> None:
    requests = msgpack.Unpacker(max_buffer_size=MAX_MESSAGE)
    unsynced = Unsynced()
    try:
        while data := await stream.receive_some(RECEIVE_BYTES):
            try:
                requests.feed(data)
                received = list(requests)
            except (ValueError, msgpack.UnpackException) as exc:  # the start of the next request is unknown
                await stream.send_all(msgpack.packb(_error(TsdError, f"got invalid msgpack: {exc!r}")))
                return
            for request in received:
                await stream.send_all(msgpack.packb(await _answer(request, operations, unsynced)))
    finally:
        if unsynced.changes and "sync" in operations:
            await _answer({"verb": "sync"}, operations, unsynced)  # the command was interrupted, or killed


@dataclass
class Unsynced:
    """Whether a connection has changed the store since it synced it."""

    changes: bool = False

    def note(self, operation: str) -> None:
        """Note that an operation begins."""
        self.changes = operation in CHANGES or (self.changes and operation != "sync")


async def _answer(request: Any, operations: Mapping[str, Operation], unsynced: Unsynced) -> dict[str, object]:
    try:
        arguments = dict(request)
        name = arguments.pop("verb")
        operation = operations[name]
        inspect.signature(operation).bind(**arguments)
    except (TypeError, ValueError, KeyError) as exc:
        wanted = f"wanted one of {', '.join(operations)} with its arguments"
        hint = "if the daemon has another version than the command, restart the daemon"
        return _error(TsdError, f"got {str(request)[:200]!r}, {wanted}: {exc}; {hint}")
    unsynced.note(name)
    try:
        return {"result": await operation(**arguments)}
    except DamagedBlock as exc:
        return {**_error(DamagedBlock, str(exc)), "prefix": exc.prefix}
    except TsdError as exc:
        return _error(type(exc), str(exc))
    except Exception as exc:  # wrong arguments or an internal error: only this request fails
        log.exception("control.request_failed", operation=name)
        return _error(TsdError, f"{name}: {exc!r}")


def _error(kind: type[TsdError], message: str) -> dict[str, object]:
    return {"error": kind.__name__, "message": message}


def store_operations(
    store: Store, on_change: Callable[[str, Collection[bytes]], None] = lambda *_: None
) -> dict[str, Operation]:
    """Return the operations of a store, with arguments and results of types that msgpack can encode. `on_change` gets
    the table and the rows after each put, conditional put and delete."""

    async def create_tables(tables: list[Any], compression: str) -> list[str]:
        wanted = [Table(name, tuple(Family(*family) for family in families)) for name, families in tables]
        return await store.create_tables(wanted, compression=compression)

    async def get(table: str, rows: list[bytes], columns: list[bytes] | None) -> list[Any]:
        return list((await store.get(table, rows, columns=columns)).items())

    async def put(table: str, cells: list[Any], time_ms: int | None) -> None:
        puts = [Put(*cell) for cell in cells]
        await store.put(table, puts, time_ms=time_ms)
        on_change(table, {put.row for put in puts})

    async def create(table: str, cells: list[Any]) -> list[bool]:
        return await store.create(table, [Put(*cell) for cell in cells])

    async def delete(table: str, columns: list[Any], up_to_ms: int | None) -> None:
        of_rows = dict(columns)
        await store.delete(table, of_rows, up_to_ms=up_to_ms)
        on_change(table, of_rows.keys())

    async def check_and_put(table: str, row: bytes, column: bytes, value: bytes, expected: bytes | None) -> bool:
        done = await store.check_and_put(table, row, column, value, expected=expected)
        on_change(table, {row})
        return done

    async def snapshot(folder: str) -> None:
        if store.snapshots is None:
            raise TsdError("got a request for a snapshot, wanted one that this store supports: it has no own files")
        await store.snapshots.snapshot(Path(folder))

    return {
        **_version_operations(store.versioned_cells),
        **_wide_operations(store.wide_rows),
        **_rewrite_operations(store.atomic_rewrites),
        "snapshot": snapshot,
        "create_tables": create_tables,
        "tables": store.tables,
        "get": get,
        "put": put,
        "create": create,
        "delete": delete,
        "page": store.page,
        "check_and_put": check_and_put,
        "increment": store.increment,
        "sync": store.sync,
    }


def _wide_operations(wide: WideRows | None) -> dict[str, Operation]:
    """Return the operations on parts of rows; none if the store cannot read them."""
    if wide is None:
        return {}

    async def get_between(table: str, rows: list[bytes], first: bytes, last: bytes) -> list[Any]:
        return list((await wide.get_between(table, rows, first, last)).items())

    return {"get_between": get_between, "row_keys": wide.row_keys}


def _rewrite_operations(rewrites: AtomicRewrites | None) -> dict[str, Operation]:
    """Return the operation that changes rows in atomic steps; none if the store cannot."""
    if rewrites is None:
        return {}

    async def rewrite(table: str, changes: list[Any]) -> list[bool]:
        wanted = [Rewrite(row, [Put(*put) for put in puts], *rest) for row, puts, *rest in changes]
        return await rewrites.rewrite(table, wanted)

    return {"rewrite": rewrite}


def _version_operations(cells: VersionedCells | None) -> dict[str, Operation]:
    """Return the operations of tables whose cells keep versions; none if the store has no such tables."""
    if cells is None:
        return {}

    async def create_tables(tables: list[Any]) -> list[str]:
        return await cells.create_tables(
            [Table(name, tuple(Family(*family) for family in families)) for name, families in tables]
        )

    async def families(table: str) -> list[Any]:
        return list((await cells.families(table)).items())

    async def put(table: str, puts: list[Any]) -> None:
        await cells.put(table, [VersionPut(*cell) for cell in puts])

    async def get(table: str, rows: list[bytes], wanted: list[Any]) -> list[Any]:
        return list((await cells.get(table, rows, Wanted(*wanted))).items())

    async def page(table: str, start: bytes, stop: bytes | None, limit: int, wanted: list[Any]) -> Any:
        return await cells.page(table, start, stop, limit=limit, wanted=Wanted(*wanted))

    async def delete(table: str, row: bytes, columns: list[bytes], since_ms: int, until_ms: int) -> None:
        await cells.delete(table, row, columns, since_ms=since_ms, until_ms=until_ms)

    return {
        "versions_create_tables": create_tables,
        "versions_families": families,
        "versions_put": put,
        "versions_get": get,
        "versions_page": page,
        "versions_delete": delete,
    }
