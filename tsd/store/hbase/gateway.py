"""What connections to gateways of both Thrift APIs have in common."""

import select
from abc import ABC, abstractmethod
from typing import Any

from tsd.errors import StoreError
from tsd.store.hbase.pool import NoAnswer
from tsd.store.hbase.thrift_codec import Socket

NO_SCANNER = -1  # gateways count scanners from 0


class GatewayConnection(ABC):
    """A connection to one gateway. A subclass connects the socket and wraps it into a transport and a protocol."""

    CLOSE_SCANNER: str  # name of the call

    _socket: Socket
    _transport: Any
    _coded: Any  # the protocol

    @abstractmethod
    def _call(self, call: str, table: str, *arguments: object) -> Any:
        """Return the answer to a call. `table` is for error messages. Raise StoreError, NoAnswer."""

    def _probe(self) -> None:
        """Have the gateway answer a call that it needs no HBase for: it refuses to close a scanner that does not exist.
        Raise NoAnswer (not sent: the call that waits for the probe was not)."""
        try:
            self._call(self.CLOSE_SCANNER, "", NO_SCANNER)
        except NoAnswer as exc:
            self.close()
            raise NoAnswer(str(exc), sent=False, timed_out=exc.timed_out) from exc
        except StoreError:
            pass

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def stale(self) -> bool:
        """Return whether bytes or the end of the stream can be read although no request was sent."""
        poll = select.poll()
        poll.register(self._socket.sock, select.POLLIN)
        return bool(poll.poll(0))

    def fileno(self) -> int:
        """Return the socket's file descriptor."""
        return int(self._socket.sock.fileno())

    @property
    def timeout_s(self) -> float:
        """The longest wait for each part of an answer."""
        assert self._socket.socket_timeout is not None
        return float(self._socket.socket_timeout)

    @property
    def requests(self) -> int:
        """Requests sent since it was opened."""
        return int(self._coded.requests)
