"""A TCP proxy that misbehaves on command: what stands between a client and its gateway on a bad day.

It runs in threads, so both trio's tests and plain ones can use it. Nothing depends on time: an answer that is late is
late until it is released, and `holding` tells when there is one.
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


class Mode(enum.Enum):
    """What becomes of connections and of what is said over them. An answer is what comes from upstream at once."""

    PASS = "all goes through"  # noqa: S105 - a way, not a word
    REFUSE = "connections are refused, and those that are open are hung up"
    STALL = "connections are accepted, requests go nowhere"
    HANG = "half of an answer comes, and then nothing more"
    LOSE = "requests go through, and instead of the answer comes the end of the connection"
    CUT = "the connection ends in the middle of the answer"
    HOLD = "answers wait until the mode is another"
    GARBLE = "every byte of an answer is inverted"
    REPEAT = "instead of an answer comes the one before it"


class FaultyProxy:
    """Listens on `port` of `host` and passes everything on, until `mode` says otherwise. A context manager."""

    host = "127.0.0.1"

    def __init__(self, upstream_host: str, upstream_port: int) -> None:
        self._upstream = (upstream_host, upstream_port)
        self._changed = threading.Condition()
        self._mode = Mode.PASS
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
        """Where clients connect to."""
        return self.host, self.port

    @property
    def mode(self) -> Mode:
        """What it does now."""
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        with self._changed:
            self._mode = mode
            self.holding.clear()
            self._changed.notify_all()
        if mode is Mode.REFUSE:
            self._refuse()
            self.hang_up()
        elif self._listener is None:
            self._listen()

    def hang_up(self) -> None:
        """End every open connection, as a gateway does with idle ones."""
        with self._changed:
            relays = list(self._relays)
        for relay in relays:
            relay.end()

    def close(self) -> None:
        """End everything, threads too."""
        self.mode = Mode.REFUSE
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
            if self._mode is Mode.HOLD:
                self.holding.set()
            self._changed.wait_for(lambda: self._mode is not Mode.HOLD)

    def wait_while_hanging(self) -> None:
        """Return when answers come whole again, or nobody waits for them."""
        with self._changed:
            self._changed.wait_for(lambda: self._mode is not Mode.HANG)

    def start(self, thread: threading.Thread) -> None:
        """Run a thread that `close` waits for."""
        self._threads.append(thread)
        thread.start()

    def forget(self, relay: "_Relay") -> None:
        """A connection has ended."""
        with self._changed:
            self._relays.discard(relay)

    def _listen(self) -> None:
        self._listener = _bound(self.host, self.port)
        self._listener.listen(BACKLOG)
        self.start(threading.Thread(target=self._accept, args=(self._listener,)))

    def _refuse(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)  # ends accept, which close alone would not
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
            if self._mode is Mode.REFUSE:  # it came while the listener was being closed
                relay.end()


class _Relay:
    """One client's connection, and its own to upstream."""

    def __init__(self, proxy: FaultyProxy, client: socket.socket, upstream: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._upstream = upstream
        self._last = b""
        self._ending = threading.Lock()
        self._running = 2

    def start(self) -> None:
        """Pass on both ways."""
        for way in (self._requests, self._answers):
            self._proxy.start(threading.Thread(target=self._run, args=(way,)))

    def end(self) -> None:
        """Hang up on both sides."""
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
        if last:  # a socket is closed when nobody reads from it any more, or its number could be another's
            self._client.close()
            self._upstream.close()
            self._proxy.forget(self)

    def _requests(self) -> None:
        while data := self._client.recv(CHUNK):
            if self._proxy.mode is not Mode.STALL:
                self._upstream.sendall(data)

    def _answers(self) -> None:
        while data := self._upstream.recv(CHUNK):
            if self._proxy.mode is Mode.HOLD:
                self._proxy.wait_while_held()
            mode = self._proxy.mode
            if mode is Mode.LOSE:
                return
            if mode in (Mode.CUT, Mode.HANG):
                self._client.sendall(data[: len(data) // 2])
                if mode is Mode.CUT:
                    return
                self._proxy.wait_while_hanging()
                return  # nobody can go on with such an answer
            if mode is Mode.GARBLE:
                data = bytes(byte ^ 0xFF for byte in data)
            elif mode is Mode.REPEAT:
                data, self._last = self._last or data, data
            else:
                self._last = data
            self._client.sendall(data)


def _bound(host: str, port: int) -> socket.socket:
    """A socket on a port that another one of ours may have too."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind((host, port))
    return bound
