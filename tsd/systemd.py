"""What systemd is told, where it started the daemon (sd_notify(3)); nothing elsewhere."""

import os
import socket


def notify(**state: str | int) -> None:
    """Send e.g. READY=1, STATUS="…". Without NOTIFY_SOCKET, or where nobody listens there, nothing happens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    text = "\n".join(f"{key}={value}" for key, value in state.items())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        try:
            channel.sendto(text.encode(), address)
        except OSError:
            return
