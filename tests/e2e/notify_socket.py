"""What sd_notify brings, as systemd hears it."""

import re
import socket
from contextlib import suppress

from tests.e2e.command import PATIENCE_S


class Notices:
    """What sd_notify brings: each message as the set of its lines."""

    def __init__(self, address: str) -> None:
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._channel.bind(re.sub("^@", "\0", address))
        self._channel.settimeout(PATIENCE_S)
        self.env = {"NOTIFY_SOCKET": address}
        self.came: list[str] = []

    def take(self) -> str:
        """The next message."""
        self.came.append(self._channel.recv(4096).decode())
        return self.came[-1]

    def take_until(self, pattern: str) -> re.Match[str]:
        """The next message that has such a line."""
        while not (found := re.search(pattern, self.take(), re.MULTILINE)):
            pass
        return found

    def pending(self) -> list[str]:
        """All messages up to now."""
        self._channel.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                self.take()
        self._channel.settimeout(PATIENCE_S)
        return self.came

    def close(self) -> None:
        self._channel.close()
