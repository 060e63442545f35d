"""A blocking client of a running daemon, for commands that wait for nothing else and start fast.

Commands that work on the store use `tsd.store.remote` instead, which does not block the event loop.
"""

import socket
from contextlib import AbstractContextManager
from typing import Any

import msgpack

from tsd.codec.control import MAX_MESSAGE, encode_request, result_of
from tsd.config.loader import state_folder
from tsd.config.settings import Config
from tsd.config.state_dir import socket_address
from tsd.daemon.settings import control_path
from tsd.errors import StoreDown, TsdError

RECEIVE_BYTES = 256 << 10


class DaemonConnection(AbstractContextManager["DaemonConnection"]):
    """A connection to the control socket of the daemon that runs on a state folder."""

    def __init__(self, config: Config, *, timeout_s: float | None = None) -> None:
        """Connect. Raise OSError if there is no daemon. `timeout_s` limits every wait for an answer."""
        self._path = control_path(config)
        self._timeout_s = timeout_s
        self._socket = self._connected()
        self._answers = msgpack.Unpacker(max_buffer_size=MAX_MESSAGE)

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def call(self, verb: str, **arguments: object) -> Any:
        """Return the daemon's answer. Raise the error in the answer, or StoreDown if no daemon answers.

        If the daemon was restarted since the last answer, connect again.
        """
        request = encode_request(verb, arguments)
        try:
            answer = self._exchange(request)
            if answer is None:
                self._reconnect()
                answer = self._exchange(request)
        except TimeoutError as exc:
            raise TsdError(f"the daemon at {self._path} does not answer within {self._timeout_s:g} s") from exc
        except OSError as exc:
            raise StoreDown(f"no daemon answers at {self._path}: {exc.strerror or exc}") from exc
        if answer is None:
            raise StoreDown(f"the daemon closed the connection during the call {verb}")
        return result_of(answer)

    def _connected(self) -> socket.socket:
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        found.settimeout(self._timeout_s)
        try:
            with socket_address(self._path) as address:
                found.connect(address)
        except OSError:
            found.close()
            raise
        return found

    def _reconnect(self) -> None:
        self._socket.close()
        self._socket = self._connected()
        self._answers = msgpack.Unpacker(max_buffer_size=MAX_MESSAGE)

    def _exchange(self, request: bytes) -> Any:
        """Return an answer, None if the daemon closed the connection."""
        try:
            self._socket.sendall(request)
            while data := self._socket.recv(RECEIVE_BYTES):
                self._answers.feed(data)
                for answer in self._answers:
                    return answer
        except (BrokenPipeError, ConnectionResetError):
            pass
        return None


def connect(config: Config, *, timeout_s: float | None = None) -> DaemonConnection:
    """Connect to the daemon of a state folder, see `DaemonConnection`. Raise StoreDown if none runs, or this user may
    not connect."""
    try:
        return DaemonConnection(config, timeout_s=timeout_s)
    except PermissionError as exc:
        raise StoreDown(
            f"{control_path(config)}: {exc.strerror}: only the daemon's user may connect. Run the command as that "
            "user, for example with sudo -u"
        ) from exc
    except BlockingIOError as exc:
        raise StoreDown(f"the daemon at {control_path(config)} accepts no connection: {exc.strerror}") from exc
    except OSError as exc:
        raise StoreDown(f"no daemon runs on {state_folder(config)}: {exc.strerror}") from exc


def try_connect(config: Config) -> DaemonConnection | None:
    """Connect to the daemon of a state folder. None: no daemon runs."""
    try:
        return DaemonConnection(config)
    except OSError:
        return None
