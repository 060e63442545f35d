"""`tsd send`: send telnet lines to a daemon and print its replies, like netcat."""

import json
import os
import socket
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress

import click

from tsd.cli.options import closed_output_ignored
from tsd.cli.settings import with_config
from tsd.config.loader import Loaded
from tsd.errors import TsdError

RECEIVE_BYTES = SEND_BYTES = 64 << 10
WRITES = {b"put", b"putm", b"puts", b"rollup", b"histogram", b"meta"}  # the commands whose lines `synced N` counts
START_BYTES = max(map(len, WRITES)) + 1  # of a line, which tell one of them


@click.command()
@click.argument("lines", nargs=-1)
@click.option("--host", help="Host of the daemon (default: tsd.network.bind).")
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the daemon (default: tsd.network.port).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_config
def send(loaded: Loaded, lines: Sequence[str], host: str | None, port: int | None, as_json: bool) -> None:
    """Send LINES, or standard input, e.g. `tsd send "put my.metric $(date +%s) 42 host=web01"`.

    The daemon's replies are printed. The last one, `synced N`, means that N lines of points or metadata are on disk.
    The exit status is 1 if it is missing or such a line was refused.
    """
    given = [b"".join(os.fsencode(line) + b"\n" for line in lines)] if lines else iter(_read_input, b"")
    target = (host or loaded.config.bind, port or loaded.config.port)
    sender = _Sender(given)
    answer = _converse(target, sender)
    before, synced, last = answer.rpartition(b"synced ")
    stored = int(last) if synced and last.strip().isdigit() else None
    with closed_output_ignored():
        if as_json:
            replies = (before if stored is not None else answer).decode(errors="replace").splitlines()
            click.echo(json.dumps({"sent": sender.writes, "synced": stored, "replies": replies}))
        else:
            click.echo(answer, nl=False)
    if stored is None and sender.writes:
        click.echo("tsd: the daemon ended the connection without `synced`: lines may not be on disk", err=True)
    sys.exit(0 if stored == sender.writes else 1)


def _read_input() -> bytes:
    """Return what standard input has, empty at its end. Raise TsdError.

    Without a buffer: Python aborts at its end while a thread waits with the lock of one."""
    try:
        return os.read(sys.stdin.fileno(), SEND_BYTES)
    except OSError as exc:
        raise TsdError(f"standard input cannot be read: {exc.strerror}") from exc


class _Sender:
    """Sends lines as they come, so that input of any size needs little memory, and counts points and metadata."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = blocks
        self._start = b""  # of a line that has not ended
        self.writes = 0
        self.failure: TsdError | None = None  # of reading the blocks

    def run(self, connection: socket.socket) -> None:
        """Send all blocks, `sync` and `exit`."""
        with suppress(OSError):  # the reader sees the end of the connection too
            try:
                for block in self._blocks:
                    self._count(block)
                    connection.sendall(block)
            except TsdError as exc:
                self.failure = exc
                connection.shutdown(socket.SHUT_WR)
                return
            end = b"\n" if self._start else b""
            self._count(end)
            connection.sendall(end + b"sync\nexit\n")

    def _count(self, block: bytes) -> None:
        first, *others = block.split(b"\n")
        starts = [self._start + first[:START_BYTES], *(line[:START_BYTES] for line in others)]
        *ended, last = (start[:START_BYTES] for start in starts)
        self.writes += sum(start.split(b" ", 1)[0] in WRITES for start in ended)
        self._start = last


def _converse(target: tuple[str, int], lines: _Sender) -> bytes:
    """Send lines and return all replies of the daemon. Raise TsdError."""
    try:
        connection = socket.create_connection(target)
    except (OSError, UnicodeError) as exc:  # UnicodeError: for a name with two dots in a row
        reason = (exc.strerror if isinstance(exc, OSError) else "") or str(exc)
        raise TsdError(f"no daemon answers at {target[0]}:{target[1]}: {reason}") from exc
    with connection:
        # Replies are read meanwhile: a daemon with many of them stops reading until they are read.
        threading.Thread(target=lines.run, args=(connection,), daemon=True).start()
        try:
            answer = b"".join(iter(lambda: connection.recv(RECEIVE_BYTES), b""))
        except OSError as exc:
            raise TsdError(f"the daemon at {target[0]}:{target[1]} broke the connection") from exc
    if lines.failure is not None:
        raise lines.failure
    return answer
