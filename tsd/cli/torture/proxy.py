"""A TCP proxy that injects faults between a client and its gateway.

It runs in threads, so that trio tests and synchronous ones can use it. Nothing depends on time: a late answer waits
until it is released, and `holding` is set meanwhile.
"""

import enum
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

CHUNK = 1 << 20
BACKLOG = 64


class ProxyMode(enum.Enum):
    """Fault modes. An answer is one block of data from upstream."""

    PASS = "everything is forwarded"  # noqa: S105 - not a password
    REFUSE = "connections are refused, and open ones are closed"
    HANG = "connections are accepted, requests are dropped"
    STALL = "half of an answer is forwarded, and then nothing"
    LOSE = "requests are forwarded, and the connection is closed instead of the answer"
    CUT = "the connection is closed in the middle of the answer"
    HOLD = "answers wait until the mode changes"
    GARBLE = "every byte of an answer is inverted"
    REPEAT = "the previous answer is sent instead of an answer"


class FaultyProxy:
    """A proxy on `port` of `host` with a fault mode. A context manager."""

    host = "127.0.0.1"

    def __init__(self, upstream_host: str, upstream_port: int) -> None:
        self._upstream = (upstream_host, upstream_port)
        self._changed = threading.Condition()
        self._mode = ProxyMode.PASS
        self._relays: set[_Relay] = set()
        self._threads: list[threading.Thread] = []
        self._place = _bound(self.host, 0)  # keeps the port while nothing listens on it
        self.port: int = self._place.getsockname()[1]
        self.accepted = 0  # connections, since the start
        self.holding = threading.Event()  # an answer is being held
        self._listener: socket.socket | None = None
        self._listen()

    @property
    def address(self) -> tuple[str, int]:
        """The address for clients."""
        return self.host, self.port

    @property
    def mode(self) -> ProxyMode:
        """The current fault mode."""
        return self._mode

    @mode.setter
    def mode(self, mode: ProxyMode) -> None:
        with self._changed:
            self._mode = mode
            self.holding.clear()
            self._changed.notify_all()
        if mode is ProxyMode.REFUSE:
            self._refuse()
            self.disconnect_all()
        elif self._listener is None:
            self._listen()

    def disconnect_all(self) -> None:
        """Close every open connection, as a gateway does with idle ones."""
        with self._changed:
            relays = list(self._relays)
        for relay in relays:
            relay.end()

    def close(self) -> None:
        """Close everything and join all threads."""
        self.mode = ProxyMode.REFUSE
        for thread in self._threads:
            thread.join()
        self._place.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait_while_held(self) -> None:
        """Return when answers are no longer held."""
        with self._changed:
            if self._mode is ProxyMode.HOLD:
                self.holding.set()
            self._changed.wait_for(lambda: self._mode is not ProxyMode.HOLD)

    def wait_while_stalled(self) -> None:
        """Return when answers are complete again."""
        with self._changed:
            self._changed.wait_for(lambda: self._mode is not ProxyMode.STALL)

    def start(self, thread: threading.Thread) -> None:
        """Start a thread that `close` joins."""
        self._threads.append(thread)
        thread.start()

    def forget(self, relay: "_Relay") -> None:
        """Remove a closed connection."""
        with self._changed:
            self._relays.discard(relay)

    def _listen(self) -> None:
        self._listener = _bound(self.host, self.port)
        self._listener.listen(BACKLOG)
        self.start(threading.Thread(target=self._accept, args=(self._listener,)))

    def _refuse(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)  # interrupts accept(), which close() does not
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                upstream = socket.create_connection(self._upstream)
            except OSError:
                client.close()
                continue
            relay = _Relay(self, client, upstream)
            with self._changed:
                self.accepted += 1
                self._relays.add(relay)
            relay.start()
            if self._mode is ProxyMode.REFUSE:  # accepted while the listener was being closed
                relay.end()


class _Relay:
    """A client's connection and its upstream connection."""

    def __init__(self, proxy: FaultyProxy, client: socket.socket, upstream: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._upstream = upstream
        self._last = b""
        self._ending = threading.Lock()
        self._running = 2

    def start(self) -> None:
        """Forward in both directions."""
        for way in (self._requests, self._answers):
            self._proxy.start(threading.Thread(target=self._run, args=(way,)))

    def end(self) -> None:
        """Close both connections."""
        for side in (self._client, self._upstream):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def _run(self, way: Callable[[], None]) -> None:
        with suppress(OSError):
            way()
        self.end()
        with self._ending:
            self._running -= 1
            last = not self._running
        if last:  # close a socket after its last read: its number could be reused
            self._client.close()
            self._upstream.close()
            self._proxy.forget(self)

    def _requests(self) -> None:
        while data := self._client.recv(CHUNK):
            if self._proxy.mode is not ProxyMode.HANG:
                self._upstream.sendall(data)

    def _answers(self) -> None:
        while data := self._upstream.recv(CHUNK):
            if self._proxy.mode is ProxyMode.HOLD:
                self._proxy.wait_while_held()
            mode = self._proxy.mode
            if mode is ProxyMode.LOSE:
                return
            if mode in (ProxyMode.CUT, ProxyMode.STALL):
                self._client.sendall(data[: len(data) // 2])
                if mode is ProxyMode.CUT:
                    return
                self._proxy.wait_while_stalled()
                return  # no client can continue after such an answer
            if mode is ProxyMode.GARBLE:
                data = bytes(byte ^ 0xFF for byte in data)
            elif mode is ProxyMode.REPEAT:
                data, self._last = self._last or data, data
            else:
                self._last = data
            self._client.sendall(data)


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket bound to a port that other sockets of this process may share."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind((host, port))
    return bound
