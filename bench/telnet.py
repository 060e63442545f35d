"""A telnet connection to a daemon."""

import socket
from types import TracebackType
from typing import Self

MARK = b"benchmark"  # an unknown command: its answer marks the end of an answer of unknown length
ECHO = b"unknown command: benchmark.  Try `help'.\n"


class Telnet:
    """A blocking connection."""

    def __init__(self, port: int) -> None:
        self._connection = socket.create_connection(("127.0.0.1", port), timeout=600)

    def request(self, command: bytes) -> bytes:
        """Send commands or put lines. Return everything that is answered."""
        self._connection.sendall(command + b"\n" + MARK + b"\n")
        answer = b""
        while not answer.endswith(ECHO):
            part = self._connection.recv(65536)
            assert part, f"closed after {answer[-200:]!r}"
            answer += part
        return answer.removesuffix(ECHO)

    def sync(self, line: bytes) -> None:
        """Send a put line and wait until it is on disk."""
        self._connection.sendall(line + b"\nsync\n")
        answer = self._connection.recv(65536)
        assert answer.startswith(b"synced "), answer

    def stats(self) -> dict[str, int]:
        """Return the reply of `stats` by name and own tag, without the prefix `tsd.`."""
        found = {}
        for line in self.request(b"stats").decode().splitlines():
            name, _, value, *tags = line.split(" ")
            found[" ".join([name.removeprefix("tsd."), *tags[:-1]])] = int(value)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
