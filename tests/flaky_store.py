"""A store that fails on demand, as real ones do: before a call, or after it was applied."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from enum import Enum, auto
from typing import TypeVar

import trio

from tests.plain_store import PlainStore
from tsd.errors import StoreDown
from tsd.store import Cell, Page, Put, Table
from tsd.store.memory import MemoryStore

T = TypeVar("T")


class Fault(Enum):
    """The fault of a call."""

    NONE = auto()
    REFUSED = auto()  # the call is not applied
    ANSWER_LOST = auto()  # the call is applied, but the caller gets an error


class FlakyStore(PlainStore):
    """A MemoryStore with faults. `plan` has the faults of the next calls; after them `always` applies. Puts wait for
    `hold`."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.plan: list[Fault] = []
        self.always = Fault.NONE
        self.reads_always = False  # whether `get` and `page` have no fault
        self.hold: trio.Event | None = None
        self.held = trio.Event()  # a put waits
        self.calls: list[str] = []
        self.capabilities = store.capabilities
        self.latencies = store.latencies

    async def _call(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        self.calls.append(name)
        fault = self.plan.pop(0) if self.plan else self.always
        if self.reads_always and name in ("get", "page"):
            fault = Fault.NONE
        if fault is Fault.REFUSED:
            raise StoreDown("refused by the test")
        answer = await call()
        if fault is Fault.ANSWER_LOST:
            raise StoreDown("answer lost by the test")
        return answer

    async def create_tables(self, tables: Sequence[Table], *, compression: str = "NONE") -> list[str]:
        return await self._call("create_tables", lambda: self.store.create_tables(tables, compression=compression))

    async def tables(self) -> list[str]:
        return await self._call("tables", self.store.tables)

    async def get(
        self, table: str, rows: Collection[bytes], *, columns: Collection[bytes] | None = None
    ) -> dict[bytes, list[Cell]]:
        return await self._call("get", lambda: self.store.get(table, rows, columns=columns))

    async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
        if self.hold is not None:
            self.held.set()
            await self.hold.wait()
        await self._call("put", lambda: self.store.put(table, cells, time_ms=time_ms))

    async def delete(self, table: str, columns: Mapping[bytes, Collection[bytes]], *, up_to_ms: int | None) -> None:
        await self._call("delete", lambda: self.store.delete(table, columns, up_to_ms=up_to_ms))

    async def page(
        self, table: str, start: bytes, stop: bytes | None, *, limit: int, columns: Collection[bytes] | None = None
    ) -> Page:
        return await self._call("page", lambda: self.store.page(table, start, stop, limit=limit, columns=columns))

    async def create(self, table: str, cells: Sequence[Put]) -> list[bool]:
        return await self._call("create", lambda: self.store.create(table, cells))

    async def check_and_put(
        self, table: str, row: bytes, column: bytes, value: bytes, *, expected: bytes | None
    ) -> bool:
        return await self._call(
            "check_and_put", lambda: self.store.check_and_put(table, row, column, value, expected=expected)
        )

    async def increment(self, table: str, row: bytes, column: bytes, by: int) -> int:
        return await self._call("increment", lambda: self.store.increment(table, row, column, by))

    async def sync(self) -> None:
        await self._call("sync", self.store.sync)

    async def aclose(self) -> None:
        await self.store.aclose()

    def statistics(self) -> Mapping[str, int]:
        return self.store.statistics()
