"""What a daemon in this process tells systemd, as systemd reads it."""

import socket
from contextlib import suppress


def messages(channel: socket.socket) -> list[str]:
    """What came up to now."""
    came = []
    with suppress(BlockingIOError):
        while True:
            came.append(channel.recv(4096).decode())
    return came
