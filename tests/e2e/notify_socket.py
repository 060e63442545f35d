"""The receiving side of sd_notify, as in systemd."""

import re
import socket
from contextlib import suppress

from tests.e2e.command import PATIENCE_S


class NotifySocket:
    """Receives the messages of sd_notify."""

    def __init__(self, address: str) -> None:
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._channel.bind(re.sub("^@", "\0", address))
        self._channel.settimeout(PATIENCE_S)
        self.env = {"NOTIFY_SOCKET": address}
        self.came: list[str] = []

    def receive(self) -> str:
        """Return the next message."""
        self.came.append(self._channel.recv(4096).decode())
        return self.came[-1]

    def receive_until(self, pattern: str) -> re.Match[str]:
        """Return the next message with a line that matches."""
        while not (found := re.search(pattern, self.receive(), re.MULTILINE)):
            pass
        return found

    def pending(self) -> list[str]:
        """Return all messages received so far."""
        self._channel.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                self.receive()
        self._channel.settimeout(PATIENCE_S)
        return self.came

    def close(self) -> None:
        self._channel.close()
