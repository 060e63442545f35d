"""How answers of a driver reach the tasks that wait for them."""

from collections.abc import Callable, Sequence

from tsd.errors import StoreDown, StoreError
from tsd.store.cassandra.clocks import NodeTime
from tsd.store.cassandra.session import (
    Connector,
    Done,
    Parameters,
    RawDone,
    Rows,
    Session,
    Statement,
)
from tsd.store.cassandra.wire import RawRows

NOTHING = RawRows(0, b"")


class TwiceAnswering:
    """A session that reports each request twice: with its answer, and as lost with its connection."""

    def prepare(self, cql: str, *, conditional: bool) -> Statement:
        return object()

    def command(self, cql: str, parameters: Parameters = ()) -> Rows:
        return []

    def times(self, elapsed_ms: Callable[[], float]) -> list[NodeTime]:
        return []

    def submit(self, statement: Statement, parameters: Parameters, done: Done) -> None:
        done([parameters], None)
        done([], StoreDown("the connection is lost"))

    def submit_batch(self, statement: Statement, rows: Sequence[Parameters], done: Done) -> None:
        self.submit(statement, (), done)

    def submit_conditional(self, statement: Statement, rows: Sequence[Parameters], done: Done) -> None:
        self.submit(statement, (True,), done)

    def submit_raw(self, statement: Statement, parameters: Parameters, partition: bytes | None, done: RawDone) -> None:
        done(NOTHING, None)
        done(NOTHING, StoreError("the connection is lost"))

    def nodes(self, keyspace: str, keys: Sequence[bytes]) -> list[str] | None:
        return None

    def submit_encoded(self, statement: Statement, rows: Sequence[bytes], partition: bytes | None, done: Done) -> None:
        self.submit(statement, (), done)

    def close(self) -> None:
        pass


async def test_second_answer_of_a_request_is_ignored() -> None:
    """Regression: the daemon ended with an internal error of trio."""

    def connect() -> Session:
        return TwiceAnswering()

    connector = Connector(connect, in_flight=1)
    for number in range(3):
        assert await connector.ask("SELECT", (number,)) == [(number,)]
        assert await connector.ask_raw("SELECT", ()) == NOTHING
        await connector.batch("INSERT", [(number,)])
    await connector.aclose()
