"""The control socket: where commands on this machine reach the daemon, and the store that it owns.

A Unix socket in the state folder that only the daemon's own user may open. The other end is `tsd.store.remote`.
"""

import inspect
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
import structlog
import trio

from tsd.errors import TsdError
from tsd.state import socket_address
from tsd.store import Family, Put, Store, Table
from tsd.store.remote import MAX_MESSAGE, RECEIVE_BYTES

log = structlog.get_logger(__name__)

Verb = Callable[..., Awaitable[Any]]


async def open_listener(path: Path) -> trio.SocketListener:
    """Listen at `path`. One that a crashed daemon left is replaced: the state folder's lock says that it is gone."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    listener = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    with socket_address(path) as address:
        await listener.bind(address)
        os.chmod(address, 0o600)  # nobody gets in before `listen`
    listener.listen(16)
    return trio.SocketListener(listener)


async def serve(listener: trio.SocketListener, verbs: Mapping[str, Verb]) -> None:
    """Answer requests until cancelled."""

    async def visit(stream: trio.SocketStream) -> None:
        try:
            async with stream:
                await _converse(stream, verbs)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("a command hung up")
        except Exception:
            log.exception("a command's connection ended by an error of ours")

    await trio.serve_listeners(visit, [listener])


async def _converse(stream: trio.SocketStream, verbs: Mapping[str, Verb]) -> None:
    requests = msgpack.Unpacker(max_buffer_size=MAX_MESSAGE)
    while data := await stream.receive_some(RECEIVE_BYTES):
        try:
            requests.feed(data)
            received = list(requests)
        except (ValueError, msgpack.UnpackException) as exc:  # where the next request starts, nobody can tell
            await stream.send_all(msgpack.packb(_error(TsdError, f"got no msgpack: {exc!r}")))
            return
        for request in received:
            await stream.send_all(msgpack.packb(await _answer(request, verbs)))


async def _answer(request: Any, verbs: Mapping[str, Verb]) -> dict[str, object]:
    try:
        arguments = dict(request)
        name = arguments.pop("verb")
        verb = verbs[name]
        inspect.signature(verb).bind(**arguments)
    except (TypeError, ValueError, KeyError) as exc:
        wanted = f"wanted one of {', '.join(verbs)} with its arguments"
        return _error(TsdError, f"got {str(request)[:200]!r}, {wanted}: {exc}")
    try:
        return {"result": await verb(**arguments)}
    except TsdError as exc:
        return _error(type(exc), str(exc))
    except Exception as exc:  # arguments that are not what the verb takes, or a bug of ours: of this request only
        log.exception("a command's request failed", verb=name)
        return _error(TsdError, f"{name}: {exc!r}")


def _error(kind: type[TsdError], message: str) -> dict[str, object]:
    return {"error": kind.__name__, "message": message}


def store_verbs(store: Store) -> dict[str, Verb]:
    """The calls of a store, from messages and to messages."""

    async def create_tables(tables: list[Any], compression: str) -> list[str]:
        wanted = [Table(name, tuple(Family(*family) for family in families)) for name, families in tables]
        return await store.create_tables(wanted, compression=compression)

    async def get(table: str, rows: list[bytes], columns: list[bytes] | None) -> list[Any]:
        return list((await store.get(table, rows, columns=columns)).items())

    async def put(table: str, cells: list[Any], time_ms: int | None) -> None:
        await store.put(table, [Put(*cell) for cell in cells], time_ms=time_ms)

    async def create(table: str, cells: list[Any]) -> list[bool]:
        return await store.create(table, [Put(*cell) for cell in cells])

    async def delete(table: str, columns: list[Any], up_to_ms: int | None) -> None:
        await store.delete(table, dict(columns), up_to_ms=up_to_ms)

    return {
        "create_tables": create_tables,
        "tables": store.tables,
        "get": get,
        "put": put,
        "create": create,
        "delete": delete,
        "page": store.page,
        "check_and_put": store.check_and_put,
        "increment": store.increment,
        "sync": store.sync,
    }
