"""Thrift's messages as thriftpy2 reads and writes them, held to what thriftpy2 does not look at: that an answer is the
one to the question, and is one at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from thriftpy2.protocol import TBinaryProtocol, TCompactProtocol
from thriftpy2.transport import TSocket, TTransportException

from tsd.store.gateways import NoAnswer


class _Echo:
    """Numbers each message, and takes only the answer with its number and name: a later call would else get the answer
    of an earlier one, and void answers all look alike. thriftpy2 numbers every message 0 and looks at neither."""

    def number(self, name: str) -> int:
        """A number for a call, whose answer is the next that is awaited."""
        self.numbers = getattr(self, "numbers", None) or count(1)
        number: int = next(self.numbers) & 0x7FFFFFFF
        self.sent = name, number
        return number

    def write_message_begin(self, name: str, kind: int, _: int) -> None:
        """Begin a call."""
        super().write_message_begin(name, kind, self.number(name))  # type: ignore[misc]

    def read_message_begin(self) -> tuple[str, int, int]:
        """Begin an answer."""
        with _garbled():
            name, kind, number = super().read_message_begin()  # type: ignore[misc]
            if isinstance(name, bytes):  # as the compact protocol reads it
                name = name.decode()
        if (name, number) != self.sent:
            raise NoAnswer(f"asked for {self.sent}, got an answer to {name, number}")
        return name, kind, number

    def read_struct(self, result: object) -> None:
        """Read an answer."""
        with _garbled():
            super().read_struct(result)  # type: ignore[misc]


class Socket(TSocket):
    """A socket that takes back what was read from it."""

    given_back = b""

    def send(self, request: bytes) -> None:
        """Send a request past Thrift's buffer, which is empty between two calls."""
        self.sock.sendall(request)

    def receive_into(self, room: memoryview) -> int:
        """Read some bytes past Thrift's buffer, which is empty once an answer was read."""
        return int(self.sock.recv_into(room))

    def read(self, size: int) -> bytes:
        """For Thrift's buffer."""
        if not self.given_back:
            return bytes(super().read(size))  # type: ignore[no-untyped-call]
        part, self.given_back = self.given_back[:size], self.given_back[size:]
        return part


class _Binary(_Echo, TBinaryProtocol):
    pass


class _Compact(_Echo, TCompactProtocol):
    pass


PROTOCOLS = {"binary": _Binary, "compact": _Compact}


@contextmanager
def _garbled() -> Iterator[None]:
    """Around the reading of bytes that may be anything: whatever thriftpy2 trips over, they are no answer."""
    try:
        yield
    except (OSError, TTransportException):
        raise
    except Exception as exc:
        raise NoAnswer(f"not an answer in Thrift: {exc!r}") from exc
