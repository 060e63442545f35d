"""A running daemon's store, by way of its control socket: what commands use while the daemon owns the database.

One request at a time, each answered before the next. Messages are msgpack maps: `{"verb": …, arguments}` there,
`{"result": …}` or `{"error": class name, "message": …}` back.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgpack
import trio

import tsd.errors
from tsd.errors import StoreDown, TsdError
from tsd.state import socket_address
from tsd.store import Cell, Page, Put, Row, Table

RECEIVE_BYTES = 256 << 10
MAX_MESSAGE = 256 << 20
PUT_CELLS = 5000  # sent with one request


class Caller:
    """Asks a daemon's control socket. After an error or a cancellation it connects anew with the next request, so that
    no answer is taken for another's, and that a daemon may be restarted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream: trio.SocketStream | None = None
        self._answers = msgpack.Unpacker()
        self._settled = False  # whether no answer is on its way
        self._turn = trio.Lock()

    @classmethod
    async def connect(cls, path: Path) -> "Caller":
        """To the daemon that listens at `path`; OSError where there is none."""
        caller = cls(path)
        await caller._dial()
        return caller

    async def ask(self, verb: str, **arguments: object) -> Any:
        """The daemon's answer; raises the error it names, or StoreDown where it is gone: the next request may find it
        again."""
        async with self._turn:
            try:
                if not self._settled:
                    await self.aclose()
                    await self._dial()
                answer = await self._exchange(msgpack.packb({"verb": verb, **arguments}))
            except OSError as exc:
                raise StoreDown(f"no daemon answers at {self._path}: {exc.strerror or exc}") from exc
            except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
                raise StoreDown(f"the daemon has ended while it was asked for {verb}") from exc
        if "error" in answer:
            kind = getattr(tsd.errors, answer["error"], TsdError)
            raise kind(answer["message"]) if issubclass(kind, TsdError) else TsdError(answer["message"])
        return answer["result"]

    async def _dial(self) -> None:
        with socket_address(self._path) as address:
            self._stream = await trio.open_unix_socket(address)
        self._answers = msgpack.Unpacker(max_buffer_size=MAX_MESSAGE)
        self._settled = True

    async def _exchange(self, request: bytes) -> Any:
        assert self._stream
        self._settled = False
        await self._stream.send_all(request)
        answer = await self._receive(self._stream)
        self._settled = True
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
        """Hang up."""
        if self._stream is not None:
            await self._stream.aclose()


class RemoteStore:
    """Store over a Caller. See Store for what each call does."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller

    async def create_tables(self, tables: Sequence[Table], *, compression: str = "NONE") -> list[str]:
        """See Store."""
        wanted = [[table.name, [list(family) for family in table.families]] for table in tables]
        return list(await self.caller.ask("create_tables", tables=wanted, compression=compression))

    async def tables(self) -> list[str]:
        """See Store."""
        return list(await self.caller.ask("tables"))

    async def get(
        self, table: str, rows: Collection[bytes], *, columns: Collection[bytes] | None = None
    ) -> dict[bytes, list[Cell]]:
        """See Store."""
        answer = await self.caller.ask("get", table=table, rows=list(rows), columns=_listed(columns))
        return {row: [Cell(*cell) for cell in cells] for row, cells in answer}

    async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
        """See Store."""
        start = 0
        while start < len(cells):
            end = min(start + PUT_CELLS, len(cells))
            while end < len(cells) and cells[end].row == cells[end - 1].row:
                end += 1  # a row's cells land together
            await self.caller.ask("put", table=table, cells=cells[start:end], time_ms=time_ms)
            start = end

    async def delete(self, table: str, columns: Mapping[bytes, Collection[bytes]], *, up_to_ms: int | None) -> None:
        """See Store."""
        named = [(row, list(names)) for row, names in columns.items()]
        await self.caller.ask("delete", table=table, columns=named, up_to_ms=up_to_ms)

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
        rows, next_start = await self.caller.ask(
            "page", table=table, start=start, stop=stop, limit=limit, columns=_listed(columns)
        )
        return Page([Row(key, [Cell(*cell) for cell in cells]) for key, cells in rows], next_start)

    async def create(self, table: str, cells: Sequence[Put]) -> list[bool]:
        """See Store."""
        return list(await self.caller.ask("create", table=table, cells=cells))

    async def check_and_put(
        self, table: str, row: bytes, column: bytes, value: bytes, *, expected: bytes | None
    ) -> bool:
        """See Store."""
        return bool(
            await self.caller.ask("check_and_put", table=table, row=row, column=column, value=value, expected=expected)
        )

    async def increment(self, table: str, row: bytes, column: bytes, by: int) -> int:
        """See Store."""
        return int(await self.caller.ask("increment", table=table, row=row, column=column, by=by))

    async def sync(self) -> None:
        """See Store."""
        await self.caller.ask("sync")

    async def aclose(self) -> None:
        """See Store."""
        await self.caller.aclose()

    def statistics(self) -> Mapping[str, int]:
        """Nothing: the daemon counts."""
        return {}


def _listed(columns: Collection[bytes] | None) -> list[bytes] | None:
    return None if columns is None else list(columns)
