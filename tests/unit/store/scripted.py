"""A Thrift gateway that refuses a given number of calls and passes on none.

What HBase says while a region moves or a server is full cannot be had from a real one on demand: its own client in the
gateway hides it for a minute. So here is that one answer, as HBase 2.6.1 words it. All else is tested on a real one.
"""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import Hbase_thrift as api  # type: ignore[import-not-found] # made by happybase, which tsd.store.hbase.connection imports
from thriftpy2.protocol import TBinaryProtocol, TCompactProtocol
from thriftpy2.thrift import TException, TProcessor
from thriftpy2.transport import TBufferedTransport, TFramedTransport, TSocket

import tsd.store.hbase.connection  # noqa: F401

BUSY = (
    "org.apache.hadoop.hbase.RegionTooBusyException: Over memstore limit=512.0 K, regionName=cells,,1795"
    "\n\tat org.apache.hadoop.hbase.regionserver.HRegion.checkResources(HRegion.java:5001)"
)


class BusyGateway:
    """Answers each call with BUSY until it has been asked `refusals` times, and then with nothing special."""

    def __init__(self, refusals: int, transport: str = "buffered", protocol: str = "binary") -> None:
        self.calls = 0
        self._refusals = refusals
        self._transport = {"buffered": TBufferedTransport, "framed": TFramedTransport}[transport]
        self._protocol = {"binary": TBinaryProtocol, "compact": TCompactProtocol}[protocol]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        """One connection after the other."""
        processor = TProcessor(api.Hbase, self)
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                coded = self._protocol(self._transport(TSocket(sock=client)))  # type: ignore[no-untyped-call]
                with suppress(TException, OSError):
                    while True:
                        processor.process(coded, coded)
                client.close()

    def _answer(self, answer: Any) -> Any:
        self.calls += 1
        if self.calls <= self._refusals:
            raise api.IOError(BUSY)
        return answer

    def mutateRows(self, table: bytes, rows: object, attributes: object) -> None:  # noqa: N802
        """Thrift's."""
        self._answer(None)

    def checkAndPut(  # noqa: N802
        self, table: bytes, row: bytes, column: bytes, value: bytes, mput: object, attributes: object
    ) -> bool:
        """Thrift's."""
        return bool(self._answer(row != b"taken"))

    def getRows(self, table: bytes, rows: list[bytes], attributes: object) -> list[object]:  # noqa: N802
        """Thrift's. Each row has a cell of 100,000 bytes."""
        return list(self._answer([api.TRowResult(row, {b"t:": api.TCell(bytes(100_000), 5)}) for row in rows]))

    def atomicIncrement(self, table: bytes, row: bytes, column: bytes, by: int) -> int:  # noqa: N802
        """Thrift's."""
        return int(self._answer(by))
