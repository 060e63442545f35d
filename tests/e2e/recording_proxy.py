"""A TCP proxy that records what an agent sends to a daemon."""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from tests.e2e.command import PATIENCE_S

HOST = "127.0.0.1"
RECEIVE_BYTES = 64 << 10


class RecordingProxy:
    """Forward connections to the daemon at `upstream` and record their data. A context manager.

    If the daemon closes or refuses a connection, the agent's connection is closed too.
    """

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.changed = threading.Condition()
        self._sent: list[bytearray] = []
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(threading.Thread(target=self._accept))

    def sent(self) -> list[bytes]:
        """Return the data of each connection that the daemon accepted, in order."""
        with self.changed:
            return [bytes(text) for text in self._sent]

    def drain(self) -> None:
        """Return once everything that agents have sent is recorded and read by the daemon. They must have ended."""
        with socket.create_connection((HOST, self.port), timeout=PATIENCE_S) as last:  # accepted after theirs
            last.shutdown(socket.SHUT_WR)
            assert last.recv(1) == b""
        with self.changed:
            assert self.changed.wait_for(lambda: not self._sockets, PATIENCE_S), "an agent is still connected"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        with self.changed:
            for side in self._sockets:
                with suppress(OSError):
                    side.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _start(self, thread: threading.Thread) -> None:
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                agent, _ = self._listener.accept()
            except OSError:
                return
            try:
                daemon = socket.create_connection((HOST, self.upstream))
            except OSError:
                agent.close()
                continue
            with self.changed:
                kept = bytearray()
                self._sent.append(kept)
                self._sockets |= {agent, daemon}
            self._start(threading.Thread(target=self._pass_on, args=(agent, daemon, kept)))

    def _pass_on(self, agent: socket.socket, daemon: socket.socket, kept: bytearray) -> None:
        answers = threading.Thread(target=self._pass_back, args=(daemon, agent))
        answers.start()
        with suppress(OSError):
            while data := agent.recv(RECEIVE_BYTES):
                with self.changed:
                    kept += data
                    self.changed.notify_all()
                daemon.sendall(data)
        with suppress(OSError):
            daemon.shutdown(socket.SHUT_WR)  # the daemon reads to the end, then closes the connection
        answers.join()
        with self.changed:
            self._sockets -= {agent, daemon}
            self.changed.notify_all()
        agent.close()
        daemon.close()

    def _pass_back(self, daemon: socket.socket, agent: socket.socket) -> None:
        """Forward replies until the daemon closes the connection."""
        with suppress(OSError):
            while data := daemon.recv(RECEIVE_BYTES):
                agent.sendall(data)
        with suppress(OSError):
            agent.shutdown(socket.SHUT_RDWR)
