"""`tsd send`: send telnet lines to a daemon and print its replies, like netcat."""

import json
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

import click

from tsd.cli.settings import with_config
from tsd.config.loader import Loaded
from tsd.errors import TsdError

RECEIVE_BYTES = 64 << 10


@click.command()
@click.argument("lines", nargs=-1)
@click.option("--host", help="Host of the daemon (default: tsd.network.bind).")
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the daemon (default: tsd.network.port).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_config
def send(loaded: Loaded, lines: Sequence[str], host: str | None, port: int | None, as_json: bool) -> None:
    """Send LINES, or standard input, e.g. `tsd send "put my.metric $(date +%s) 42 host=web01"`.

    The daemon's replies are printed. The last one, `synced N`, means that N put lines are on disk. The exit status is 1
    if it is missing or a line was refused.
    """
    text = b"".join(line.encode() + b"\n" for line in lines) if lines else sys.stdin.buffer.read()
    if text and not text.endswith(b"\n"):
        text += b"\n"
    target = (host or loaded.config.bind, port or loaded.config.port)
    answer = _converse(target, text + b"sync\nexit\n")
    before, synced, last = answer.rpartition(b"synced ")
    stored = int(last) if synced and last.strip().isdigit() else None
    puts = sum(line == b"put" or line.startswith(b"put ") for line in text.split(b"\n"))
    if as_json:
        replies = (before if stored is not None else answer).decode(errors="replace").splitlines()
        click.echo(json.dumps({"sent": puts, "synced": stored, "replies": replies}))
    else:
        click.echo(answer, nl=False)
    sys.exit(0 if stored == puts else 1)


def _converse(target: tuple[str, int], text: bytes) -> bytes:
    """Send `text` and return all replies of the daemon. Raise TsdError."""
    try:
        connection = socket.create_connection(target)
    except OSError as exc:
        raise TsdError(f"no daemon answers at {target[0]}:{target[1]}: {exc.strerror or exc}") from exc
    with connection:
        # Replies are read meanwhile: a daemon with many of them stops reading until they are read.
        sender = threading.Thread(target=_send, args=(connection, text), daemon=True)
        sender.start()
        try:
            answer = b"".join(iter(lambda: connection.recv(RECEIVE_BYTES), b""))
        except OSError as exc:
            raise TsdError(f"the daemon at {target[0]}:{target[1]} broke the connection") from exc
        sender.join()
    return answer


def _send(connection: socket.socket, text: bytes) -> None:
    with suppress(OSError):  # the reader sees the end of the connection too
        connection.sendall(text)
