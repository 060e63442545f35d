"""Send lines from a separate process, so that its CPU is not counted.

`flat`: pieces of files, one connection each, at full speed or a fixed rate; `http`: the same through /api/put, one
batch after the other; `agents`: many connections at a low rate for some seconds.
"""

import json
import mmap
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import trio

from bench.comparison.mixes import Sums, plain, sums_of
from bench.concurrency import Done, run_concurrently
from bench.http_put import posting
from bench.lines import ROUND_S, series_text

BLOCK_BYTES = 256 << 10
STEP_S = 0.02  # interval of rate control


class Sent(NamedTuple):
    """Times of sending by the monotonic clock, number of lines of agents, and the last answers."""

    start: float
    end: float
    points: int
    values: float
    answers: list[str]


class Pace(NamedTuple):
    """Rate of many agents: each has some series and sends the next `lines` of them every `tick_s` seconds."""

    connections: int
    series: int
    lines: int
    tick_s: float
    seconds: float

    @property
    def ticks(self) -> int:
        """Number of ticks per agent."""
        return round(self.seconds / self.tick_s)


Part = tuple[str, int, int]  # of one connection: file, first byte, end


def flat(parts: list[Part], port: int, last: str, seconds: float = 0.0) -> Sent:
    """Send parts of files concurrently, each on its own connection, and wait for the answer to `last`; without it, for
    the end of the answers. With `seconds`, spread the sending over that time."""
    return _run("flat", parts, port, last, seconds)


def http_batches(parts: list[Part], port: int, batch: int) -> Sent:
    """Post parts as JSON, in batches of points."""
    return _run("http", parts, port, batch)


def agents(pace: Pace, port: int, start_s: int, *, in_paths: bool) -> Sent:
    """Let agents send points from this time on, in carbon's format or as put lines."""
    return _run("agents", pace, port, start_s, in_paths)


def _run(*words: object) -> Sent:
    command = [sys.executable, "-m", "bench.comparison.sender", json.dumps(words)]
    return Sent(*json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))


# ---- the sending process


def _sent(done: Done) -> Sent:
    return Sent(done.start, done.end, 0, 0.0, done.answers)


def _flat(parts: list[Part], port: int, last: str, seconds: float) -> Sent:
    def delivery(path: str, begin: int, end: int) -> Callable[[], str]:
        connection = socket.create_connection(("127.0.0.1", port))
        text = _text(path, begin, end)

        def deliver() -> str:
            for block in _blocks(text, seconds):
                connection.sendall(block)
            if last:
                connection.sendall(last.encode() + b"\n")
            else:
                connection.shutdown(socket.SHUT_WR)
            return connection.recv(65536).decode(errors="replace")

        return deliver

    return _sent(run_concurrently([delivery(*part) for part in parts]))


def _text(path: str, begin: int, end: int) -> memoryview:
    with Path(path).open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[begin:end]


def _blocks(text: memoryview, seconds: float) -> Any:
    """Yield the text in blocks, each at its due time of an even distribution."""
    size = max(1, int(len(text) * STEP_S / seconds)) if seconds else BLOCK_BYTES
    begun, rest = time.monotonic(), threading.Event()
    for at in range(0, len(text), size):
        if seconds:
            rest.wait(max(0.0, begun + at / len(text) * seconds - time.monotonic()))
        yield text[at : at + size]


def _http(parts: list[Part], port: int, batch: int) -> Sent:
    return _sent(run_concurrently([posting(list(bodies(bytes(_text(*part)), batch)), port) for part in parts]))


def bodies(text: bytes, batch: int) -> list[bytes]:
    """Convert put lines to arrays of `batch` points, with the numbers' text unchanged.

    >>> bodies(b"put m 1 2.50 host=a", 10)
    [b'[{"metric":"m","timestamp":1,"value":2.50,"tags":{"host":"a"}}]']
    """
    points = []
    for line in text.decode().splitlines():
        _, metric, at, value, *tags = line.split(" ")
        named = ",".join(f'"{tagk}":"{tagv}"' for tagk, tagv in (tag.split("=") for tag in tags))
        points.append(f'{{"metric":"{metric}","timestamp":{at},"value":{value},"tags":{{{named}}}}}')
    return [f"[{','.join(points[at : at + batch])}]".encode() for at in range(0, len(points), batch)]


def _agents(pace: Pace, port: int, start_s: int, in_paths: bool) -> Sent:
    return trio.run(_send, pace, port, start_s, in_paths)


async def _send(pace: Pace, port: int, start_s: int, in_paths: bool) -> Sent:
    """Start the agents' ticks at different times, so that they do not send in step."""
    totals = Sums(0, 0.0)
    streams = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(pace.connections)]
    begun = trio.current_time()
    monotonic = time.monotonic()

    async def agent(number: int, stream: trio.SocketStream) -> None:
        nonlocal totals
        first = begun + pace.tick_s * number / pace.connections
        for tick in range(pace.ticks):
            await trio.sleep_until(first + tick * pace.tick_s)
            text = tick_text(pace, number, tick, start_s)
            totals += sums_of(text)
            await stream.send_all(plain(text) if in_paths else text)

    async with trio.open_nursery() as nursery:
        for number, stream in enumerate(streams):
            nursery.start_soon(agent, number, stream)
    for stream in streams:
        await stream.aclose()
    return Sent(monotonic, time.monotonic(), *totals, [])


def tick_text(pace: Pace, agent: int, tick: int, start_s: int) -> bytes:
    """Return what an agent sends in a tick: its next series, each ten seconds after its last point."""
    lines = []
    for sent in range(tick * pace.lines, (tick + 1) * pace.lines):
        at, own = divmod(sent, pace.series)
        metric, tags = series_text(agent * pace.series + own)
        lines.append(f"put {metric} {start_s + at * ROUND_S} {at % 1000}.5 {tags}\n")
    return "".join(lines).encode()


def main() -> None:
    """Run the sending process."""
    kind, *words = json.loads(sys.argv[1])
    match kind:
        case "flat":
            sent = _flat(*words)
        case "http":
            sent = _http(*words)
        case _:
            sent = _agents(Pace(*words[0]), *words[1:])
    print(json.dumps(sent))


if __name__ == "__main__":
    main()
