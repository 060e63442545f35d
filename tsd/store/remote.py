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
    """Asks a daemon's control socket."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._answers = msgpack.Unpacker(max_buffer_size=MAX_MESSAGE)
        self._turn = trio.Lock()

    @classmethod
    async def connect(cls, path: Path) -> "Caller":
        """To the daemon that listens at `path`; OSError where there is none."""
        with socket_address(path) as address:
            return cls(await trio.open_unix_socket(address))

    async def ask(self, verb: str, **arguments: object) -> Any:
        """The daemon's answer; raises the error it names, or StoreDown where it is gone."""
        async with self._turn:
            try:
                await self._stream.send_all(msgpack.packb({"verb": verb, **arguments}))
                answer = await self._receive()
            except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
                raise StoreDown(f"the daemon has ended while it was asked for {verb}") from exc
        if "error" in answer:
            kind = getattr(tsd.errors, answer["error"], TsdError)
            raise kind(answer["message"]) if issubclass(kind, TsdError) else TsdError(answer["message"])
        return answer["result"]

    async def _receive(self) -> Any:
        while True:
            for answer in self._answers:
                return answer
            data = await self._stream.receive_some(RECEIVE_BYTES)
            if not data:
                raise trio.BrokenResourceError("the daemon closed the connection")
            self._answers.feed(data)

    async def aclose(self) -> None:
        """Hang up."""
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
