"""`tsd send`: telnet lines to a daemon, and what it answers; for scripts and first tries, where there is no netcat."""

import sys
from collections.abc import Sequence

import click
import trio

from tsd.cli.options import with_config
from tsd.config import Loaded
from tsd.errors import TsdError

SEND_BYTES = 64 << 10


@click.command()
@click.argument("lines", nargs=-1)
@click.option("--host", help="Where the daemon is (default: tsd.network.bind).")
@click.option("--port", type=click.IntRange(1, 65535), help="Its port (default: tsd.network.port).")
@with_config
def send(loaded: Loaded, lines: Sequence[str], host: str | None, port: int | None) -> None:
    """Send LINES, or standard input, e.g. `tsd send "put my.metric $(date +%s) 42 host=web01"`.

    The daemon's answers are printed. The last one, `synced N`, says that N put lines are on disk; the exit status is 1
    where it does not come or a line was refused.
    """
    text = b"".join(line.encode() + b"\n" for line in lines) if lines else sys.stdin.buffer.read()
    if text and not text.endswith(b"\n"):
        text += b"\n"
    target = (host or loaded.config.bind, port or loaded.config.port)
    answer = trio.run(_converse, target, text + b"sync\nexit\n")
    click.echo(answer, nl=False)
    last = answer.rpartition(b"synced ")[2].strip()
    puts = sum(line == b"put" or line.startswith(b"put ") for line in text.split(b"\n"))
    sys.exit(0 if last == b"%d" % puts else 1)


async def _converse(target: tuple[str, int], text: bytes) -> bytes:
    """Everything a daemon answers to `text`."""
    answer = bytearray()
    try:
        async with await trio.open_tcp_stream(*target) as stream, trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, text)
            while data := await stream.receive_some(SEND_BYTES):
                answer += data
    except* OSError as exc:
        raise TsdError(f"no daemon answers at {target[0]}:{target[1]}: {exc.exceptions[0]}") from exc
    except* trio.BrokenResourceError as exc:
        raise TsdError(f"the daemon at {target[0]}:{target[1]} broke the connection") from exc
    return bytes(answer)
