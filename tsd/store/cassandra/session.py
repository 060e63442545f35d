"""What the engine needs of a driver, and how answers that arrive in the driver's thread reach trio.

`tsd.store.cassandra.driver` implements `Session` with cassandra-driver, which is an optional dependency.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

import trio

from tsd.errors import StoreError, bare
from tsd.store.cassandra.clocks import NodeTime
from tsd.store.cassandra.wire import RawRows
from tsd.store.session import LazySession

Value: TypeAlias = bytes | int | str | bool | Sequence[bytes] | Sequence[tuple[bytes, bytes]] | Mapping[str, str] | None
Parameters: TypeAlias = tuple[Value, ...]
Rows: TypeAlias = list[tuple[Value, ...]]
Done: TypeAlias = Callable[[Rows, StoreError | None], None]
RawDone: TypeAlias = Callable[[RawRows, StoreError | None], None]
NO_ROWS = RawRows(0, b"")
T = TypeVar("T")


class BadStatement(StoreError):
    """This version of Cassandra does not know a statement."""


class BatchTooLarge(StoreError):
    """A batch over several partitions is larger than Cassandra is configured to take."""


class ReadFailed(StoreError):
    """Nodes failed to execute a read, as they fail one of too many expired or deleted cells. A smaller one may work."""


class TooManyTombstones(ReadFailed):
    """A read met more tombstones than Cassandra allows."""


@dataclass(frozen=True)
class Contact:
    """How to reach a cluster."""

    hosts: tuple[tuple[str, int], ...]
    consistency: str = "QUORUM"
    user: str = ""
    password_file: str = ""
    ca_file: str = ""  # empty: without TLS
    certificate_file: str = ""
    key_file: str = ""
    timeout_s: float = 12.0
    checks_names: bool = False  # whether certificates must name the addresses of their nodes

    @property
    def endpoints(self) -> tuple[str, ...]:
        """host:port of each contact point."""
        return tuple(f"{host}:{port}" for host, port in self.hosts)


class Statement(Protocol):
    """A prepared statement."""


class Session(Protocol):
    """A connected driver. `prepare`, `command`, `times` and `close` block; the others return at once and call `done`
    later, in any thread. Errors are StoreErrors."""

    def prepare(self, cql: str, *, conditional: bool) -> Statement:
        """Prepare a statement; `conditional` for one with IF, which must not be sent twice."""
        ...

    def command(self, cql: str, parameters: Parameters = ()) -> Rows:
        """Execute a statement and return its rows."""
        ...

    def times(self, elapsed_ms: Callable[[], float]) -> list[NodeTime]:
        """Return the times of some nodes, of one at least. `elapsed_ms` is a monotonic clock."""
        ...

    def submit(self, statement: Statement, parameters: Parameters, done: Done) -> None:
        """Execute a prepared statement."""
        ...

    def submit_batch(self, statement: Statement, rows: Sequence[Parameters], done: Done) -> None:
        """Execute a prepared statement for each of `rows` as one unlogged batch: atomic in each partition."""
        ...

    def submit_conditional(self, statement: Statement, rows: Sequence[Parameters], done: Done) -> None:
        """Execute a prepared statement with IF for each of `rows`, which are of one partition: all of them or none."""
        ...

    def submit_raw(self, statement: Statement, parameters: Parameters, partition: bytes | None, done: RawDone) -> None:
        """Execute a prepared statement whose rows are answered as sent. `partition` is the key by which the node is
        chosen, None if the parameters tell it."""
        ...

    def nodes(self, keyspace: str, keys: Sequence[bytes]) -> list[str] | None:
        """Return the first node of the partition of each key; None if the cluster's partitioner is not Murmur3."""
        ...

    def submit_encoded(self, statement: Statement, rows: Sequence[bytes], partition: bytes | None, done: Done) -> None:
        """Execute a prepared statement as `submit_batch` does, for bound values that are encoded. `partition` is the
        key of all rows' partition, by which the node is chosen, None for rows of several ones."""
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


class Connector:
    """Connects at the first call, and passes calls to the session. The cluster need not be up when it is created."""

    def __init__(self, connect: Callable[[], Session], *, in_flight: int) -> None:
        """`connect` blocks, and raises StoreError. `in_flight` is the greatest number of requests without an answer."""
        self._session = LazySession(connect)
        self._statements: dict[str, Statement] = {}
        self._preparing = trio.Lock()
        self._slots = trio.Semaphore(in_flight, max_value=in_flight)

    async def connect(self) -> None:
        """Connect, unless it is connected. Raise StoreError."""
        await self._session.get()

    async def prepared(self, cql: str, *, conditional: bool = False) -> Statement:
        """Return a prepared statement."""
        session = await self._session.get()
        async with self._preparing:
            if cql not in self._statements:
                self._statements[cql] = await trio.to_thread.run_sync(
                    lambda: session.prepare(cql, conditional=conditional)
                )
            return self._statements[cql]

    async def command(self, cql: str, parameters: Parameters = ()) -> Rows:
        """Execute a rare statement in a thread."""
        session = await self._session.get()
        return await trio.to_thread.run_sync(lambda: session.command(cql, parameters))

    async def times(self, elapsed_ms: Callable[[], float]) -> list[NodeTime]:
        """Return the times of some nodes, see `Session.times`."""
        session = await self._session.get()
        return await trio.to_thread.run_sync(session.times, elapsed_ms)

    async def ask(self, cql: str, parameters: Parameters, *, conditional: bool = False) -> Rows:
        """Execute a statement and return its rows. A cancelled one continues in the background and keeps its slot."""
        statement = self._statements.get(cql) or await self.prepared(cql, conditional=conditional)
        session = await self._session.get()
        return await self._answer(partial(session.submit, statement, parameters))

    async def ask_raw(self, cql: str, parameters: Parameters, partition: bytes | None = None) -> RawRows:
        """Execute a statement as `ask` does. Return its rows as sent. For `partition` see `Session.submit_raw`."""
        statement = self._statements.get(cql) or await self.prepared(cql)
        session = await self._session.get()
        return await self._answer(partial(session.submit_raw, statement, parameters, partition))

    async def nodes(self, keyspace: str, keys: Sequence[bytes]) -> list[str] | None:
        """Return where partitions are, see `Session.nodes`."""
        return (await self._session.get()).nodes(keyspace, keys)

    async def batch(self, cql: str, rows: Sequence[Parameters]) -> None:
        """Execute a statement for each of `rows`, atomically in each partition."""
        statement = self._statements.get(cql) or await self.prepared(cql)
        session = await self._session.get()
        await self._answer(partial(session.submit_batch, statement, rows))

    async def conditional_batch(self, cql: str, rows: Sequence[Parameters]) -> bool:
        """Execute a statement with IF for each of `rows`, which are of one partition, if all conditions hold. Return
        whether they held."""
        statement = self._statements.get(cql) or await self.prepared(cql, conditional=True)
        session = await self._session.get()
        answer = await self._answer(partial(session.submit_conditional, statement, rows))
        return bool(answer[0][0])

    async def batch_encoded(self, cql: str, rows: Sequence[bytes], partition: bytes | None) -> None:
        """Execute a statement for each of `rows`, whose values are encoded, see `Session.submit_encoded`."""
        statement = self._statements.get(cql) or await self.prepared(cql)
        session = await self._session.get()
        await self._answer(partial(session.submit_encoded, statement, rows, partition))

    async def _answer(self, submit: Callable[[Callable[[T, StoreError | None], None]], None]) -> T:
        """Submit a request and wait for its answer, which another thread hands over."""
        await self._slots.acquire()
        token = trio.lowlevel.current_trio_token()
        answered = trio.Event()
        answers: list[tuple[T, StoreError | None]] = []
        calls = itertools.count()

        def finish() -> None:
            self._slots.release()
            answered.set()

        def done(rows: T, error: StoreError | None) -> None:
            if next(calls):  # the driver reports some requests twice when their connection ends
                return
            answers.append((rows, error))
            with suppress(trio.RunFinishedError):  # the caller is gone
                token.run_sync_soon(finish)

        submit(done)
        await answered.wait()
        [(rows, error)] = answers
        answers.clear()
        if error is not None:
            raise bare(error)
        return rows

    async def aclose(self) -> None:
        """Disconnect."""
        await self._session.aclose()
